package pool

import (
	"fmt"
	"math"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// Pool is the bytes that its members share.
type Pool struct {
	capacity int64

	mu struct {
		sync.Mutex
		drawn   int64  // of every member the larger of floor and used, all grants, and what there is for those that wait
		floors  int64  // that all members were promised: within the capacity
		used    int64  // by all members: at most what is drawn
		members int    // that have not left
		givers  givers // members without those in spent
		spent   givers // that have given what they could to a claim that wants more
		renewed uint64 // counts when these were asked again
		owed    line   // floors that are not set aside in full; these and claims want no more than 2^48 bytes each (SPEC Q5), or the capacity
		claims  line   // those that are not granted in full
	}
}

// Member is one user of a pool.
type Member struct {
	pool *Pool
	give func(Gift)

	// Under the pool's lock.
	promised int64  // what the floor is to be
	floor    int64  // what is set aside of it; all, once others have given what they use of it
	due      *Claim // on those; nil once they have answered
	used     int64
	claimed  int64  // bytes of its claims that it has not accepted yet
	asked    int64  // bytes it was asked for and has not answered
	owed     *place // while the floor is not set aside in full: then it uses no more than is set aside, since claims come after floors
	at       among
	spent    uint64 // renewed, when it was spent
}

// aboveLocked is what the member uses above its floor and was not asked for.
func (m *Member) aboveLocked() int64 { return m.used - m.promised - m.asked }

// settleLocked sets aside of the floor what has come for it.
func (m *Member) settleLocked() {
	if m.owed == nil {
		return
	}
	if m.floor += m.pool.mu.owed.take(m.owed); m.floor == m.promised {
		m.pool.mu.owed.leave(m.owed)
		m.owed = nil
	}
}

// takeLocked counts bytes more, or less, as used.
func (m *Member) takeLocked(bytes int64) {
	m.pool.mu.used += bytes
	m.used += bytes
	m.movedLocked()
}

// New makes a pool of the bytes given, without a bound if capacity says so or is
// not given. A negative one is ErrInvalid.
func New(capacity limit.Limit) (*Pool, error) {
	if err := capacity.Validate(); err != nil {
		return nil, err
	}
	n, counted := capacity.Value()
	if !counted {
		n = math.MaxInt64
	}
	p := &Pool{capacity: n}
	p.mu.renewed = 1
	return p, nil
}

// Join adds a member with a floor in bytes. give is how the member is asked to
// release bytes for others; it must not wait. Join does not wait either: where others
// use what is to be the floor they are asked for it, and what is released goes to floors
// first. Until then the floor has what there was. ErrTooLarge: the floors of all are more
// than there is.
func (p *Pool) Join(floor int64, give func(Gift)) (*Member, error) {
	if floor < 0 {
		return nil, fault.Invalidf("pool: join", "a floor of %d bytes: want 0 or more", floor)
	}
	m := &Member{pool: p, give: give, promised: floor}
	p.mu.Lock()
	p.renewLocked()
	if others := p.mu.floors; floor > p.capacity-others {
		p.mu.Unlock()
		return nil, &fault.Error{Op: "pool: join", Err: fmt.Errorf("%w: %d bytes of floor, beside %d of the others, of the %d that all have: lower one, or raise what all have", fault.ErrTooLarge, floor, others, p.capacity)}
	}
	p.mu.givers.push(m)
	p.mu.members++
	p.mu.floors += floor
	m.floor = min(floor, p.capacity-p.mu.drawn)
	p.mu.drawn += m.floor
	var gifts []Gift
	if m.floor < floor {
		m.owed = p.mu.owed.join(floor - m.floor)
		c := &Claim{member: m, done: m.given, floor: true}
		if gifts = p.claimLocked(c, 0); !p.overLocked(c) {
			m.due = c
		}
	}
	p.mu.Unlock()
	send(gifts)
	return m, nil
}

// given ends the claim on a floor, and the claims that waited for it.
func (m *Member) given(due *Claim) {
	m.pool.mu.Lock()
	m.due = nil
	m.pool.mu.Unlock()
	endNext(due.after) // nobody adds to it any more
}

// Leave ends a member that has released what it used.
func (m *Member) Leave() {
	p := m.pool
	m.lock()
	m.amongLocked().remove(m)
	p.mu.members--
	drawn := max(m.floor, m.used)
	p.mu.floors -= m.promised
	if m.owed != nil {
		p.mu.owed.leave(m.owed)
		m.owed = nil
	}
	m.promised, m.floor = 0, 0
	m.takeLocked(-m.used)
	p.releaseLocked(drawn)
	p.mu.Unlock()
}

// lock takes the pool's lock, for a call about the member.
func (m *Member) lock() {
	m.pool.mu.Lock()
	m.settleLocked()
}

// Fits reports whether n bytes more could be reserved at this moment.
func (m *Member) Fits(bytes int64) bool {
	p := m.pool
	m.lock()
	defer p.mu.Unlock()
	return m.growthLocked(m.used, bytes) <= p.capacity-p.mu.drawn
}

// Reserve takes n bytes, or none and reports false.
func (m *Member) Reserve(bytes int64) bool {
	m.lock()
	defer m.pool.mu.Unlock()
	return m.reserveLocked(bytes)
}

func (m *Member) reserveLocked(bytes int64) bool {
	p := m.pool
	growth := m.growthLocked(m.used, bytes)
	if growth > p.capacity-p.mu.drawn {
		return false
	}
	p.mu.drawn += growth
	m.takeLocked(bytes)
	return true
}

// growthLocked is what more bytes would draw from the pool if the member used the
// bytes in used. It saturates: no sum wraps.
func (m *Member) growthLocked(used, more int64) int64 {
	if more > math.MaxInt64-used {
		return math.MaxInt64
	}
	return max(used+more, m.floor) - max(used, m.floor)
}

// Most is what the member can ever hold, if nobody uses more than its floor.
func (m *Member) Most() int64 {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.capacity - (p.mu.floors - m.promised)
}

// Could reports whether n bytes would fit if the member released all that
// it uses.
func (m *Member) Could(bytes int64) bool {
	p := m.pool
	m.lock()
	defer p.mu.Unlock()
	others := p.mu.drawn - max(m.used, m.floor)
	return max(bytes, m.floor) <= p.capacity-others
}

// Release gives back bytes that were reserved.
func (m *Member) Release(bytes int64) {
	p := m.pool
	m.lock()
	before := max(m.used, m.floor)
	m.takeLocked(-bytes)
	p.releaseLocked(before - max(m.used, m.floor))
	p.mu.Unlock()
}

// releaseLocked takes n bytes off what is drawn and lets the floors that are owed, and
// then the claims, have what is free. It costs the same however many these are. What no
// one of them wants is anybody's.
func (p *Pool) releaseLocked(bytes int64) {
	p.mu.drawn -= bytes
	p.mu.drawn += p.mu.owed.fill(p.capacity - p.mu.drawn)
	p.mu.drawn += p.mu.claims.fill(p.capacity - p.mu.drawn)
}

// Use is what the members have reserved, and what of the capacity is spoken for:
// that, unused floors and grants.
func (p *Pool) Use() (used, drawn int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.used, p.mu.drawn
}

// Capacity is the number of bytes, math.MaxInt64 without a bound.
func (p *Pool) Capacity() int64 { return p.capacity }

// claimLocked plans which members give up what c lacks, whose member would then use excess
// above its floor. The claim stands if they cover it, or are more than are asked at once;
// that on a floor in any case. One for bytes beyond the floor asks no more once MostAsked
// have not given all: it costs the same however many members there are.
func (p *Pool) claimLocked(c *Claim, excess int64) (gifts []Gift) {
	if c.excess, c.patient = excess, MostAsked; excess <= 0 { // nobody gives of its floor
		c.excess, c.patient = 0, p.mu.members
	}
	gifts = p.askLocked(c)
	if c.lackingLocked() > 0 && c.awaited < MostAsked && !c.floor {
		for _, g := range gifts {
			g.from.asked -= g.Bytes
			g.from.movedLocked()
		}
		return nil
	}
	c.stands = true
	p.mu.drawn += c.granted
	if c.granted < c.need {
		c.waits = p.mu.claims.join(c.need - c.granted)
	}
	return gifts
}

// askLocked asks for what c lacks, as long as no more than MostAsked have to answer.
func (p *Pool) askLocked(c *Claim) (gifts []Gift) {
	for c.awaited < MostAsked && c.patient > 0 {
		from := p.mu.givers.root
		if from == nil || from.aboveLocked() <= c.excess {
			break
		}
		bytes := min(from.aboveLocked(), c.lackingLocked())
		if bytes <= 0 {
			break
		}
		c.asking += bytes
		c.awaited++
		gifts = append(gifts, Gift{from: from, Bytes: bytes, claim: c})
		from.asked += bytes
		from.movedLocked()
	}
	return gifts
}
