package sessioncache_test

import (
	"context"
	"testing"

	"github.com/kiln-cache/kiln/sessioncache"
)

// C13, G12: what a handle holds of a group that was evicted is found by a second handle of
// the shape, and not made again: the new group has it from then on, also when the first
// handle is closed. What was cleared, or was made from another key, is not found.
func TestEvictedGroupIsNotMadeAgain(t *testing.T) {
	made := 0
	get := func(b *box, g *sessioncache.Group, key string) sessioncache.Event {
		t.Helper()
		_, event, err := g.Get(bg, "n", sessioncache.Options{Key: key, Owner: "o"}, func(context.Context) (sessioncache.Value, error) {
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
		key  string
		do   func(b *box)
		made int
	}{
		"evicted":     {"k", func(*box) {}, 1},
		"another key": {"l", func(*box) {}, 2},
		"no groups": {"k", func(b *box) {
			check("0", b.SetGroups(bg, sessioncache.LimitOf(0)))
			check("1", b.SetGroups(bg, sessioncache.LimitOf(1)))
		}, 2},
		"reset":       {"k", func(b *box) { check("reset", b.ResetAll(bg)) }, 2},
		"its owner's": {"k", func(b *box) { check("reset", b.Reset(bg, "o")) }, 2},
	} {
		made = 0
		b := open(t, fifo(1))
		first := b.hold(1)
		get(b, first, "k")
		b.hold(2).Close() // has the group evicted
		b.set(2, "n", "other")
		c.do(b)
		second := b.hold(1)
		event := get(b, second, c.key)
		if (event == sessioncache.Hit) != (c.made == 1) || made != c.made || text(second, "n") != "v" || text(first, "n") == "absent" && c.made == 1 {
			t.Errorf("%s: %s, made %d times; the handles see %s and %s", what, event, made, text(first, "n"), text(second, "n"))
		}
		if c.made > 1 {
			continue
		}
		first.Close()
		second.Close()
		third := b.hold(1)
		if event := get(b, third, "k"); event != sessioncache.Hit || made != 1 || b.Stats().Misses != 1 {
			t.Errorf("%s: then %s, made %d times", what, event, made)
		}
		third.Remove("n", 0)
		if get(b, third, "k"); made != 2 {
			t.Errorf("%s: found after its removal", what)
		}
		third.Close()
		check("reset", b.ResetAll(bg))
		if b.mu.freed["v"] != 2 {
			t.Errorf("%s: %d of 2 were freed", what, b.mu.freed["v"])
		}
	}
}

// G14, C13: a name that the new group has had is found in the evicted one by nobody else.
func TestRemovedNameIsNotFoundInAnEvictedGroup(t *testing.T) {
	b := open(t, fifo(1))
	first := b.hold(1)
	b.put(first, "n", "old")
	b.set(2, "n", "other")
	second := b.hold(1)
	b.put(second, "n", "new")
	second.Remove("n", 0)
	r, event, err := second.Get(bg, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { return b.value("made"), nil })
	if err != nil || event != sessioncache.Miss || r.Value() != "made" || text(first, "n") != "old" {
		t.Errorf("%v, %s, %v", r.Value(), event, err)
	}
}
