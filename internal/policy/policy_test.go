package policy_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/shapegroups"
)

func shape(n int) shapegroups.Shape { return must(shapegroups.N(int64(n))) }

// run plays requests into a policy that evicts over its capacity, all groups
// equal, and gives the number of hits.
func run(p *policy.Policy, requests ...int) (hits int) {
	for _, n := range requests {
		if p.Request(shape(n)) != nil {
			hits++
			continue
		}
		if p.Len() >= p.Config().Groups {
			p.Remove(p.Victim(nil, policy.Busy))
		}
		p.Admit(shape(n), 1, 1)
	}
	return hits
}

// has lists which of the shapes up to 99 are resident.
func has(p *policy.Policy) (all []int) {
	for n := range 100 {
		if p.Resident(shape(n)) != nil {
			all = append(all, n)
		}
	}
	return all
}

func open(t *testing.T, kind policy.Kind, groups int) *policy.Policy {
	t.Helper()
	p, err := policy.New(policy.Config{Kind: kind, Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func want(t *testing.T, p *policy.Policy, groups ...int) {
	t.Helper()
	if got := has(p); !slices.Equal(got, groups) {
		t.Fatalf("resident %v, want %v", got, groups)
	}
}

// G3: a use does not refresh.
func TestFIFO(t *testing.T) {
	p := open(t, policy.FIFO, 3)
	run(p, 1, 2, 3, 1, 1, 1, 4)
	want(t, p, 2, 3, 4)
}

// S1
func TestLRU(t *testing.T) {
	p := open(t, policy.LRU, 3)
	run(p, 1, 2, 3, 1, 4)
	want(t, p, 1, 3, 4)
	run(p, 3, 5)
	want(t, p, 3, 4, 5)
}

// S1: what was used again is passed over once.
func TestSieve(t *testing.T) {
	p := open(t, policy.Sieve, 3)
	run(p, 1, 2, 3, 1, 4)
	want(t, p, 1, 3, 4)
	run(p, 5)
	want(t, p, 1, 4, 5)
	run(p, 6)
	want(t, p, 1, 5, 6)
}

// oneOffs is a stream of six shapes asked in turn between six new ones.
func oneOffs(rounds int) (requests []int) {
	for i := range rounds {
		requests = append(requests, 1, 2, 3, 4, 5, 6)
		for k := range 6 {
			requests = append(requests, 1000+i*6+k)
		}
	}
	return requests
}

// S1: use counts keep the often used against one-off shapes.
func TestDuelKeepsWhatIsUsedOften(t *testing.T) {
	if hits := run(open(t, policy.Duel, 8), oneOffs(60)...); hits < 180 {
		t.Fatalf("%d hits of at most 354", hits)
	}
	if hits := run(open(t, policy.LRU, 8), oneOffs(60)...); hits != 0 {
		t.Fatalf("%d hits by recency alone: the stream proves nothing", hits)
	}
}

// S1: recency takes over where the working set moves.
func TestDuelFollowsAMovingSet(t *testing.T) {
	var requests []int
	for i := range 2000 {
		requests = append(requests, i/200*100+i%6)
	}
	if hits := run(open(t, policy.Duel, 8), requests...); hits < 1700 {
		t.Fatalf("%d hits of at most 1940", hits)
	}
}

// Among groups that were registered and never asked for the first goes first,
// also by use counts.
func TestDuelNeverAskedFor(t *testing.T) {
	p := open(t, policy.Duel, 8)
	run(p, oneOffs(60)...)
	for p.Len() > 0 {
		p.Remove(p.Victim(nil, policy.Busy))
	}
	for n := 50; n < 60; n++ {
		p.Admit(shape(n), 1, 1)
	}
	for n := 50; n < 55; n++ {
		g := p.Victim(nil, policy.Busy)
		if g.Shape() != shape(n) {
			t.Fatalf("victim %s, want %d", g.Shape(), n)
		}
		p.Remove(g)
	}
}

// S2: announced groups go last, the one needed last first.
func TestAnnounced(t *testing.T) {
	for _, kind := range policy.Kinds() {
		p := open(t, kind, 3)
		run(p, 1, 2, 3)
		p.Announce([]shapegroups.Shape{shape(1), shape(2), shape(1)})
		run(p, 4, 5)
		want(t, p, 1, 2, 5)
		p.Announce([]shapegroups.Shape{shape(5), shape(2), shape(1), shape(5)})
		run(p, 6)
		want(t, p, 2, 5, 6)
		p.Announce(nil)
		run(p, 5, 5, 6, 6, 7)
		want(t, p, 5, 6, 7)
	}
}

// S7, S2: where all that could go is announced, what is needed sooner than the
// last of it is kept, what is needed later is not.
func TestWorthAmongAnnounced(t *testing.T) {
	p := must(policy.New(policy.Config{Groups: 3, Keep: policy.Worth}))
	run(p, 1, 2, 3)
	p.Announce([]shapegroups.Shape{shape(3), shape(1), shape(4), shape(2), shape(5)})
	for n, worth := range map[int]bool{4: true, 5: false, 6: false} {
		if got := p.Worth(shape(n), nil); got != worth {
			t.Errorf("%d: worth it %v, want %v", n, got, worth)
		}
	}
	p.Announce([]shapegroups.Shape{shape(3), shape(1), shape(5)})
	for _, n := range []int{4, 5} {
		if !p.Worth(shape(n), nil) {
			t.Errorf("%d: 2 is not announced and may go", n)
		}
	}
}

// S3: busy groups go after free ones, announced or not; fixed ones never.
func TestStanding(t *testing.T) {
	for _, kind := range policy.Kinds() {
		p := open(t, kind, 3)
		run(p, 1, 2, 3)
		p.Announce([]shapegroups.Shape{shape(3)})
		standing := map[shapegroups.Shape]policy.Standing{shape(1): policy.Busy, shape(2): policy.Fixed}
		ask := func(g *policy.Group) policy.Standing { return standing[g.Shape()] }
		for _, n := range []int{3, 1} {
			g := p.Victim(ask, policy.Busy)
			if g == nil || g.Shape() != shape(n) {
				t.Fatalf("%s: victim %v, want %d", kind, g, n)
			}
			p.Remove(g)
		}
		if g := p.Victim(ask, policy.Busy); g != nil {
			t.Fatalf("%s: a fixed group was chosen", kind)
		}
	}
}

// S6: the dear group stays; unasked for 64 x capacity requests it drops a class,
// and is back in its own when asked for.
func TestCost(t *testing.T) {
	for _, kind := range []policy.Kind{policy.LRU, policy.Sieve, policy.Duel} {
		p := open(t, kind, 2)
		admit := func(n int, bytes int64, seconds float64) {
			p.Request(shape(n))
			p.Admit(shape(n), bytes, seconds)
		}
		admit(1, 1000, 4)
		admit(2, 1000, 2)
		for range 64*2 - 2 { // and the one of admit: 127 requests for others
			p.Request(shape(2))
		}
		if g := p.Victim(nil, policy.Busy); g.Shape() != shape(2) {
			t.Fatalf("%s: the dear group went first", kind)
		}
		p.Request(shape(2)) // now both are of one class, and 1 is the one unused
		if g := p.Victim(nil, policy.Busy); g.Shape() != shape(1) {
			t.Fatalf("%s: the group not asked for did not drop a class", kind)
		}
		p.Request(shape(1))
		if g := p.Victim(nil, policy.Busy); g.Shape() != shape(2) {
			t.Fatalf("%s: the group asked for again is not back in its class", kind)
		}
	}
	p := open(t, policy.FIFO, 2)
	p.Admit(shape(1), 1, 100)
	p.Admit(shape(2), 1, 0)
	if g := p.Victim(nil, policy.Busy); g.Shape() != shape(1) {
		t.Fatal("fifo heeds cost")
	}
}

// S6: costs within one power of two are one class; odd figures do no harm.
func TestCostClasses(t *testing.T) {
	for _, c := range []struct {
		bytes   int64
		seconds float64
		dearer  bool // than 1 second for 1 byte
	}{
		{1, 1.99, false}, {1, 2, true}, {0, 2, true}, {-5, 2, true}, {4, 8, true},
		{1, math.NaN(), false}, {1, math.Inf(1), true}, {1, math.Inf(-1), false}, {1, -1, false},
		{1, math.SmallestNonzeroFloat64, false}, {math.MaxInt64, math.SmallestNonzeroFloat64, false},
	} {
		p := open(t, policy.LRU, 2)
		p.Admit(shape(1), c.bytes, c.seconds)
		p.Admit(shape(2), 1, 1)
		if dearer := p.Victim(nil, policy.Busy).Shape() == shape(2); dearer != c.dearer {
			t.Errorf("%v seconds for %d bytes: dearer %v", c.seconds, c.bytes, dearer)
		}
	}
}

// A handle outlives its group: using it is a request for the shape, and once the
// shape is back both handles are the same.
func TestStaleHandle(t *testing.T) {
	for _, kind := range policy.Kinds() {
		p := open(t, kind, 2)
		run(p, 1, 2)
		g := p.Resident(shape(1))
		p.Remove(g)
		p.Remove(g) // twice does nothing
		p.Use(g)
		p.Resize(g, 5, 5)
		if p.Len() != 1 || g.Resident() {
			t.Fatalf("%s: %d groups after a use of a stale handle", kind, p.Len())
		}
		p.Admit(shape(1), 1, 1)
		p.Use(g)
		want(t, p, 1, 2)
	}
}

// S1, G2: without a capacity in groups the periods follow the residents.
func TestUnlimited(t *testing.T) {
	p := open(t, policy.Duel, policy.Unlimited)
	for n := range 300 {
		p.Request(shape(n))
		p.Admit(shape(n), 1, 1)
	}
	if p.Len() != 300 {
		t.Fatalf("%d groups", p.Len())
	}
	for range 290 {
		p.Remove(p.Victim(nil, policy.Busy))
	}
	for n := range 5000 {
		p.Request(shape(1000 + n))
	}
	if p.Remembered() > 64*64 {
		t.Fatalf("%d shapes remembered, want at most 64 x 64", p.Remembered())
	}
	if p.Remembered() < 64*64 { // few residents do not make it forget more
		t.Fatalf("%d shapes remembered with %d resident, want 64 x 64", p.Remembered(), p.Len())
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []policy.Config{{Kind: "nonsense"}, {Keep: "some"}, {Groups: -1}} {
		if _, err := policy.New(c); !errors.Is(err, policy.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	p := must(policy.New(policy.Config{Groups: 2}))
	if c := p.Config(); c.Kind != policy.Duel || c.Keep != policy.Always {
		t.Errorf("defaults are %+v", c)
	}
	if err := p.SetGroups(-1); !errors.Is(err, policy.ErrInvalid) || p.Config().Groups != 2 {
		t.Errorf("%v, %d groups", err, p.Config().Groups)
	}
}

// The hit path allocates nothing.
func TestUseAllocatesNothing(t *testing.T) {
	for _, kind := range policy.Kinds() {
		p, groups := filled(t, policy.Config{Kind: kind, Groups: 64}, 64)
		i := 0
		if n := testing.AllocsPerRun(1000, func() { p.Use(groups[i%64]); i++ }); n != 0 {
			t.Errorf("%s: %v allocations a use", kind, n)
		}
	}
}

// S1: what a capacity that was lowered by far has no room for is forgotten in steps, so
// that no call is long; and not saved.
func TestLoweredInSteps(t *testing.T) {
	const many, most = 10_000, 2048
	p := must(policy.New(policy.Config{Kind: policy.Duel, Groups: many}))
	for i := range many {
		p.Request(shape(i))
	}
	if err := p.SetGroups(1); err != nil {
		t.Fatal(err)
	}
	if n := p.Remembered(); n < many-most {
		t.Fatalf("one call has forgotten %d shapes", many-n)
	}
	for i := range many {
		p.Request(shape(i % 2))
	}
	if n := p.Remembered(); n != 64 {
		t.Errorf("%d shapes are remembered in the end, want 64", n)
	}
	if err := p.SetGroups(many); err != nil {
		t.Fatal(err)
	}
	for i := range many {
		p.Request(shape(i))
	}
	if err := p.SetGroups(1); err != nil {
		t.Fatal(err)
	}
	if _, err := policy.Load(p.Save(), p.Config()); err != nil {
		t.Errorf("what was saved meanwhile: %v", err)
	}
}
