package advice_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/shapegroups/advice"
)

func hits(t *testing.T, s []shapegroups.Shape, setup advice.Setup) int {
	t.Helper()
	r, err := advice.Simulate(s, setup)
	if err != nil {
		t.Fatal(err)
	}
	return r.Hits
}

// S5: what is reported is what the policy would have done.
func TestSimulate(t *testing.T) {
	var cycle []int
	for i := range 100 {
		cycle = append(cycle, i%5)
	}
	mixed := stream(1, 2, 3, 1, 4, 1, 2, 5, 1, 2)
	for _, c := range []struct {
		stream []shapegroups.Shape
		policy string
		groups int
		hits   int
	}{
		{stream(cycle...), "fifo", 5, 95},
		{stream(cycle...), "lru", 4, 0},
		{stream(cycle...), "lru", 8, 95},
		{stream(cycle...), "lru", math.MaxInt, 95},
		{stream(cycle...), "lru", 0, 0},
		{stream(cycle...), advice.Belady, 0, 0},
		{stream(1, 2, 1, 1, 2), advice.Belady, 1, 2}, // 2 is served and not kept
		{mixed, "fifo", 3, 3},
		{mixed, "lru", 3, 4},
		{nil, "duel", 3, 0},
	} {
		r, err := advice.Simulate(c.stream, advice.Setup{Policy: c.policy, Groups: c.groups})
		if err != nil || r.Hits != c.hits || r.Requests != len(c.stream) {
			t.Errorf("%s, %d groups: %+v (%v), want %d hits", c.policy, c.groups, r, err, c.hits)
		}
	}
	if r := must(advice.Simulate(mixed, advice.Setup{Policy: "lru", Groups: 3})); r.Distinct != 5 || r.Ratio() != 0.4 {
		t.Errorf("%+v, ratio %v", r, r.Ratio())
	}
}

// S2: what is announced is not dropped while any other can be.
func TestAnnounce(t *testing.T) {
	s := stream(1, 2, 3, 1, 4, 1, 5, 1)
	setup := advice.Setup{Policy: "fifo", Groups: 2}
	if n := hits(t, s, setup); n != 1 {
		t.Errorf("%d hits without announcement", n)
	}
	if setup.Announce = 2; hits(t, s, setup) != 3 {
		t.Errorf("%d hits, want 1 to hit whenever it comes back", hits(t, s, setup))
	}
	for announce, want := range map[int]int{0: 0, 1: 0, 2: 1} { // 3 must know of the 1 that is two rows on
		setup.Announce = announce
		if n := hits(t, stream(1, 2, 3, 4, 1), setup); n != want {
			t.Errorf("%d hits with %d announced, want %d", n, announce, want)
		}
	}
}

// S7: a one-off shape is served and not kept.
func TestWorth(t *testing.T) {
	var lengths []int
	for i := range 2000 {
		lengths = append(lengths, 1, 2, 1000+i)
	}
	setup := advice.Setup{Policy: "duel", Groups: 2}
	always := hits(t, stream(lengths...), setup)
	setup.Keep = "worth"
	if worth := hits(t, stream(lengths...), setup); worth < 3900 || always > 2100 {
		t.Errorf("%d hits with worth, %d without", worth, always)
	}
	setup.Policy = "lru"
	if n := hits(t, stream(lengths...), setup); n != 0 {
		t.Errorf("lru heeds keep: %d hits", n)
	}
}

// S8: resident groups go first, so equal shapes are served together.
func TestWaiting(t *testing.T) {
	s := stream(1, 2, 1, 2, 1, 2, 1, 2)
	setup := advice.Setup{Policy: "lru", Groups: 1}
	if n := hits(t, s, setup); n != 0 {
		t.Errorf("%d hits in order of arrival", n)
	}
	// Out of 3 at hand: 1 1 1, then 2 was overtaken twice: 2 2 2 2, then 1.
	for waiting, want := range map[int]int{2: 5, 7: 6} {
		if setup.Waiting = waiting; hits(t, s, setup) != want {
			t.Errorf("%d hits out of %d waiting, want %d", hits(t, s, setup), waiting, want)
		}
	}
}

// best is the largest number of hits that any choice gives, by trying all.
func best(stream []shapegroups.Shape, resident map[shapegroups.Shape]bool, groups int) int {
	if len(stream) == 0 {
		return 0
	}
	first, rest := stream[0], stream[1:]
	if resident[first] {
		return 1 + best(rest, resident, groups)
	}
	most := best(rest, resident, groups) // served and not kept
	with := func(without shapegroups.Shape) {
		next := map[shapegroups.Shape]bool{first: true}
		for s := range resident {
			if s != without {
				next[s] = true
			}
		}
		if len(next) <= groups {
			most = max(most, best(rest, next, groups))
		}
	}
	with(shapegroups.Shape{})
	for s := range resident {
		with(s)
	}
	return most
}

// Belady's rule is the optimum, found here by trying everything, and no policy
// of sessions is above it.
func TestBelady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := stream(rapid.SliceOfN(rapid.IntRange(0, 4), 0, 11).Draw(t, "lengths")...)
		groups := rapid.IntRange(1, 3).Draw(t, "groups")
		got := must(advice.Simulate(s, advice.Setup{Policy: advice.Belady, Groups: groups})).Hits
		if want := best(s, nil, groups); got != want {
			t.Fatalf("%d hits of %v in %d groups, want %d", got, s, groups, want)
		}
		for _, kind := range policy.Kinds() {
			if n := must(advice.Simulate(s, advice.Setup{Policy: string(kind), Groups: groups, Keep: "worth"})).Hits; n > got {
				t.Fatalf("%s has %d hits, the bound is %d", kind, n, got)
			}
		}
	})
}

func TestBadSetup(t *testing.T) {
	for _, s := range []advice.Setup{
		{Policy: "none", Groups: 1}, {Groups: -1}, {Policy: advice.Belady, Groups: -1}, {Groups: 1, Announce: -1},
		{Groups: 1, Waiting: -1}, {Groups: 1, Keep: "x"},
	} {
		if _, err := advice.Simulate(nil, s); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
