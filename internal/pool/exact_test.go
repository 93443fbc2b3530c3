package pool

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/limit"
)

// plain is a pool that hands out at once what there is, going through all that wait: floors
// first, then claims, each by age. It stands beside a real one.
type plain struct {
	*Pool
	t       *rapid.T
	all     []*plainMember // by age
	waiting []*plainClaim  // by age
	ending  []*plainClaim  // not accepted yet
	open    int            // claims without an end
}

type plainMember struct {
	*Member
	promised, floor, used, claimed int64 // floor: as far as it is set aside
	gifts                          []Gift
	ended                          []*Claim
	left                           bool
}

type plainClaim struct {
	*Claim
	need, granted int64
}

func (p *plain) free() int64 {
	free := p.capacity
	for _, m := range p.all {
		free -= max(m.floor, m.used)
	}
	for _, c := range slices.Concat(p.waiting, p.ending) {
		free -= c.granted
	}
	return free
}

func (p *plain) hand() {
	free := p.free()
	for _, m := range p.all {
		n := min(free, m.promised-m.floor)
		m.floor += n
		free -= n
	}
	for _, c := range p.waiting {
		n := min(free, c.need-c.granted)
		c.granted += n
		free -= n
	}
}

func (m *plainMember) growth(used, more int64) int64 {
	return max(used+more, m.floor) - max(used, m.floor)
}

func (p *plain) fits(m *plainMember, bytes int64) bool { return m.growth(m.used, bytes) <= p.free() }

func (p *plain) join(floor int64) {
	m, sum := &plainMember{promised: floor}, floor
	for _, o := range p.all {
		sum += o.promised
	}
	var err error
	m.Member, err = p.Join(floor, func(g Gift) { m.gifts = append(m.gifts, g) })
	if (err == nil) != (sum <= p.capacity) {
		p.t.Fatalf("floors of %d: %v", sum, err)
	}
	if err == nil {
		p.all = append(p.all, m)
		p.hand()
	}
}

func (p *plain) reserve(m *plainMember, bytes int64) {
	could := max(bytes, m.floor) <= p.free()+max(m.used, m.floor)
	if got := m.Could(bytes); got != could {
		p.t.Fatalf("could have %d: %v, want %v", bytes, got, could)
	}
	want, fits := p.fits(m, bytes), m.Fits(bytes)
	if got := m.Reserve(bytes); got != want || fits != want {
		p.t.Fatalf("reserve %d: %v, fits %v, want %v", bytes, got, fits, want)
	}
	if want {
		m.used += bytes
	}
}

func (p *plain) release(m *plainMember, bytes int64) {
	bytes = min(bytes, m.used)
	m.Release(bytes)
	m.used -= bytes
	p.hand()
}

func (p *plain) claim(m *plainMember, bytes int64) {
	c := &plainClaim{need: m.growth(m.used+m.claimed, bytes)}
	c.granted = min(c.need, p.free())
	due := m.due != nil && bytes <= m.promised-m.used-m.claimed
	if c.Claim = m.Claim(bytes, func(c *Claim) { m.ended = append(m.ended, c) }); c.Claim == nil {
		return
	}
	p.open++
	if m.claimed += bytes; !due {
		p.waiting = append(p.waiting, c)
	}
}

func (p *plain) answer(m *plainMember, bytes int64) {
	if len(m.gifts) > 0 {
		g := m.gifts[0]
		m.gifts = m.gifts[1:]
		p.release(m, bytes)
		g.Answered()
	}
}

func (p *plain) accept(m *plainMember) {
	if len(m.ended) == 0 {
		return
	}
	c := m.ended[0]
	m.ended = m.ended[1:]
	p.open--
	p.ending = slices.DeleteFunc(p.ending, func(e *plainClaim) bool { return e.Claim == c })
	m.claimed -= c.bytes
	want := p.fits(m, c.bytes)
	if got := c.Accept(); got != want {
		p.t.Fatalf("%d accepted: %v, want %v", c.bytes, got, want)
	}
	if want {
		m.used += c.bytes
	}
	p.hand()
}

