package policy

import (
	"cmp"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/shapegroups"
)

// full gives a policy with that many groups, of one cost class or of thirty, each asked
// for twice.
func full(t *testing.T, kind Kind, groups, classes int) *Policy {
	t.Helper()
	p, err := New(Config{Kind: kind, Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	for i := range groups {
		p.Request(numbered(t, i))
		p.Admit(numbered(t, i), 1, float64(uint64(1)<<(i%classes)))
	}
	for i := range groups {
		p.Request(numbered(t, i))
	}
	return p
}

func numbered(t *testing.T, i int) shapegroups.Shape {
	t.Helper()
	s, err := shapegroups.N(int64(i))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// dropped is how many groups are below the class of their cost.
func dropped(p *Policy) (n int) {
	for g := range p.Residents() {
		if g.class.exponent != g.cost {
			n++
		}
	}
	return n
}

// S3: a group that was found busy and goes is as free as others when it comes back.
func TestBusyGroupThatComesBack(t *testing.T) {
	p := full(t, Duel, 2, 1)
	first, second := p.Resident(numbered(t, 0)), p.Resident(numbered(t, 1))
	ask := func(g *Group) Standing {
		if g == first {
			return Busy
		}
		return Free
	}
	if g := p.Victim(ask, Busy); g != second {
		t.Fatalf("victim %v, want the one that is free", g.Shape())
	}
	p.Remove(first)
	first = p.Admit(numbered(t, 0), 1, 1)
	for range 10 {
		p.Use(second)
	}
	if g := p.Victim(nil, Busy); g != first {
		t.Errorf("victim %v, want the one that came back and was not used", g.Shape())
	}
}

// S1: a heap from whose middle groups are taken gives the lowest still.
func TestHeapWithoutSome(t *testing.T) {
	const groups = 200
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		h, left := heap{kind: byShadow}, make(map[*Group]bool)
		for i := range groups {
			g := &Group{last: uint64(i + 1), count: count{sum: float64(random.IntN(groups))}}
			h.push(g)
			left[g] = true
		}
		for g := range left {
			if random.IntN(2) == 0 {
				h.remove(g)
				delete(left, g)
			}
		}
		for len(left) > 0 {
			low := h.lowest()
			for g := range left {
				if g.rank().below(low.rank()) {
					t.Fatalf("the lowest of %d is %v, and there is %v", len(left), low.rank(), g.rank())
				}
			}
			h.remove(low)
			delete(left, low)
		}
	}
}

// S1: a tree has its groups by place, in whatever order they come and go, and knows the last.
func TestTree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		var at tree
		var in []*Group
		for number := range 300 {
			if i := random.IntN(len(in) + 1); number%3 == 2 && i < len(in) {
				at.remove(in[i])
				in = slices.Delete(in, i, i+1)
			} else {
				g := &Group{number: uint64(number + 1)}
				at.push(g, uint64(random.IntN(100)))
				in = append(in, g)
			}
			slices.SortFunc(in, func(a, b *Group) int {
				return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.branch.number, b.branch.number))
			})
			var all []*Group
			for g := at.after(place{}); g != nil; g = at.after(g.place) {
				all = append(all, g)
			}
			if !slices.Equal(all, in) || at.len != len(in) || at.last != slices.MaxFunc(append(in, nil), later) {
				t.Fatalf("%d groups, want %d, or they are in another order", len(all), len(in))
			}
			checkUp(t, at.root, nil)
		}
	}
}

// later puts nil before all.
func later(a, b *Group) int {
	switch {
	case a == b:
		return 0
	case a == nil || b != nil && a.place.below(b.place):
		return -1
	}
	return 1
}

// checkUp looks whether all groups of a tree know what is above them, which comes first by chance.
func checkUp(t *testing.T, g, up *Group) {
	t.Helper()
	if g == nil {
		return
	}
	if g.up != up || up != nil && g.mixed > up.mixed {
		t.Fatalf("group %d is below another than it knows", g.branch.number)
	}
	checkUp(t, g.less, g)
	checkUp(t, g.more, g)
}

// S1: a use counts as much as eras have passed since.
func TestCountsOfEarlierEras(t *testing.T) {
	old, young := count{sum: 0x1p520, era: 1}, count{sum: 1, era: 3}
	if !old.below(young) || young.below(old) || !(count{sum: 1, era: 2}).below(count{sum: 0x1p520, era: 1}) {
		t.Error("a count of two eras ago outweighs one of today, or one of the era before does not")
	}
}

