package sessioncache_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/sessioncache"
)

// G12, C5: a value that comes for a group that was closed meanwhile, and that
// nothing keeps, is freed.
func TestClosedWhileMade(t *testing.T) {
	p := open(t, sessioncache.Config{Bytes: sessioncache.LimitOf(10)})
	g := p.hold(1)
	gate, began := gates()
	failed := make(chan error, 1)
	go func() {
		_, _, err := g.Get(bg, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
			close(began)
			<-gate
			v := p.value("v")
			v.Bytes = 11 // it cannot be kept
			return v, nil
		})
		failed <- err
	}()
	<-began
	g.Close()
	close(gate)
	wantError(t, "get", <-failed, fault.ErrClosed)
	p.freed("v", 1)
}

// C5, C8, G12: a group that was evicted keeps what it found in the one that took its
// place until it is closed, and that is a hit.
func TestValueOfTheNextGroup(t *testing.T) {
	p := open(t, sessioncache.Config{Bytes: sessioncache.LimitOf(10)})
	g := p.outgrown(1)
	p.set(1, "n", "v") // into the next of its shape
	hits := p.Stats().Hits
	r, event, err := g.Get(bg, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { panic("unreachable") })
	if err != nil || event != sessioncache.Hit || r.Value() != "v" {
		t.Fatalf("get: %v, %v, %v", r.Value(), event, err)
	}
	want(t, "hits counted", p.Stats().Hits, hits+1)
	if err := p.ResetAll(bg); err != nil { // waits for what is freed
		t.Fatal(err)
	}
	p.freed("v", 0)
	g.Close()
	p.freed("v", 1)
}

// G7, G9: ResetAll waits for what nobody uses to be freed, also for a Free that takes
// longer than others wait for it.
func TestResetAllWaitsForASlowFree(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		p := open(t, sessioncache.Config{})
		var freed atomic.Bool
		slow := sessioncache.Value{Free: func() {
			time.Sleep(time.Minute)
			freed.Store(true)
		}}
		if err := p.Set(bg, shape(t, 1), "n", slow, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
		p.set(2, "n", "v")
		if err := p.ResetAll(bg); err != nil {
			t.Fatal(err)
		}
		want(t, "freed when it returns", freed.Load(), true)
		if err := p.Close(bg); err != nil {
			t.Fatal(err)
		}
	})
}

// leavingContext ends when its Done is asked for: a call that looks at Err before has
// begun then, and waits.
type leavingContext struct {
	context.Context
	leave func()
}

func (c leavingContext) Done() <-chan struct{} { c.leave(); return c.Context.Done() }

// G14: a value that was taken for a caller who has left is freed.
func TestTakeOfOneWhoLeft(t *testing.T) {
	p := open(t, sessioncache.Config{})
	g := p.hold(1)
	p.put(g, "n", "v")
	end := sessioncache.Stall(p.Session)
	ctx, leave := context.WithCancel(bg)
	_, err := g.Take(leavingContext{ctx, leave}, "n", 0, nil)
	end()
	wantError(t, "take", err, context.Canceled)
	_ = p.stats() // that turn has ended
	want(t, "n", text(g, "n"), "absent")
	g.Close()
	p.freed("v", 1)
}

// S2, S5: the warning heeds the capacity that is in force.
func TestThrashAtAnotherCapacity(t *testing.T) {
	p := open(t, capacity("", 64))
	if err := p.SetGroups(bg, sessioncache.LimitOf(4)); err != nil {
		t.Fatal(err)
	}
	for i := range 600 {
		p.runs(i % 12)
	}
	want(t, "warnings", p.stats().Thrash, 1)
}

