package sessioncache_test

import (
	"context"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/sessioncache"
)

// F10, G12: what a handle holds of a group that was evicted is found by a second handle of
// the shape, and not made again: the group is registered again, and stays when the first
// handle is closed. What was cleared is not found.
func TestEvictedGroupIsNotMadeAgain(t *testing.T) {
	made := 0
	get := func(b *box, g *sessioncache.Group) sessioncache.Event {
		t.Helper()
		_, event, err := g.Get(bg, "n", sessioncache.Options{Key: "k", Owner: "o"}, func(context.Context) (sessioncache.Value, error) {
			made++
			v := b.value("v")
			v.Bytes = 1
			return v, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return event
	}
	check := func(what string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for what, c := range map[string]struct {
		do   func(b *box)
		made int
	}{
		"evicted": {func(*box) {}, 1},
		"evicted twice": {func(b *box) {
			b.hold(1).Close()
			b.set(2, "n", "other")
		}, 1},
		"no groups": {func(b *box) {
			check("0", b.SetGroups(bg, sessioncache.LimitOf(0)))
			check("1", b.SetGroups(bg, sessioncache.LimitOf(1)))
		}, 2},
		"reset":       {func(b *box) { check("reset", b.ResetAll(bg)) }, 2},
		"its owner's": {func(b *box) { check("reset", b.Reset(bg, "o")) }, 2},
	} {
		made = 0
		b := open(t, fifo(1))
		first := b.hold(1)
		get(b, first)
		b.hold(2).Close() // has the group evicted
		b.set(2, "n", "other")
		c.do(b)
		second := b.hold(1)
		event := get(b, second)
		if (event == sessioncache.Hit) != (c.made == 1) || made != c.made || text(second, "n") != "v" || text(first, "n") == "absent" && c.made == 1 {
			t.Errorf("%s: %s, made %d times; the handles see %s and %s", what, event, made, text(first, "n"), text(second, "n"))
		}
		if c.made > 1 {
			continue
		}
		first.Close()
		second.Close()
		third := b.hold(1)
		if event := get(b, third); event != sessioncache.Hit || made != 1 || b.Stats().Misses != 1 {
			t.Errorf("%s: then %s, made %d times", what, event, made)
		}
		third.Remove("n", 0)
		if get(b, third); made != 2 {
			t.Errorf("%s: found after its removal", what)
		}
		third.Close()
		check("reset", b.ResetAll(bg))
		if b.mu.freed["v"] != 2 {
			t.Errorf("%s: %d of 2 were freed", what, b.mu.freed["v"])
		}
	}
}

// G1, G13, G14: handles of before and after an eviction see one group: what one of them has
// set or removed is so for all, and a value that was set fits every key.
func TestHandlesAroundAnEvictionSeeOneGroup(t *testing.T) {
	b := open(t, fifo(1))
	first := b.hold(1)
	b.put(first, "n", "old")
	b.set(2, "n", "other")
	second := b.hold(1)
	want(t, "of before", text(second, "n"), "old")
	for _, key := range []string{"k", "l"} {
		r, event, err := second.Get(bg, "n", sessioncache.Options{Key: key}, nil)
		if err != nil || event != sessioncache.Hit || r.Value() != "old" {
			t.Errorf("asked for with key %s: %s, %v", key, event, err)
		}
	}
	b.put(second, "n", "new")
	b.put(first, "n", "newest")
	want(t, "set by the first", text(second, "n"), "newest")
	taken, err := second.Take(bg, "n", 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Free()
	_, err = first.Take(bg, "n", 0, nil)
	wantError(t, "taken twice", err, fault.ErrNotFound)
	b.put(first, "n", "mine")
	second.Remove("n", 0)
	want(t, "removed by the second", text(first, "n"), "absent")
}

// G7: a reset of the owner reaches what it has set before an eviction.
func TestResetAfterAnEviction(t *testing.T) {
	b := open(t, fifo(1))
	first := b.hold(1)
	if err := first.Set(bg, "n", b.value("v"), sessioncache.Options{Owner: "o"}); err != nil {
		t.Fatal(err)
	}
	b.set(2, "n", "other")
	second := b.hold(1)
	want(t, "before", text(second, "n"), "v")
	if err := b.Reset(bg, "o"); err != nil {
		t.Fatal(err)
	}
	want(t, "after", text(second, "n"), "absent")
}

// C4, F1: what is made while its group is evicted is kept where the group has come back for
// who waits for it, too.
func TestEvictedWhileMade(t *testing.T) {
	b := open(t, fifo(1))
	gate := make(chan struct{})
	create, began, _ := b.gated("v", gate)
	a := b.start(bg, 1, "n", sessioncache.Options{}, create)
	<-began
	b.set(2, "n", "w")
	second := b.hold(1)
	c := b.start(bg, 1, "n", sessioncache.Options{}, create)
	b.waiting(1, 3)
	close(gate)
	want(t, "maker", receive(t, a), call{"v", sessioncache.Miss, nil})
	want(t, "waiter", receive(t, c), call{"v", sessioncache.Joined, nil})
	want(t, "there", text(second, "n"), "v")
	want(t, "counted", b.Len(), 1)
}

// G2: a group that was evicted and holds more than fits does not come back: the next one
// of its shape begins empty.
func TestOutgrownGroupDoesNotComeBack(t *testing.T) {
	b := open(t, sessioncache.Config{Bytes: sessioncache.LimitOf(10)})
	g := b.outgrown(1)
	h := b.hold(1)
	want(t, "there", text(h, "six bytes"), "absent")
	want(t, "bytes", b.Bytes(), 0)
	g.Remove("six bytes", 0)
	h.Close()
	third := b.hold(1)
	_, ok := third.Lookup("six more", 0)
	want(t, "what fits again", ok, true)
	want(t, "bytes", b.Bytes(), 6)
}