// S6: after the capacity was lowered by far nearly all groups are late; each request has a
// few of them drop a class, and in the end all have.
func TestClassesDropInSteps(t *testing.T) {
	const many = 10_000
	for _, kind := range []Kind{LRU, Sieve, Duel} {
		p := full(t, kind, many, 30)
		if err := p.SetGroups(many / 64 / 2); err != nil { // a period is half of many
			t.Fatal(err)
		}
		p.Request(numbered(t, many-1))
		if n := dropped(p); n == 0 || n > few {
			t.Errorf("%s: one request has %d groups drop a class, want up to %d", kind, n, few)
		}
		for range many/few + few {
			p.Request(numbered(t, many-1))
		}
		for g := range p.Residents() {
			if late := p.requests-g.since >= halfLife*uint64(p.size); late {
				t.Fatalf("%s: %s has not dropped in %d requests", kind, g.Shape(), many/few)
			}
		}
	}
}

// S1: what no longer fits is forgotten in steps by a change of the capacity, and by a group
// that goes: without a capacity in groups it is as many as there are.
func TestForgetsInSteps(t *testing.T) {
	const many, resident = 10_000, 100
	for _, to := range []int{1, Unlimited} {
		p := full(t, Duel, many, 1)
		for range many - resident {
			p.Remove(p.Victim(nil, Free))
		}
		for i := range 3 * many { // one use each: most are only counted now
			p.Request(numbered(t, many+i))
		}
		before := p.Forgotten()
		if err := p.SetGroups(to); err != nil {
			t.Fatal(err)
		}
		if n := p.Forgotten() - before; n < 2*atOnce || n > 3*atOnce {
			t.Errorf("%d keys are forgotten by SetGroups, want up to %d of each list", n, atOnce)
		}
		for range resident {
			before = p.Forgotten()
			p.Remove(p.Victim(nil, Free))
			if n := p.Forgotten() - before; n > 3*few {
				t.Fatalf("%d keys are forgotten for a group that goes, want up to %d of each list", n, few)
			}
		}
		for i := range 4 * many {
			p.Request(numbered(t, i))
		}
		if p.duel.large() || p.forgetful() {
			t.Errorf("%d shapes are known after many requests, want %d", p.Remembered(), remembered*p.size)
		}
	}
}

// S3: Sift ends at once where there is no time left, whatever was used again, and goes on
// from there: in the end a victim is found in one step.
func TestSiftEndsInTime(t *testing.T) {
	const many, turn = 10_000, 100
	for _, kind := range Kinds() {
		p, other := full(t, kind, many, 1), full(t, kind, many, 1)
		calls, steps := 0, 0
		standing := func(*Group) Standing { steps++; return Free }
		for range 2 * many / turn {
			steps = 0
			p.Sift(standing, func() bool { calls++; return steps < turn })
			if calls > turn+2 || steps > turn {
				t.Fatalf("%s: one call asked %d times for the time, and looked at %d groups, want %d", kind, calls, steps, turn)
			}
			calls = 0
		}
		steps = 0
		got, want := p.Victim(standing, Busy), other.Victim(nil, Busy)
		if steps > 1 || got.Shape() != want.Shape() {
			t.Errorf("%s: %s is found in %d steps, want %s in one", kind, got.Shape(), steps, want.Shape())
		}
	}
}

// F6: after a search among the groups that hold bytes one among all takes no longer, however
// many hold none and are behind the hand of sieve.
func TestVictimAfterOneOfBytes(t *testing.T) {
	for _, kind := range Kinds() {
		took := func(many int) (least time.Duration) {
			for try := range 3 {
				p := full(t, kind, 0, 1)
				for i := range many {
					p.Admit(numbered(t, i), int64(i%2), 0).visited = i < many-1
				}
				if g, _ := p.VictimOfBytes(func(*Group) Standing { return Free }, Busy, func() bool { return true }); g == nil {
					t.Fatal("no victim")
				}
				began := time.Now()
				if p.Victim(nil, Busy) == nil {
					t.Fatal("no victim")
				}
				if d := time.Since(began); try == 0 || d < least {
					least = d
				}
			}
			return least
		}
		// Some of it is that more does not fit the processor's caches.
		if few, many := took(100), took(100_000); many > 250*few {
			t.Errorf("%s: a victim of 100 groups takes %v, one of 100,000 %v", kind, few, many)
		}
	}
}

