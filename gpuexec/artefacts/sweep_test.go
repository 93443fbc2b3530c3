package artefacts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/limit"
)

var background = context.Background()

// crowd opens a cache with n artefacts of one byte, of an owner that has a floor.
func crowd(t *testing.T, n int) *Cache {
	t.Helper()
	c, err := Open(Config{Entries: limit.Unlimited, Bytes: limit.Of(1 << 40)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(background) })
	if err := c.AddFloor("o", 10); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		one(t, c, "o", strconv.Itoa(i))
	}
	return c
}

func one(t *testing.T, c *Cache, owner, key string) {
	t.Helper()
	l, _, err := c.Get(background, Request{Key: key, Owner: owner, Create: func(context.Context) (Built, error) {
		return Built{Value: key, Bytes: 1}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.End()
}

// F6: however large a cache is, a turn touches a bounded number of artefacts, and what a
// call asks for holds when it returns.
func TestTurnsAreShort(t *testing.T) {
	const n = 3 * touched.Most
	half, none := limit.Of(n/2), limit.Of(0)
	for name, of := range map[string]struct {
		do   func(*Cache) error
		left int
	}{
		"Reset": {func(c *Cache) error { return c.Reset("o") }, 0},
		"the end of a floor": {func(c *Cache) error {
			return errors.Join(c.AddFloor("o", -10), c.Reset("nobody")) // behind it
		}, n},
		"half of the entries": {func(c *Cache) error { return c.SetCapacity(half, limit.Limit{}) }, n / 2},
		"half of the bytes":   {func(c *Cache) error { return c.SetCapacity(limit.Limit{}, half) }, n / 2},
		"no entries":          {func(c *Cache) error { return c.SetCapacity(none, limit.Limit{}) }, 0},
		"no bytes":            {func(c *Cache) error { return c.SetCapacity(limit.Limit{}, none) }, 0},
		"the memory limit": {func(c *Cache) error {
			if items := c.offerUnused(background); len(items) != n || items[0].Tier != pressure.Spare || items[n-1].Tier != pressure.Floors {
				return fmt.Errorf("%d items, from tier %d to %d", len(items), items[0].Tier, items[n-1].Tier)
			}
			if freed := c.shrinkUnused(background, n, pressure.Spare); freed.Bytes != n-10 {
				return fmt.Errorf("%d bytes freed above the floor", freed.Bytes)
			}
			if freed := c.shrinkUnused(background, 7, pressure.Floors); freed.Bytes != 7 {
				return fmt.Errorf("%d bytes freed below the floor", freed.Bytes)
			}
			return nil
		}, 3},
		"Close":                    {func(c *Cache) error { return c.Close(background) }, 0},
		"a floor's end, and Close": {func(c *Cache) error { _ = c.AddFloor("o", -10); return c.Close(background) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := crowd(t, n)
			if err := of.do(c); err != nil {
				t.Fatal(err)
			}
			if c.Len() != of.left || c.Bytes() != int64(of.left) {
				t.Errorf("%d entries and %d bytes are left, want %d", c.Len(), c.Bytes(), of.left)
			}
			if most := c.Stats().Touched; most > touched.Most {
				t.Errorf("a turn touched %d things, want at most %d", most, touched.Most)
			}
		})
	}
}

// act is a turn of its own.
type act func(*shell)

func (a act) handle(s *shell) { a(s) }

// twice is a sweep that takes two turns.
type twice struct{ begun bool }

func (w *twice) step(*shell) (over bool, err error) {
	over = w.begun
	w.begun = true
	return over, nil
}
func (*twice) end(error) {}

// idling is a sweep that finds nothing to do.
type idling struct{ told *int }

func (idling) step(*shell) (over bool, err error) { return true, nil }
func (w idling) end(error)                        { *w.told++ }

// F6: of very many sweeps that wait for one and find nothing to do, such as those of floors that are given
// back, a turn ends a part, that of a close too.
func TestManySweepsThatFindNothing(t *testing.T) {
	const many = 2*touched.Most + 7
	for name, then := range map[string]act{"go on": func(*shell) {}, "close": func(s *shell) { closing{}.handle(s) }} {
		c := openHere(t, 10)
		told, ended := 0, make(chan int)
		c.ref.Tell(act(func(s *shell) {
			s.sweep(new(twice))
			for range many {
				s.sweep(idling{&told})
			}
			then(s)
			s.ref.Tell(act(func(*shell) { ended <- told }))
		}))
		if n := <-ended; n > touched.Most {
			t.Errorf("%s: %d of %d sweeps end in a turn", name, n, many)
		}
		if err := c.Close(background); err != nil || told != many {
			t.Errorf("%s: %v, %d of %d have ended", name, err, told, many)
		}
		if n := c.Stats().Touched; n > touched.Most {
			t.Errorf("%s: a turn touched %d things", name, n)
		}
	}
}

// F8: who waits for a sweep is told of the close.
func TestCloseTellsWhoWaitsForASweep(t *testing.T) {
	c := openHere(t, 10)
	all := map[string]func() error{
		"Reset":       func() error { return c.Reset("o") },
		"SetCapacity": func() error { return c.SetCapacity(limit.Of(5), limit.Limit{}) },
	}
	told := make(chan string, len(all))
	paused(c, func() {
		c.ref.Tell(act(func(s *shell) { s.sweep(new(twice)) }))
		for name, call := range all {
			queues(t, c, func() {
				if err := call(); !errors.Is(err, fault.ErrClosed) {
					name += fmt.Sprint(": ", err)
				}
				told <- name
			})
		}
		c.ref.Tell(closing{})
	})
	for range all {
		if name := <-told; all[name] == nil {
			t.Error(name)
		}
	}
}

// F6: what evicts all does not look at each tenant that has nothing.
func TestNothingToClearBesideManyTenants(t *testing.T) {
	least := func(tenants int) time.Duration {
		f := newFloors(1<<30, 1<<40)
		for i := range tenants {
			f.state.addFloor(strconv.Itoa(i), 1)
		}
		f.state.resize(limit.Of(0), limit.Limit{})
		best := time.Hour
		for range 10 {
			began := time.Now()
			for range 100 {
				if !f.trim() {
					t.Fatal("something is left")
				}
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	if few, many := least(10), least(20_000); many > 50*few {
		t.Errorf("%v beside 20,000 tenants, %v beside 10", many, few)
	}
}

// Q5: what goes for the memory limit is told with that cause.
func TestEvictedForTheMemoryLimitIsTold(t *testing.T) {
	var told []string
	c, err := Open(Config{Bytes: limit.Of(9), Evicted: func(key string, why Cause) { told = append(told, key+" "+string(why)) }})
	if err != nil {
		t.Fatal(err)
	}
	one(t, c, "", "a")
	c.shrinkUnused(background, 1, pressure.Spare)
	one(t, c, "", "b")
	if err := c.Close(background); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a memory", "b cleared"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// C2: while the surplus goes, what is there is the bound: a newcomer has one artefact
// go for it, and no turn removes the rest at once.
func TestNewcomerWhileTheSurplusGoes(t *testing.T) {
	const n = 3 * touched.Most
	c := newFloors(n, n)
	for i := range n {
		c.ask("", strconv.Itoa(i), 1)
		c.touched.Turn()
	}
	c.state.resize(limit.Of(5), limit.Of(5))
	for !c.trim() {
		c.touched.Turn()
		there := c.size()
		c.ask("", "new at "+strconv.FormatInt(there, 10), 1)
		if c.size() != there || c.gauges.bytes.Load() != there {
			t.Fatalf("%d entries and %d bytes after a newcomer, want %d as before", c.size(), c.gauges.bytes.Load(), there)
		}
	}
	if c.size() != 5 || c.entries != limit.Of(5) || c.bytes != limit.Of(5) {
		t.Errorf("%d entries of %v, %v bytes, want 5", c.size(), c.entries, c.bytes)
	}
}

// C10: a Reset covers what an owner used before it, and leaves what it uses meanwhile.
func TestResetInTurns(t *testing.T) {
	const n = 3 * touched.Most
	c := newFloors(2*n, 2*n)
	for i := range n {
		c.ask("o", strconv.Itoa(i), 1)
	}
	uses := c.owned.take("o")
	for turns := 0; ; turns++ {
		c.touched.Turn()
		if c.state.release("o", uses) {
			break
		}
		c.ask("o", "later "+strconv.Itoa(turns), 1)
	}
	if c.size() == 0 || c.size() != int64(len(c.owned["o"])) {
		t.Errorf("%d entries, %d of the owner, want those that came later", c.size(), len(c.owned["o"]))
	}
	for i := range n {
		if c.has(strconv.Itoa(i)) {
			t.Fatalf("%d was there before, and is still", i)
		}
	}
}
