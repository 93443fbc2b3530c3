package sessioncache_test

import (
	"context"
	"testing"

	"github.com/kiln-cache/kiln/sessioncache"
)

// making begins to make a name of a group with a key, and waits until that runs.
func making(b *box, g *sessioncache.Group, name, key string, gate chan struct{}) (made chan call) {
	b.t.Helper()
	made, began := make(chan call, 1), make(chan struct{})
	go func() {
		_, event, err := g.Get(bg, name, sessioncache.Options{Key: key}, func(context.Context) (sessioncache.Value, error) {
			close(began)
			<-gate
			return b.value(key), nil
		})
		made <- call{key, event, err}
	}()
	<-began
	return made
}

// S7, G13: requests of a session that keeps nothing have groups of their own: one is not
// refused for the key that another's name is being made for, nor does it remove that.
func TestGroupsOfNoCapacityAreApart(t *testing.T) {
	b := open(t, sessioncache.Config{Groups: sessioncache.LimitOf(0)})
	first, second := b.hold(1), b.hold(1)
	gate := make(chan struct{})
	one := making(b, first, "n", "k", gate)
	two := making(b, second, "n", "l", gate)
	want(t, "there", second.Remove("m", 0), false)
	three := making(b, first, "m", "m", gate)
	want(t, "there", second.Remove("m", 0), false)
	close(gate)
	for _, made := range []chan call{one, two, three} {
		if got := receive(t, made); got.err != nil {
			t.Error(got.err)
		}
	}
	want(t, "n of the first", text(first, "n"), "k")
	want(t, "n of the second", text(second, "n"), "l")
	want(t, "m of the first", text(first, "m"), "m")
	want(t, "m of the second", text(second, "m"), "absent")
}

// F1, G1: who waited for what another group of the shape makes has the name, too, and its
// value until both are closed.
func TestJoinedFromAnotherGroup(t *testing.T) {
	b := open(t, sessioncache.Config{Groups: sessioncache.LimitOf(0)})
	first, second := b.hold(1), b.hold(1)
	gate := make(chan struct{})
	made := making(b, first, "n", "k", gate)
	joined := make(chan call, 1)
	go func() {
		_, event, err := second.Get(bg, "n", sessioncache.Options{Key: "k"}, func(context.Context) (sessioncache.Value, error) {
			t.Error("made again")
			return sessioncache.Value{}, nil
		})
		joined <- call{"", event, err}
	}()
	b.waiting(1, 0) // until it has asked
	close(gate)
	want(t, "joined", receive(t, joined), call{"", sessioncache.Joined, nil})
	if got := receive(t, made); got.err != nil {
		t.Error(got.err)
	}
	want(t, "the second has", text(second, "n"), "k")
	first.Close()
	_ = b.stats()
	b.freed("k", 0)
	second.Close()
	b.freed("k", 1)
}