// S6, G14: what a group costs to make again falls with the name that is taken.
func TestCostOfWhatIsLeft(t *testing.T) {
	p := open(t, capacity("lru", 2))
	set := func(n int, name string, cost time.Duration) {
		t.Helper()
		v := p.value(name)
		v.Bytes, v.Cost = 1000, cost
		if err := p.Set(bg, shape(t, n), name, v, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	set(1, "dear", time.Minute)
	set(1, "n", time.Millisecond)
	g := p.hold(1)
	want(t, "there", g.Remove("dear", 0), true)
	g.Close()
	set(2, "n", time.Second)
	set(3, "n", time.Second)
	want(t, "has the dearer two", p.has(2, 3), 2)
}

// G14: the groups of a session are listed with what they hold, over any number of turns.
func TestList(t *testing.T) {
	p := open(t, sessioncache.Config{Groups: sessioncache.Unlimited})
	const groups = 5000
	for i := range groups {
		v := sessioncache.Value{Any: i, Bytes: int64(i), Cost: time.Duration(2 * i)}
		if err := p.Set(bg, shape(t, i+1), "n", v, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	p.set(1, "another", "v")
	all, err := p.List(bg)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "groups", len(all), groups)
	seen := make(map[string]bool)
	var bytes, objects int64
	for _, g := range all {
		seen[g.Shape.Key()] = true
		bytes += g.Bytes
		objects += g.Objects
		if int64(g.Cost) != 2*g.Bytes {
			t.Errorf("%v: %d bytes of cost %v", g.Shape, g.Bytes, g.Cost)
		}
	}
	want(t, "names of a group", len(all[0].Names()), int(all[0].Objects))
	want(t, "shapes", len(seen), groups)
	want(t, "bytes", bytes, p.Bytes())
	want(t, "names", objects, p.Len())
	if err := p.Close(bg); err != nil {
		t.Fatal(err)
	}
	if _, err := p.List(bg); err != nil {
		t.Errorf("list after close: %v, want none: there is nothing to look at", err)
	}
}

// G14: a group's names are listed with what they are credited to, made from and hold;
// one that was removed is not among them.
func TestNames(t *testing.T) {
	p := open(t, sessioncache.Config{})
	g := p.hold(1)
	set := func(name string, lane sessioncache.Lane, v sessioncache.Value) {
		t.Helper()
		if err := g.Set(bg, name, v, sessioncache.Options{Owner: "executor " + name, Lane: lane}); err != nil {
			t.Fatal(err)
		}
	}
	set("a", sessioncache.Worker(3), sessioncache.Value{Any: 1, Bytes: 5, Cost: time.Second, Key: "k"})
	set("b", 0, sessioncache.Value{Any: 2})
	set("gone", 0, sessioncache.Value{Any: 3})
	want(t, "removed", g.Remove("gone", 0), true)
	all, err := p.List(bg)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	names := all[0].Names()
	slices.SortFunc(names, func(a, b sessioncache.NameStats) int { return cmp.Compare(a.Name, b.Name) })
	if !slices.Equal(names, []sessioncache.NameStats{{"a", sessioncache.Worker(3), "executor a", "k", 5, time.Second}, {Name: "b", Owner: "executor b"}}) {
		t.Errorf("names: %+v", names)
	}
	if names := (sessioncache.GroupStats{}).Names(); names != nil {
		t.Errorf("no group has the names %v", names)
	}
}

// C8: hits are counted for the session and for each group of it, also of a group that
// has gone and serves its handle, and the session's never fall. Those by the full key
// are counted apart.
func TestHitsOfGroups(t *testing.T) {
	p := open(t, fifo(2))
	counted := func(session uint64, groups map[int]uint64) {
		t.Helper()
		want(t, "hits of the session", p.Stats().Hits, session)
		all, err := p.List(bg)
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]uint64)
		for _, g := range all {
			got[g.Shape.Key()] = g.Hits
		}
		for n, hits := range groups {
			want(t, "hits of a group", got[shape(t, n).Key()], hits)
		}
		want(t, "groups", len(got), len(groups))
	}
	p.set(1, "n", "v")
	p.set(2, "n", "v")
	id := p.Intern("n")
	one, other := p.hold(1), p.hold(1)
	text(one, "n")
	text(other, "n")
	other.Close()
	if _, event, err := one.Get(bg, "n", sessioncache.Options{}, nil); event != sessioncache.Hit || err != nil {
		t.Fatal(event, err)
	}
	one.LookupID(id)
	one.Lookup("absent", 0)
	counted(3, map[int]uint64{1: 3, 2: 0})
	p.set(3, "n", "v") // the first goes, and its handle still finds
	text(one, "n")
	counted(4, map[int]uint64{2: 0, 3: 0})
	one.Close()
	p.set(4, "n", "v") // the count of the group that has gone stays the session's
	g := p.hold(4)
	text(g, "n")
	g.Close()
	counted(5, map[int]uint64{3: 0, 4: 1})

	for range 3 {
		p.Lookup(shape(t, 4), "n", 0)
		p.Lookup(shape(t, 4), "absent", 0)
	}
	if _, err := p.Stream(bg); err != nil { // a turn
		t.Fatal(err)
	}
	want(t, "hits by key", p.Stats().KeyHits, 3)
	counted(5, map[int]uint64{3: 0, 4: 1})
}

// C8: hits by key that come faster than the actor can heed them are counted all the
// same, and nothing else of what comes so is.
func TestHitsByKeyThatAreDropped(t *testing.T) {
	p := open(t, capacity("lru", 4))
	p.set(1, "n", "v")
	one := shape(t, 1)
	const each = 1 << 16 // more than wait for the actor
	sessioncache.InTurn(p.Session, func() {
		for range each {
			p.Lookup(one, "n", 0)
			p.Lookup(one, "absent", 0)
			p.View(one)
		}
	})
	if _, err := p.Stream(bg); err != nil { // a turn
		t.Fatal(err)
	}
	want(t, "hits by key", p.Stats().KeyHits, each)
}

// S4: a run counts for padding, too, where readers outran the actor and its place in the
// order was dropped.
func TestPaddingOfRunsThatAreDropped(t *testing.T) {
	p := open(t, capacity("lru", 4))
	p.set(10, "n", "v")
	ten := shape(t, 10)
	const runs = 40_000 // more than wait for the actor
	open := make([]*sessioncache.Group, runs)
	sessioncache.InTurn(p.Session, func() {
		for i := range open {
			open[i], _ = p.Group(bg, ten)
		}
	})
	if _, err := p.Stream(bg); err != nil { // a turn
		t.Fatal(err)
	}
	for _, g := range open {
		g.Close()
	}
	want(t, "useful", p.Stats().Useful, 10*runs)
	want(t, "padded", p.Stats().Padded, 10*runs)
}

// G7: a Reset looks at the groups of its owner alone: what goes, by whatever way, is
// not looked for any more.
func TestOwnersThatAreGone(t *testing.T) {
	p := open(t, capacity("lru", 4))
	owned := func(want int) {
		t.Helper()
		if indexed, there := sessioncache.Owned(p.Session); indexed != want || there != want {
			t.Errorf("%d groups are looked at, owners have names in %d, want %d", indexed, there, want)
		}
	}
	for i := range 6 { // two of them are evicted
		for _, owner := range []string{"a", "b"} {
			if err := p.Set(bg, shape(t, i+1), owner, sessioncache.Value{Any: i}, sessioncache.Options{Owner: owner}); err != nil {
				t.Fatal(err)
			}
		}
	}
	owned(8)
	g, err := p.Group(bg, shape(t, 6))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Reset(bg, "a"); err != nil {
		t.Fatal(err)
	}
	owned(4)
	if err := p.SetGroups(bg, sessioncache.LimitOf(0)); err != nil { // the open group is served
		t.Fatal(err)
	}
	owned(1)
	g.Close()
	owned(0)
}

// F8: a creator that closes its own session, with any context, or with its own on another
// goroutine, gets ErrCycle at once, and the session ends; a ResetAll of it waits for no creator.
func TestCreatorClosesItsSession(t *testing.T) {
	other, stop := context.WithTimeout(bg, 10*time.Second)
	defer stop()
	for _, own := range []bool{true, false} {
		p := open(t, sessioncache.Config{})
		g := p.hold(1)
		_, _, err := g.Get(bg, "n", sessioncache.Options{}, func(ctx context.Context) (sessioncache.Value, error) {
			closes := func() error {
				if err := p.ResetAll(ctx); err != nil {
					t.Errorf("reset: %v", err)
				}
				return p.Close(ctx)
			}
			answer := make(chan error, 1)
			if own {
				go func() { answer <- closes() }()
			} else {
				ctx = other
				answer <- closes()
			}
			wantError(t, "close", <-answer, fault.ErrCycle)
			return p.value("v"), nil
		})
		if err != nil && !errors.Is(err, fault.ErrClosed) { // its value, or that
			t.Errorf("get: %v", err)
		}
		g.Close()
		if err := p.Close(bg); err != nil {
			t.Error(err)
		}
		p.freed("v", 1)
	}
}