// F6: a queue is about as deep as the logarithm of its length, in whatever order groups came
// and went.
func TestQueuesAreFlat(t *testing.T) {
	for _, kind := range Kinds() {
		for _, many := range []int{100, 1000, 10_000, 100_000} {
			p := full(t, kind, 0, 1)
			for i := range many {
				p.Admit(numbered(t, i), 1, 0)
			}
			check := func(when string) {
				of := &p.classes[0].queue[free][0]
				if d, most := depth(of.root), 4*bits.Len(uint(of.len)); d > most {
					t.Fatalf("%s, %d groups, %s: %d deep, want at most %d", kind, of.len, when, d, most)
				}
			}
			check("as they came")
			for i := range many {
				if p.Request(numbered(t, i*7%many)); i%8 > 0 {
					p.Remove(p.Resident(numbered(t, i*7%many)))
				}
			}
			check("some used, and the others gone")
		}
	}
}

func depth(g *Group) int {
	if g == nil {
		return 0
	}
	return 1 + max(depth(g.less), depth(g.more))
}

// S2, F6: announced groups in use are looked at once, however many of them have to go.
func TestAnnouncedInUseAreLookedAtOnce(t *testing.T) {
	const many, gone = 1024, 500
	for _, kind := range Kinds() {
		for _, among := range []int{kinds, holding} {
			p := full(t, kind, many, 1)
			var ahead []shapegroups.Shape
			for i := range many {
				ahead = append(ahead, numbered(t, i))
			}
			p.Announce(ahead)
			looks := 0
			busy := func(*Group) Standing { looks++; return Busy }
			for range gone {
				g, _ := p.find(busy, Busy, among, func() bool { return true })
				p.Remove(g)
			}
			if most := many + 2*gone; looks > most {
				t.Errorf("%s: %d looks for %d victims, want at most %d", kind, looks, gone, most)
			}
		}
	}
}

// S3, F6: what was sifted is what goes, though a request in between has the other directory
// of a duel choose.
func TestSiftThenRequest(t *testing.T) {
	const many, used = 2000, 1000
	for _, counts := range []bool{false, true} {
		p := full(t, Duel, many, 1)
		for range 3 { // the first half: long ago and often
			for i := range used {
				p.Request(numbered(t, i))
			}
		}
		for i := used; i < many; i++ {
			p.Request(numbered(t, i))
		}
		looks := 0
		standing := func(g *Group) Standing {
			looks++
			if n := g.Shape().Elements(); n == used-1 || n == many-1 {
				return Free // the last one of either half
			}
			return Busy
		}
		p.arrange()
		p.duel.recencyMiss, p.duel.countsMiss = 0.5, 0.5
		if counts {
			p.duel.countsMiss += 1e-9
		} else {
			p.duel.recencyMiss += 1e-9
		}
		before := p.duel.countsChoose()
		p.Sift(standing, func() bool { return true })
		s := numbered(t, many)
		g := p.know(s) // a shape that only the one that chooses knows of
		if counts {
			p.duel.counts.push(g)
		} else {
			p.duel.recency.push(g)
		}
		p.Request(s)
		if p.duel.countsChoose() == before {
			t.Fatal("the request has changed nothing: the test proves nothing")
		}
		looks = 0
		if p.Victim(standing, Busy); looks > 1 {
			t.Errorf("the victim is found in %d looks after a request, want one", looks)
		}
	}
}

// S1, S3: a gift that takes several turns among groups in use takes the one that it would take
// in one.
func TestGiftInTurnsChoosesAsInOne(t *testing.T) {
	busy := func(*Group) Standing { return Busy }
	for _, kind := range Kinds() {
		p := full(t, kind, 3, 1)
		for turn := 1; ; turn++ {
			looks := 0
			g, over := p.VictimOfBytes(busy, Busy, func() bool { looks++; return looks <= turn })
			if !over {
				continue
			}
			if g.Shape() != numbered(t, 0) {
				t.Errorf("%s: %s goes, want the first", kind, g.Shape())
			}
			break
		}
	}
}
