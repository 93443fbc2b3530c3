package artefacts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

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
