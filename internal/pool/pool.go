package pool

import (
	"container/list"
	"fmt"
	"math"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/priority"
	"github.com/kiln-cache/kiln/limit"
)

// Pool is the bytes that its members share.
type Pool struct {
	capacity int64

	mu struct {
		sync.Mutex
		drawn   int64                   // of every member the larger of floor and used, and all grants, those that a release is about to make too
		floors  int64                   // that all members were promised: within the capacity
		used    int64                   // by all members: at most what is drawn
		members priority.Queue[*Member] // the one that uses most above its floor is first; without those in spent
		spent   []*Member               // that have given what they could to a claim that wants more
		claims  list.List               // of *Claim: those that are not granted in full, oldest first
		owed    list.List               // of *Member: those whose floors are not set aside in full, oldest first
		wanted  uint64                  // at least what all of these want; each no more than 2^48 bytes (SPEC Q5), or of the capacity
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
	claimed  int64 // bytes of its claims that it has not accepted yet
	asked    int64 // bytes it was asked for and has not answered
	owed     *list.Element
	place    int // among the members; 0 = it is spent or has left
	left     bool
}

// aboveLocked is what the member uses above its floor and was not asked for.
func (m *Member) aboveLocked() int64 { return m.used - m.promised - m.asked }

// movedLocked follows each change of that.
func (m *Member) movedLocked() { m.pool.mu.members.Fix(m) }

// setAsideLocked sets aside of the floor what the pool has, and reports whether that is
// all of it.
func (m *Member) setAsideLocked() bool {
	p, has := m.pool, max(m.floor, m.used)
	m.floor = min(m.promised, has+p.capacity-p.mu.drawn)
	p.mu.drawn += max(m.floor, has) - has
	return m.floor == m.promised
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
	p.mu.members = priority.New(func(a, b *Member) bool { return a.aboveLocked() > b.aboveLocked() }, func(m *Member) *int { return &m.place })
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
	p.mu.members.Push(m)
	p.mu.floors += floor
	var gifts []Gift
	if !m.setAsideLocked() {
		m.owed = p.mu.owed.PushBack(m)
		p.mu.wanted += uint64(floor - m.floor)
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
	p.mu.Lock()
	p.mu.members.Remove(m)
	m.left = true
	drawn := max(m.floor, m.used)
	p.mu.floors -= m.promised
	if m.owed != nil {
		p.mu.owed.Remove(m.owed) // if it is there still
		p.mu.wanted -= uint64(m.promised - m.floor)
	}
	m.promised, m.floor = 0, 0
	m.takeLocked(-m.used)
	p.releaseLocked(drawn)
	p.mu.Unlock()
}

// Fits reports whether n bytes more could be reserved at this moment.
func (m *Member) Fits(bytes int64) bool {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	return m.growthLocked(m.used, bytes) <= p.capacity-p.mu.drawn
}

// Reserve takes n bytes, or none and reports false.
func (m *Member) Reserve(bytes int64) bool {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	return m.reserveLocked(bytes)
}

func (m *Member) reserveLocked(bytes int64) bool {
	p := m.pool
	growth := m.growthLocked(m.used, bytes)
	if growth > p.capacity-p.mu.drawn {
		return false
	}
	m.takeLocked(bytes)
	p.mu.drawn += growth
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
	p.mu.Lock()
	defer p.mu.Unlock()
	others := p.mu.drawn - max(m.used, m.floor)
	return max(bytes, m.floor) <= p.capacity-others
}

// Release gives back bytes that were reserved.
func (m *Member) Release(bytes int64) {
	p := m.pool
	p.mu.Lock()
	before := max(m.used, m.floor)
	m.takeLocked(-bytes)
	p.releaseLocked(before - max(m.used, m.floor))
	p.mu.Unlock()
}

// mostGranted is how many floors and claims get what they wait for in one hold of the lock,
// and how many members may be asked again.
const mostGranted = 256

// releaseLocked takes n bytes off what is drawn and lets the floors that are owed, and
// then the claims, have what is free, oldest first. It costs as much as there are that have
// all of theirs by that, and lets go of the lock in between.
func (p *Pool) releaseLocked(bytes int64) {
	for left := p.grantLocked(bytes); left > 0; left = p.grantLocked(left) {
		p.mu.Unlock()
		p.mu.Lock()
	}
}

// grantLocked is releaseLocked for up to mostGranted of those that wait. What is left and the
// others want stays drawn, so that nobody else has it meanwhile; the rest is anybody's at once.
func (p *Pool) grantLocked(bytes int64) (left int64) {
	p.mu.drawn -= bytes
	n := 0
	for e := p.mu.owed.Front(); e != nil && n < mostGranted && p.mu.drawn < p.capacity; e = p.mu.owed.Front() {
		m := e.Value.(*Member)
		had := m.floor
		all := m.setAsideLocked()
		if p.mu.wanted -= uint64(m.floor - had); !all {
			break
		}
		p.mu.owed.Remove(e)
		n++
	}
	for e := p.mu.claims.Front(); e != nil && n < mostGranted && p.mu.drawn < p.capacity; e = p.mu.claims.Front() {
		c := e.Value.(*Claim)
		part := min(p.capacity-p.mu.drawn, c.need-c.granted)
		c.granted += part
		p.mu.wanted -= uint64(part)
		if p.mu.drawn += part; c.granted < c.need {
			break
		}
		p.mu.claims.Remove(e)
		n++
	}
	if p.mu.owed.Len()+p.mu.claims.Len() > 0 {
		left = int64(min(uint64(p.capacity-p.mu.drawn), p.mu.wanted))
		p.mu.drawn += left
	}
	return left
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
		c.excess, c.patient = 0, p.mu.members.Len()
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
		c.waits = p.mu.claims.PushBack(c)
		p.mu.wanted += uint64(c.need - c.granted)
	}
	return gifts
}

// askLocked asks for what c lacks, as long as no more than MostAsked have to answer.
func (p *Pool) askLocked(c *Claim) (gifts []Gift) {
	for c.awaited < MostAsked && c.patient > 0 && p.mu.members.Len() > 0 && p.mu.members.First().aboveLocked() > c.excess {
		from := p.mu.members.First()
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

// spendLocked has a member that is among those that are asked be asked no more, until the next
// claim.
func (p *Pool) spendLocked(m *Member) {
	if m.place > 0 {
		p.mu.members.Remove(m)
		p.mu.spent = append(p.mu.spent, m)
	}
}

// renewLocked has who is spent be asked again. It lets go of the lock after each mostGranted.
func (p *Pool) renewLocked() {
	for n := 1; len(p.mu.spent) > 0; n++ {
		last := len(p.mu.spent) - 1
		m := p.mu.spent[last]
		if p.mu.spent = p.mu.spent[:last]; !m.left {
			p.mu.members.Push(m)
		}
		if n%mostGranted == 0 {
			p.mu.Unlock()
			p.mu.Lock()
		}
	}
	p.mu.spent = nil
}
