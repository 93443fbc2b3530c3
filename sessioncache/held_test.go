package sessioncache_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/sessioncache"
)

// hold is the group of a shape, open until the test ends at the latest.
func (b *box) hold(n int) *sessioncache.Group {
	b.t.Helper()
	g, err := b.Group(bg, shape(b.t, n))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(g.Close)
	return g
}

func (b *box) put(g *sessioncache.Group, name, text string) {
	b.t.Helper()
	if err := g.Set(bg, name, b.value(text), sessioncache.Options{}); err != nil {
		b.t.Fatal(err)
	}
}

// text is what a group answers for a name.
func text(g *sessioncache.Group, name string) string {
	r, ok := g.Lookup(name, 0)
	if !ok {
		return "absent"
	}
	return r.Value().(string)
}

// G12: a closed group answers ErrClosed or finds nothing, whatever is resident.
func TestClosedGroup(t *testing.T) {
	p := open(t, sessioncache.Config{})
	id := p.Intern("n")
	g := p.hold(1)
	p.put(g, "n", "v")
	if _, ok := g.LookupID(id); !ok || text(g, "n") != "v" {
		t.Fatal("an open group does not find its name")
	}
	g.Close()
	g.Close()
	hits := p.Stats().Hits
	_, ok := g.Lookup("n", 0)
	want(t, "lookup", ok, false)
	_, ok = g.LookupID(id)
	want(t, "lookup by id", ok, false)
	want(t, "hits counted", p.Stats().Hits, hits)
	create := func(context.Context) (sessioncache.Value, error) {
		t.Error("a creator ran for a closed group")
		return sessioncache.Value{}, nil
	}
	_, _, err := g.Get(bg, "n", sessioncache.Options{}, create)
	wantError(t, "get", err, fault.ErrClosed)
	wantError(t, "set", g.Set(bg, "m", p.value("w"), sessioncache.Options{}), fault.ErrClosed)
	p.freed("w", 1)
	_, err = g.Take(bg, "n", 0, nil)
	wantError(t, "take", err, fault.ErrClosed)
	want(t, "remove", g.Remove("n", 0), false)
	want(t, "resident", p.get(1, "n"), "v")
}

// G12: nor does the View of a closed group find anything, a copy of it included, while
// the value is there and when it has been freed.
func TestViewOfClosedGroup(t *testing.T) {
	p := open(t, fifo(1))
	id := p.Intern("n")
	g := p.hold(1)
	p.put(g, "n", "v")
	v := g.View
	p.run(2, "x", "x") // evicts the group, which goes on serving g
	_, ok := v.Lookup("n", 0)
	want(t, "while the group is open", ok, true)
	finds := func(when string) {
		_, ok := v.Lookup("n", 0)
		want(t, "by name "+when, ok, false)
		_, ok = g.View.LookupID(id)
		want(t, "by id "+when, ok, false)
	}
	other := p.hold(3)
	p.put(other, "n", "w")
	other.Close()
	_, ok = other.View.Lookup("n", 0)
	want(t, "while another may find it", ok, false)
	g.Close()
	p.freed("v", 1)
	finds("of a value that was freed")
}