func (p *plain) leave(m *plainMember) {
	if !m.left {
		m.Leave()
		m.left, m.promised, m.floor, m.used = true, 0, 0, 0
		p.hand()
	}
}

// compare looks at both, and at the form of the trees.
func (p *plain) compare() {
	p.waiting = slices.DeleteFunc(p.waiting, func(c *plainClaim) bool {
		if c.waits == nil {
			p.ending = append(p.ending, c)
		}
		return c.waits == nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	var used int64
	members := 0
	for i, m := range p.all {
		if m.settleLocked(); m.Member.floor != m.floor || m.Member.used != m.used || m.Member.claimed != m.claimed {
			p.t.Fatalf("member %d has %d of a floor of %d, uses %d and claims %d: want %d, %d and %d",
				i, m.Member.floor, m.promised, m.Member.used, m.Member.claimed, m.floor, m.used, m.claimed)
		}
		if used += m.used; !m.left {
			members++
		}
	}
	for i, c := range slices.Concat(p.waiting, p.ending) {
		if c.settleLocked(); c.Claim.granted != c.granted {
			p.t.Fatalf("claim %d has %d of %d, want %d", i, c.Claim.granted, c.need, c.granted)
		}
	}
	if drawn := p.capacity - p.free(); p.mu.used != used || p.mu.drawn != drawn || drawn > p.capacity {
		p.t.Fatalf("used %d and drawn %d of %d, want %d and %d", p.mu.used, p.mu.drawn, p.capacity, used, drawn)
	}
	for _, l := range []*line{&p.mu.owed, &p.mu.claims} {
		if l.root.depth(p.t); l.has > l.wanted() {
			p.t.Fatalf("%d are there, %d are wanted", l.has, l.wanted())
		}
	}
	if n := len(p.mu.givers.root.all(p.t)) + len(p.mu.spent.root.all(p.t)); n != members || p.mu.members != members {
		p.t.Fatalf("%d may be asked and %d are counted, want %d", n, p.mu.members, members)
	}
}

// end has all that was asked for given, every claim accepted, and all members leave.
func (p *plain) end() {
	for more := true; more; {
		more = false
		for _, m := range p.all {
			for len(m.gifts)+len(m.ended) > 0 {
				if more = true; len(m.gifts) > 0 {
					p.answer(m, m.gifts[0].Bytes)
				} else {
					p.accept(m)
				}
				p.compare()
			}
		}
	}
	if p.open != 0 {
		p.t.Fatalf("%d claims never ended", p.open)
	}
	for _, m := range p.all {
		p.release(m, m.used)
		p.leave(m)
	}
	if p.compare(); p.mu.drawn != 0 || p.mu.floors != 0 || p.mu.owed.root != nil || p.mu.claims.root != nil {
		p.t.Fatalf("left behind: %d drawn, floors of %d", p.mu.drawn, p.mu.floors)
	}
}

// Q1, Q2: whatever members do in any order, also those that have left, each has what the plain pool
// gives it: the oldest floor first, then the oldest claim; nobody waits while there is room, and
// every claim ends.
func TestPoolAgainstPlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		real, err := New(limit.Of(rapid.SampledFrom([]int64{0, 1, 20, 100}).Draw(t, "capacity")))
		if err != nil {
			t.Fatal(err)
		}
		p := &plain{Pool: real, t: t}
		p.join(0)
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			bytes := rapid.Int64Range(0, 60).Draw(t, "bytes")
			m := rapid.SampledFrom(p.all).Draw(t, "who")
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0:
				if len(p.all) < 12 {
					p.join(bytes)
				}
			case 1, 2:
				p.reserve(m, bytes)
			case 3:
				p.release(m, bytes)
			case 4:
				p.claim(m, bytes)
			case 5:
				p.answer(m, bytes)
			case 6:
				p.accept(m)
			default:
				if bytes < 20 {
					p.leave(m)
				}
			}
			p.compare()
		}
		p.end()
	})
}
