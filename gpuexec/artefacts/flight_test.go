package artefacts_test

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

var background = context.Background()

// bubble runs a test of flights in fake time: synctest.Wait returns when every
// caller waits and every creator stands at its gate.
func bubble(t *testing.T, cfg artefacts.Config, f func(t *testing.T, c room)) {
	t.Helper()
	actorstest.Bubble(t, func(t *testing.T) {
		c := open(t, cfg)
		f(t, c)
		c.close()
	})
}

func gate() chan struct{} { return make(chan struct{}) }

// F1, C8: all join the one flight and get its value.
func TestJoin(t *testing.T) {
	bubble(t, entries(4), func(t *testing.T, c room) {
		g := gate()
		a := c.calls(background, 1, "k", maker{value: "v1", wait: g})
		b := c.calls(background, 20, "k", maker{value: "v2"})
		want(t, "answers", len(a)+len(b), 0)
		close(g)
		want(t, "first", <-a, "v1 by=miss")
		want(t, "others", all(b, 20)["v1 by=joined"], 20)
		want(t, "creations", c.count(c.mu.creations, "k"), 1)
		want(t, "joined", c.Stats().Events[artefacts.Joined], 20)
		want(t, "hits", c.Stats().Events[artefacts.Hit], 0)
	})
}

// F1: joined at capacity 0, too, where it counts as nothing.
func TestJoinAtCapacityZero(t *testing.T) {
	bubble(t, entries(0), func(t *testing.T, c room) {
		g := gate()
		a := c.calls(background, 1, "k", maker{value: "v1", wait: g})
		b := c.calls(background, 2, "k", maker{value: "v2"})
		want(t, "len", c.Len(), 0)
		close(g)
		want(t, "first", <-a, "v1 by=miss")
		want(t, "others", all(b, 2)["v1 by=joined"], 2)
		want(t, "get", c.get("k", maker{value: "v3"}), "v3 by=miss")
		c.eventuallyFreed("v1", 1)
	})
}

// F2, F3: everybody gets the failure, nothing stays.
func TestFailureReachesAll(t *testing.T) {
	for name, m := range map[string]maker{"failed E1": {fail: "E1"}, "panic boom": {panics: "boom"}, "goexit": {goexit: true}} {
		bubble(t, entries(4), func(t *testing.T, c room) {
			m.wait = gate()
			a := c.calls(background, 1, "k", m)
			b := c.calls(background, 7, "k", maker{})
			close(m.wait)
			want(t, "first", <-a, "error "+name)
			want(t, "others", all(b, 7)["error "+name], 7)
			want(t, "creations", c.count(c.mu.creations, "k"), 1)
			want(t, "len", c.Len(), 0)
			want(t, "again", c.get("k", maker{value: "v"}), "v by=miss")
			want(t, "again", c.get("k", maker{}), "v by=hit")
		})
	}
}

// F5
func TestNested(t *testing.T) {
	bubble(t, entries(64), func(t *testing.T, c room) {
		a := c.calls(background, 12, "whole", maker{nest: each("n", 0, 31)})
		got := all(a, 12)
		want(t, "answers", got["whole by=miss"]+got["whole by=joined"]+got["whole by=hit"], 12)
		want(t, "creations", c.count(c.mu.creations, append(each("n", 0, 31), "whole")...), 33)
		want(t, "len", c.Len(), 33)
	})
}

// F5: a circle of one and of three, also across the kernel layer.
func TestCycle(t *testing.T) {
	bubble(t, entries(8), func(t *testing.T, c room) {
		maps.Copy(c.mu.rules, map[string]maker{
			"k": {nest: []string{"k"}},
			"a": {nest: []string{"b"}}, "b": {nest: []string{"x"}}, "x": {nest: []string{"a"}},
		})
		want(t, "own key", c.get("k", c.mu.rules["k"]), "error cycle")
		want(t, "ring", c.get("a", c.mu.rules["a"]), "error cycle")
		want(t, "len", c.Len(), 0)
		want(t, "after", c.get("b", maker{}), "b by=miss")
	})
}

// F5, F9: whoever is told of a circle leaves no flight behind that only it had
// asked for.
func TestCycleLeavesNothing(t *testing.T) {
	rings := map[string]maker{
		"a": {nest: []string{"b"}}, "b": {nest: []string{"x"}}, "x": {nest: []string{"y"}}, "y": {nest: []string{"b"}},
	}
	var all sync.WaitGroup
	for range 16 { // so many that creators overtake those who asked for them
		c := open(t, entries(8))
		maps.Copy(c.mu.rules, rings)
		all.Go(func() {
			for range 100 {
				want(t, "ring", c.get("a", rings["a"]), "error cycle")
				eventually(t, "len", c.Len, 0)
			}
		})
	}
	all.Wait()
}

// F5, C6: what joins nothing cannot wait in a circle but must not recurse.
func TestForceWithinItself(t *testing.T) {
	bubble(t, entries(8), func(t *testing.T, c room) {
		var r artefacts.Request
		r = artefacts.Request{Key: "k", Create: func(ctx context.Context) (artefacts.Built, error) {
			_, _, err := c.Force(ctx, r)
			return artefacts.Built{}, err
		}}
		if _, _, err := c.Force(background, r); !errors.Is(err, fault.ErrCycle) {
			t.Errorf("force: %v", err)
		}
	})
}