// G13: a name remembers the content key of its value and is refused to who asks
// for another, whether it is there, being made or set.
func TestNameOfAnotherKey(t *testing.T) {
	p := open(t, sessioncache.Config{})
	g := p.hold(1)
	of := func(text string) sessioncache.Create {
		return func(context.Context) (sessioncache.Value, error) { return p.value(text), nil }
	}
	refused := func(what string, err error, keys ...string) {
		t.Helper()
		wantError(t, what, err, fault.ErrInvalid)
		for _, key := range keys {
			if err != nil && !strings.Contains(err.Error(), key) {
				t.Errorf("%s: %q does not name %s", what, err, key)
			}
		}
	}
	one, two := sessioncache.Options{Key: "key-one"}, sessioncache.Options{Key: "key-two"}
	r, _, err := g.Get(bg, "n", one, of("v"))
	if err != nil || r.Key() != "key-one" {
		t.Fatalf("made: key %q, %v", r.Key(), err)
	}
	_, _, err = g.Get(bg, "n", two, of("w"))
	refused("a hit", err, "key-one", "key-two")
	one.Lane, two.Lane = sessioncache.Worker(1), sessioncache.Worker(1)
	if _, _, err = g.Get(bg, "n", one, of("of a lane")); err != nil {
		t.Fatal(err)
	}
	_, _, err = g.Get(bg, "n", two, of("w"))
	refused("a hit on a lane", err, "key-one", "key-two")
	one.Lane, two.Lane = sessioncache.Lane(0), sessioncache.Lane(0)
	for _, o := range []sessioncache.Options{one, {}} {
		if r, event, err := g.Get(bg, "n", o, of("w")); err != nil || event != sessioncache.Hit || r.Value() != "v" {
			t.Errorf("asked with key %q: %v, %v", o.Key, event, err)
		}
	}

	gate, began := gates()
	made := p.start(bg, 1, "slow", one, func(context.Context) (sessioncache.Value, error) {
		close(began)
		<-gate
		return p.value("slow"), nil
	})
	<-began
	_, _, err = g.Get(bg, "slow", two, of("w"))
	refused("a flight", err, "key-one", "key-two")
	close(gate)
	if a := receive(t, made); a.err != nil || a.v != "slow" {
		t.Errorf("the flight of the first key: %+v", a)
	}

	v := p.value("keyed")
	v.Key = "key-one"
	_, _, err = g.Get(bg, "m", two, func(context.Context) (sessioncache.Value, error) { return v, nil })
	refused("a creator that made another", err, "key-one", "key-two")
	p.freed("keyed", 1)
	refused("a value set as another", g.Set(bg, "m", v, two), "key-one", "key-two")
	p.freed("keyed", 2)

	p.put(g, "n", "plain") // without a key it is whatever is asked for, as it was set by hand
	if r, _, err := g.Get(bg, "n", two, of("w")); err != nil || r.Value() != "plain" || r.Key() != "" {
		t.Errorf("a value without a key: %v, %v", r.Value(), err)
	}
}

// gates are two channels.
func gates() (gate, began chan struct{}) { return make(chan struct{}), make(chan struct{}) }

// G14: a name is removed alone; its value is freed when nobody uses it.
func TestRemove(t *testing.T) {
	p := open(t, sessioncache.Config{})
	g, other := p.hold(1), p.hold(1)
	p.put(g, "n", "v")
	p.put(g, "m", "w")
	want(t, "there", g.Remove("absent", 0), false)
	want(t, "lane", g.Remove("n", sessioncache.Worker(1)), false)
	want(t, "there", g.Remove("n", 0), true)
	want(t, "there again", g.Remove("n", 0), false)
	want(t, "n", text(g, "n"), "absent")
	want(t, "m", text(other, "m"), "w")
	want(t, "objects", p.Len(), 1)
	p.freed("v", 0) // the groups may have seen it
	g.Close()
	other.Close()
	p.freed("v", 1)

	// What is being made for the name is handed out, and not kept.
	gate, began := gates()
	made := p.start(bg, 1, "late", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		close(began)
		<-gate
		return p.value("late"), nil
	})
	<-began
	want(t, "there", p.hold(1).Remove("late", 0), false)
	close(gate)
	want(t, "made", receive(t, made).v, "late")
	want(t, "kept", p.get(1, "late"), "absent")
}

