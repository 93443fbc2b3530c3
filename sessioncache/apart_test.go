package sessioncache_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
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

// apart are the ways to two groups of one shape that both serve: what happens between
// the requests for them.
var apart = map[string]struct {
	config  sessioncache.Config
	between func(b *box) error
}{
	"no groups":          {fifo(0), func(*box) error { return nil }},
	"no groups any more": {fifo(1), func(b *box) error { return b.SetGroups(bg, sessioncache.LimitOf(0)) }},
	"none, and one":      {fifo(0), func(b *box) error { return b.SetGroups(bg, sessioncache.LimitOf(1)) }},
	"reset":              {fifo(1), func(b *box) error { return b.ResetAll(bg) }},
	"outgrown":           {fifo(1), func(b *box) error { return b.SetBytes(bg, sessioncache.LimitOf(20)) }},
	"not worth it":       {sessioncache.Config{Groups: sessioncache.LimitOf(2), Policy: "duel", Keep: "worth"}, func(*box) error { return nil }},
}

// twoGroups gives two groups of one shape that are apart in a way of these. Their bytes
// are told to the memory limit.
func twoGroups(t *testing.T, how string) (b *box, groups [2]*sessioncache.Group, watch *pressure.Watch) {
	t.Helper()
	watch = pressure.New(pressure.Config{Limit: 1 << 40})
	b = open(t, hidden.With(apart[how].config, watch))
	if how == "not worth it" {
		for range 50 {
			b.runs(2, 3)
		}
		for i := 100; i < 600; i++ {
			b.runs(2, i, 3)
		}
	}
	groups[0] = b.hold(1)
	if how == "outgrown" {
		if err := groups[0].Set(bg, "large", sessioncache.Value{Bytes: 30}, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := apart[how].between(b); err != nil {
		t.Fatal(err)
	}
	groups[1] = b.hold(1)
	return b, groups, watch
}

// G14: a value that groups of one shape have from one flight is taken once, whichever of
// them is asked first, and its taker has all of it.
func TestValueOfTwoGroupsIsTakenOnce(t *testing.T) {
	for how := range apart {
		for order := range 4 {
			t.Run(fmt.Sprint(how, "/", order), func(t *testing.T) {
				b, groups, watch := twoGroups(t, how)
				before := watch.Stats().Bytes
				begins, takes := order&1, order>>1
				gate := make(chan struct{})
				create, began, _ := b.gated("made", gate)
				get := func(g *sessioncache.Group) <-chan error {
					done := make(chan error, 1)
					go func() {
						_, _, err := g.Get(bg, "n", sessioncache.Options{}, func(ctx context.Context) (sessioncache.Value, error) {
							v, err := create(ctx)
							v.Bytes = 7
							return v, err
						})
						done <- err
					}()
					return done
				}
				made := get(groups[begins])
				<-began
				joined := get(groups[1-begins])
				b.waiting(2, 0) // until it has asked
				close(gate)
				for _, err := range []error{<-made, <-joined} {
					if err != nil {
						t.Fatal(err)
					}
				}
				var values []sessioncache.Value
				for i := range groups {
					v, err := groups[i^takes].Take(bg, "n", 0, nil)
					if err == nil {
						values = append(values, v)
						continue
					}
					wantError(t, "of the other group", err, fault.ErrNotFound)
				}
				if len(values) != 1 {
					t.Fatalf("taken %d times", len(values))
				}
				want(t, "the bytes are others'", values[0].Leased, false)
				_ = b.stats() // the turn that answered has ended
				want(t, "bytes for the memory limit", watch.Stats().Bytes-before, 0)
				for _, g := range groups {
					g.Close()
				}
				_ = b.stats()
				b.freed("made", 0)
				values[0].Free()
				b.freed("made", 1)
			})
		}
	}
}

// G12: a Group keeps a value that it has seen in the group that took the place of its own
// once, however often it asks.
func TestGetOfAnotherGroupsValueIsKeptOnce(t *testing.T) {
	for how := range apart {
		t.Run(how, func(t *testing.T) {
			b, groups, _ := twoGroups(t, how)
			b.put(groups[1], "n", "seen")
			for range 100 {
				if _, _, err := groups[0].Get(bg, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
					return b.value("own"), nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			if n := sessioncache.Adopted(groups[0]); n > 1 {
				t.Errorf("it keeps %d values", n)
			}
			groups[1].Close()
			if err := b.ResetAll(bg); err != nil {
				t.Fatal(err)
			}
			groups[0].Close()
			_ = b.stats()
			b.freed("seen", 1)
		})
	}
}