// F5: two that ask for each other at the same time; both end.
func TestCrossedCreators(t *testing.T) {
	bubble(t, entries(8), func(t *testing.T, c room) {
		c.mu.rules["a"], c.mu.rules["b"] = maker{nest: []string{"b"}}, maker{nest: []string{"a"}}
		out := make(chan string, 2) // one answer each
		for _, k := range []string{"a", "b"} {
			go func() { out <- c.get(k, c.mu.rules[k]) }()
		}
		want(t, "answers", all(out, 2)["error cycle"], 2)
	})
}

// F5: a shared part is no circle. F3: a part that panics fails the whole that
// asked, and neither stays failed.
func TestParts(t *testing.T) {
	bubble(t, entries(8), func(t *testing.T, c room) {
		maps.Copy(c.mu.rules, map[string]maker{
			"a": {nest: []string{"p"}}, "b": {nest: []string{"p"}}, "bad": {panics: "boom"},
		})
		want(t, "top", c.get("top", maker{nest: []string{"a", "b"}}), "top by=miss")
		want(t, "creations", c.count(c.mu.creations, "p"), 1)
		want(t, "len", c.Len(), 4)
		want(t, "whole", c.get("whole", maker{nest: []string{"bad"}}), "error panic boom")
		want(t, "len", c.Len(), 4)
	})
}

// F6: nothing waits for a creator: a bubble would report the deadlock.
func TestNothingWaitsForACreator(t *testing.T) {
	bubble(t, entries(8), func(t *testing.T, c room) {
		c.get("old", maker{})
		g := gate()
		a := c.calls(background, 1, "k", maker{wait: g})
		want(t, "hit", c.get("old", maker{}), "old by=hit")
		want(t, "miss", c.get("new", maker{}), "new by=miss")
		want(t, "len", c.Len(), 3)
		want(t, "peek", c.peek("none"), "miss reason=absent")
		c.setEntries(16)
		want(t, "has", c.has("old", "k"), 1)
		want(t, "entries", c.Stats().Entries, 3)
		if err := c.Settle(background); err != nil {
			t.Error(err)
		}
		close(g)
		want(t, "k", <-a, "k by=miss")
	})
}

// F9
func TestFlightCounts(t *testing.T) {
	bubble(t, entries(4), func(t *testing.T, c room) {
		g := gate()
		a := c.calls(background, 1, "k", maker{wait: g})
		want(t, "len", c.Len(), 1)
		want(t, "has", c.has("k"), 0)
		if _, ok := c.Lookup("k"); ok {
			t.Error("a flight was looked up")
		}
		close(g)
		<-a
		want(t, "len", c.Len(), 1)
		want(t, "has", c.has("k"), 1)
	})
}

// F9: never above capacity, with N misses at the limit.
func TestCapacityHoldsAtEveryInstant(t *testing.T) {
	const capacity, bytes = 3, 40
	cfg := entries(capacity)
	cfg.Bytes = limit.Of(bytes)
	c := open(t, cfg)
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if n, b := c.Len(), c.Bytes(); n < 0 || n > capacity || b < 0 || b > bytes {
				t.Errorf("len = %d, bytes = %d", n, b)
				return
			}
		}
	}()
	out := make(chan string, 400) // one answer each
	for i := range 400 {
		go func() { out <- c.get("k"+strconv.Itoa(i), maker{bytes: int64(1 + i%20)}) }()
	}
	all(out, 400)
	close(stop)
	<-watched
	want(t, "len", c.Len() <= capacity, true)
}

// C7, F4: a peek joins within its context; it starts nothing.
func TestPeekJoins(t *testing.T) {
	bubble(t, entries(4), func(t *testing.T, c room) {
		g := gate()
		a := c.calls(background, 1, "k", maker{value: "v", wait: g})
		ctx, cancel := context.WithCancel(background)
		out, left := make(chan string, 1), make(chan error, 1)
		go func() { out <- c.peek("k") }()
		go func() { _, _, err := c.Peek(ctx, "k"); left <- err }()
		synctest.Wait()
		want(t, "peeks answered", len(out)+len(left), 0)
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("peek: %v", err)
		}
		close(g)
		want(t, "peek", <-out, "v")
		want(t, "get", <-a, "v by=miss")
		want(t, "events", c.events("k"), "miss")
	})
}

// C7, F2
func TestPeekOfAFailingFlight(t *testing.T) {
	bubble(t, entries(4), func(t *testing.T, c room) {
		g := gate()
		a := c.calls(background, 1, "k", maker{fail: "E", wait: g})
		out := make(chan string, 1)
		go func() { out <- c.peek("k") }()
		synctest.Wait()
		close(g)
		want(t, "get", <-a, "error failed E")
		want(t, "peek", <-out, "error failed E")
		want(t, "len", c.Len(), 0)
	})
}

// C8: what a call took is in its outcome and event.
func TestDuration(t *testing.T) {
	bubble(t, entries(4), func(t *testing.T, c room) {
		m := maker{wait: gate()}
		time.AfterFunc(3*time.Second, func() { close(m.wait) })
		_, o, err := c.Get(background, c.request(c.Cache, "k", m))
		want(t, "duration", o.Duration, 3*time.Second)
		want(t, "error", err, nil)
	})
}