// G14, Q5: a value whose bytes are counted elsewhere is taken and set again as such.
func TestTakeOfALeasedValue(t *testing.T) {
	watch := pressure.New(pressure.Config{Limit: 1 << 40})
	p := open(t, hidden.With(sessioncache.Config{}, watch))
	g := p.hold(1)
	v := p.value("v")
	v.Bytes, v.Leased = 7, true
	for range 2 {
		if err := g.Set(bg, "n", v, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
		_ = p.stats() // the turn that has answered is over
		want(t, "bytes for the memory limit", watch.Stats().Bytes, 0)
		var err error
		if v, err = g.Take(bg, "n", 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	v.Free()
}

// G14: a value that is taken is the caller's: freed after its Free and after the
// last lease, and counted by nobody meanwhile.
func TestTake(t *testing.T) {
	watch := pressure.New(pressure.Config{Limit: 1 << 40})
	p := open(t, hidden.With(sessioncache.Config{}, watch))
	g := p.hold(1)
	v := p.value("v")
	v.Bytes, v.Cost, v.Key = 7, time.Second, "k"
	if err := g.Set(bg, "n", v, sessioncache.Options{Owner: "o"}); err != nil {
		t.Fatal(err)
	}
	leased := p.lease(1, "n")
	taken, err := g.Take(bg, "n", 0, nil)
	if err != nil || taken.Any != "v" || taken.Bytes != 7 || taken.Cost != time.Second || taken.Key != "k" {
		t.Fatalf("took %+v, %v", taken, err)
	}
	_, err = g.Take(bg, "n", 0, nil)
	wantError(t, "taken twice", err, fault.ErrNotFound)
	want(t, "n", text(g, "n"), "absent")
	want(t, "bytes", p.Bytes(), 0)
	want(t, "bytes for the memory limit", watch.Stats().Bytes, 0)
	leased.End()
	g.Close()
	_ = p.stats() // a turn: its group has let go of it
	p.freed("v", 0)

	h := p.hold(2) // it goes on to another shape
	if err := h.Set(bg, "n", taken, sessioncache.Options{}); err != nil {
		t.Fatal(err)
	}
	want(t, "n", text(h, "n"), "v")
	_ = p.stats() // the turn that has answered is over
	want(t, "bytes for the memory limit", watch.Stats().Bytes, 7)
	want(t, "there", h.Remove("n", 0), true)
	h.Close()
	p.freed("v", 1)
	_ = p.stats()
	want(t, "bytes for the memory limit", watch.Stats().Bytes, 0)

	again := p.hold(3)
	p.put(again, "n", "lent")
	taken, err = again.Take(bg, "n", 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.put(again, "n", "next") // the name is free
	taken.Free()
	taken.Free()
	p.freed("lent", 0) // the group may have seen it
	again.Close()
	p.freed("lent", 1)
	want(t, "next", p.get(3, "n"), "next")
}

// G14: a group that was evicted takes values for the handles that it serves, and
// gives them up.
func TestSetInAnEvictedGroup(t *testing.T) {
	p := open(t, fifo(1))
	g := p.hold(1)
	p.put(g, "n", "v")
	p.set(2, "n", "other")
	want(t, "has", p.has(1), 0)
	p.put(g, "m", "w")
	want(t, "m", text(g, "m"), "w")
	want(t, "elsewhere", p.get(1, "m"), "absent")
	want(t, "objects", p.Len(), 1)
	want(t, "there", g.Remove("n", 0), true)
	want(t, "n", text(g, "n"), "absent")
	g.Close()
	p.freed("v", 1)
	p.freed("w", 1)
}

// S3, G14: a value that fits beside nothing has its own group go, which serves its
// handle on; one above the capacity changes nothing.
func TestSetOfWhatDoesNotFit(t *testing.T) {
	p := open(t, sessioncache.Config{Bytes: sessioncache.LimitOf(10)})
	g := p.hold(1)
	set := func(name, text string, bytes int64) error {
		v := p.value(text)
		v.Bytes = bytes
		return g.Set(bg, name, v, sessioncache.Options{})
	}
	wantError(t, "too large", set("n", "huge", 11), fault.ErrTooLarge)
	p.freed("huge", 1)
	if err := set("n", "v", 6); err != nil {
		t.Fatal(err)
	}
	want(t, "bytes", p.Bytes(), 6)
	if err := set("m", "w", 6); err != nil {
		t.Fatal(err)
	}
	want(t, "bytes", p.Bytes(), 0)
	want(t, "groups", p.Groups(), 0)
	want(t, "n", text(g, "n"), "v")
	want(t, "m", text(g, "m"), "w")
	g.Close()
	p.freed("v", 1)
	p.freed("w", 1)
}

// A lease outlives the group through which its value was found.
func TestLeaseOutlivesGroup(t *testing.T) {
	p := open(t, fifo(1))
	g := p.hold(1)
	p.put(g, "n", "v")
	p.set(2, "n", "other") // evicts it
	r, ok := g.Lookup("n", 0)
	l, leased := r.Acquire()
	if !ok || !leased {
		t.Fatal("no lease through an open group")
	}
	g.Close()
	_ = p.stats()
	p.freed("v", 0)
	want(t, "value", l.Value(), any("v"))
	l.End()
	p.freed("v", 1)
	if _, ok := r.Acquire(); ok {
		t.Error("what was freed was leased")
	}
}

// outgrown is an open group that holds more than a capacity of ten bytes: it was evicted and
// does not come back.
func (b *box) outgrown(n int) *sessioncache.Group {
	b.t.Helper()
	g := b.hold(n)
	for _, name := range []string{"six bytes", "six more"} {
		if err := g.Set(bg, name, sessioncache.Value{Bytes: 6}, sessioncache.Options{}); err != nil {
			b.t.Fatal(err)
		}
	}
	return g
}

// G14: what a group would find in the one that took its place is removed there.
func TestRemoveFromTheNextGroup(t *testing.T) {
	p := open(t, sessioncache.Config{Bytes: sessioncache.LimitOf(10)})
	g := p.outgrown(1)
	p.set(1, "n", "v") // into the next of its shape
	want(t, "there", g.Remove("n", 0), true)
	want(t, "n", p.get(1, "n"), "absent")
	want(t, "there again", g.Remove("n", 0), false)
}
