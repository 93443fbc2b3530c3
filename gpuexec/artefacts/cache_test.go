package artefacts_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/limit"
)

// C1
func TestCapacityDefaultsAndUnlimited(t *testing.T) {
	c := open(t, artefacts.Config{})
	e, b := c.Capacity()
	want(t, "entries", e, limit.Of(1024))
	want(t, "bytes", b, limit.Unlimited)
	want(t, "len", c.Len(), 0)
	c.setEntries(18)
	e, _ = c.Capacity()
	want(t, "entries", e, limit.Of(18))
	if err := c.SetCapacity(limit.Unlimited, limit.Limit{}); err != nil {
		t.Fatal(err)
	}
	c.fill(each("k", 0, 1499)...)
	want(t, "len", c.Len(), 1500)
}

// C1: 0 empties and disables; the next capacity begins empty.
func TestCapacityZero(t *testing.T) {
	for _, zero := range []struct{ entries, bytes limit.Limit }{{entries: limit.Of(0)}, {bytes: limit.Of(0)}} {
		c := open(t, entries(8))
		c.fill(each("k", 0, 7)...)
		if err := c.SetCapacity(zero.entries, zero.bytes); err != nil {
			t.Fatal(err)
		}
		want(t, "len", c.Len(), 0)
		for range 5 {
			want(t, "get", c.get("x", maker{}), "x by=miss")
		}
		want(t, "creations", c.count(c.mu.creations, "x"), 5)
		want(t, "peek", c.peek("x"), "miss reason=disabled")
		want(t, "len", c.Len(), 0)
		want(t, "bytes", c.Bytes(), 0)
		c.eventuallyFreed("x", 5)
		if err := c.SetCapacity(limit.Of(8), limit.Unlimited); err != nil {
			t.Fatal(err)
		}
		c.fill("x")
		want(t, "len", c.Len(), 1)
	}
}

// C1: negative is an error and changes nothing.
func TestCapacityNegative(t *testing.T) {
	if _, err := artefacts.Open(entries(-3)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("open: %v", err)
	}
	c := open(t, entries(4))
	c.fill(each("k", 0, 3)...)
	for _, l := range [][2]limit.Limit{{limit.Of(-1), {}}, {{}, limit.Of(-1)}, {limit.Of(2), limit.Of(-1)}} {
		if err := c.SetCapacity(l[0], l[1]); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("set %v: %v", l, err)
		}
	}
	e, b := c.Capacity()
	want(t, "entries", e, limit.Of(4))
	want(t, "bytes", b, limit.Unlimited)
	want(t, "len", c.Len(), 4)
}

// C2: exactly size minus capacity goes, least recently used first.
func TestLoweringEvictsExactlyTheSurplus(t *testing.T) {
	for size := 1; size <= 12; size++ {
		for to := 1; to <= 15; to++ {
			c := open(t, entries(15))
			c.fill(each("k", 1, size)...)
			c.setEntries(int64(to))
			left := min(size, to)
			want(t, "len", c.Len(), left)
			want(t, "the newest", c.has(each("k", size-left+1, size)...), left)
			c.close()
		}
	}
}

// C2
func TestRaisingKeepsEverything(t *testing.T) {
	c := open(t, entries(8))
	c.fill(each("k", 0, 7)...)
	c.setEntries(16)
	for i := 7; i >= 0; i-- {
		k := "k" + strconv.Itoa(i)
		want(t, "get", c.get(k, maker{}), k+" by=hit")
	}
	c.fill(each("k", 8, 15)...)
	want(t, "len", c.Len(), 16)
}

// C3: hits, peeks and lookups are uses; the order is exact.
func TestRecency(t *testing.T) {
	c := open(t, entries(6))
	c.fill(each("k", 0, 5)...)
	c.get("k4", maker{})
	c.peek("k1")
	if _, ok := c.Lookup("k3"); !ok {
		t.Fatal("k3 is gone")
	}
	c.Has("k0") // no use
	c.fill("a", "b", "x")
	want(t, "unused", c.has("k0", "k2", "k5"), 0)
	want(t, "used", c.has("k1", "k3", "k4", "a", "b", "x"), 6)
}

// C3: also over more uses than a segment of the log of uses holds.
func TestRecencyOverManyHits(t *testing.T) {
	c := open(t, entries(64))
	c.fill(each("k", 0, 63)...)
	for range 20 {
		for i := 63; i >= 0; i-- {
			c.get("k"+strconv.Itoa(i), maker{})
		}
	}
	c.setEntries(10)
	want(t, "last used", c.has(each("k", 0, 9)...), 10)
	want(t, "hits", c.Stats().Events[artefacts.Hit], 20*64)
}

// C1: the byte limit may be the binding one.
func TestByteCapacity(t *testing.T) {
	c := open(t, artefacts.Config{Entries: limit.Of(100), Bytes: limit.Of(10 << 10)})
	for _, k := range each("k", 0, 3) {
		c.get(k, maker{bytes: 3 << 10})
	}
	want(t, "len", c.Len(), 3)
	want(t, "bytes", c.Bytes(), 9216)
	want(t, "newest", c.has(each("k", 1, 3)...), 3)
	if err := c.SetCapacity(limit.Limit{}, limit.Of(6<<10)); err != nil {
		t.Fatal(err)
	}
	want(t, "len", c.Len(), 2)
	want(t, "newest", c.has("k2", "k3"), 2)
	want(t, "bytes", c.Bytes(), 6144)
	want(t, "leased outside", c.LeasedBytes(), 0)
}

// C1: larger than all there is.
func TestLargerThanCapacity(t *testing.T) {
	c := open(t, artefacts.Config{Entries: limit.Unlimited, Bytes: limit.Of(1000)})
	for _, k := range each("k", 1, 4) {
		c.get(k, maker{bytes: 250})
	}
	want(t, "get big", c.get("big", maker{value: "b", bytes: 1001}), "b by=miss")
	want(t, "others", c.has(each("k", 1, 4)...), 4)
	want(t, "len", c.Len(), 4)
	want(t, "bytes", c.Bytes(), 1000)
	c.eventuallyFreed("b", 1)
	want(t, "get all", c.get("big", maker{value: "b2", bytes: 1000}), "b2 by=miss")
	want(t, "has", c.has("big"), 1)
	want(t, "len", c.Len(), 1)
}

// C5, C12: evicted while leased.
func TestLeaseOutlivesEviction(t *testing.T) {
	c := open(t, entries(1))
	ctx := context.Background()
	l, _, err := c.Get(ctx, c.request(c.Cache, "a", maker{value: "v1", bytes: 7}))
	if err != nil {
		t.Fatal(err)
	}
	ref := l.Ref()
	want(t, "resident", ref.Resident(), true)
	c.get("b", maker{value: "v2"})
	want(t, "has", c.has("a"), 0)
	want(t, "resident", ref.Resident(), false)
	want(t, "value", l.Value().(string), "v1")
	want(t, "leased outside", c.LeasedBytes(), 7)
	again, ok := ref.Acquire()
	want(t, "acquire of a leased one", ok, true)
	again.End()
	want(t, "freed", c.count(c.mu.freed, "v1"), 0)
	l.End()
	l.End()
	c.eventuallyFreed("v1", 1)
	want(t, "leased outside", c.LeasedBytes(), 0)
	if _, ok := ref.Acquire(); ok {
		t.Error("a freed artefact was acquired")
	}
	c.close()
	c.eventuallyFreed("v1", 1)
	c.eventuallyFreed("v2", 1)
}

// C5: leases outlive the cache.
func TestLeaseOutlivesClose(t *testing.T) {
	c := open(t, entries(1))
	l, _, err := c.Get(context.Background(), c.request(c.Cache, "a", maker{kernel: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	c.close()
	want(t, "freed", c.count(c.mu.freed, "a", "kernel:x"), 0)
	l.End()
	c.eventuallyFreed("a", 1)
	c.eventuallyFreed("kernel:x", 1)
}

// C5: the last of several leases, whatever order they end in.
func TestLastOfSeveralLeases(t *testing.T) {
	c := open(t, entries(4))
	ls := make([]*artefacts.Lease, 3)
	for i := range ls {
		l, _, err := c.Get(context.Background(), c.request(c.Cache, "a", maker{value: "v1"}))
		if err != nil {
			t.Fatal(err)
		}
		ls[i] = l
	}
	c.setEntries(0)
	ls[1].End()
	ls[0].End()
	want(t, "value", ls[2].Value().(string), "v1")
	want(t, "freed", c.count(c.mu.freed, "v1"), 0)
	ls[2].End()
	c.eventuallyFreed("v1", 1)
}

// C6
func TestForce(t *testing.T) {
	c := open(t, entries(4))
	force := func(m maker) string { return said(c.Force(context.Background(), c.request(c.Cache, "k", m))) }
	c.get("k", maker{value: "v1"})
	want(t, "force", force(maker{value: "v2"}), "v2 by=miss")
	want(t, "get", c.get("k", maker{}), "v1 by=hit")
	want(t, "creations", c.count(c.mu.creations, "k"), 2)
	want(t, "failing force", force(maker{fail: "E"}), "error failed E")
	want(t, "panicking force", force(maker{panics: "P"}), "error panic P")
	want(t, "get", c.get("k", maker{}), "v1 by=hit")
	want(t, "len", c.Len(), 1)
	c.eventuallyFreed("v2", 1)
}

// C8, F2, F3
func TestEvents(t *testing.T) {
	c := open(t, entries(4))
	c.get("k", maker{})
	c.get("k", maker{})
	want(t, "get", c.get("f", maker{fail: "E"}), "error failed E")
	want(t, "get", c.get("p", maker{panics: "P"}), "error panic P")
	want(t, "get", c.get("g", maker{goexit: true}), "error goexit")
	want(t, "events", c.events("k"), "miss hit")
	want(t, "events", c.events("f"), "failed")
	s := c.Stats()
	want(t, "failed", s.Events[artefacts.Failed], 3)
	want(t, "miss", s.Events[artefacts.Miss], 1)
	want(t, "hit", s.Events[artefacts.Hit], 1)
	want(t, "len", c.Len(), 1)
	want(t, "after a failure", c.get("f", maker{}), "f by=miss")
	want(t, "bytes", c.get("n", maker{bytes: -1}), "error invalid")
	c.eventuallyFreed("n", 1)
	want(t, "len", c.Len(), 2)
}

// C8
func TestNestedHit(t *testing.T) {
	c := open(t, entries(8))
	c.get("part", maker{})
	want(t, "get", c.get("whole", maker{nest: []string{"part"}}), "whole by=miss")
	want(t, "events", c.events("part"), "miss nested_hit")
	other := flight.New[int](background, "another room", "name")
	want(t, "in another room's creator", c.getIn(other.Context(), "part", maker{}), "part by=hit")
	other.Finish(0, nil, nil)
	s := c.Stats()
	want(t, "nested", s.Events[artefacts.NestedHit], 1)
	want(t, "hit", s.Events[artefacts.Hit], 1)
}

// C10
func TestResetOwner(t *testing.T) {
	c := open(t, entries(8))
	drop := func(owner string) {
		t.Helper()
		if err := c.Reset(owner); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []string{"a1", "a2", "both", "three", "anon"} {
		c.get(k, maker{owner: "A"})
	}
	c.get("b1", maker{owner: "B"})
	c.get("none", maker{})
	want(t, "get", c.get("both", maker{owner: "B"}), "both by=hit")
	c.get("three", maker{owner: "B"})
	c.get("three", maker{owner: "C"})
	c.get("anon", maker{})
	drop("A")
	want(t, "A's own", c.has("a1", "a2"), 0)
	want(t, "others", c.has("b1", "both", "none", "three", "anon"), 5)
	drop("B")
	want(t, "B's own", c.has("b1", "both"), 0)
	want(t, "others", c.has("none", "three", "anon"), 3)
	drop("C")
	drop("nobody")
	want(t, "left", c.has("none", "anon"), 2)
	want(t, "len", c.Len(), 2)
	e, _ := c.Capacity()
	want(t, "cap", e, limit.Of(8))
	if err := c.Reset(""); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("drop of the empty name: %v", err)
	}
}

// K2: one placing hash for all keys.
func TestCollidingHash(t *testing.T) {
	c := open(t, artefacts.Config{Hash: func(string) uint64 { return 7 }})
	c.fill(each("k", 0, 5)...)
	for _, k := range each("k", 0, 5) {
		want(t, "get", c.get(k, maker{value: "w"}), k+" by=hit")
	}
	want(t, "peek", c.peek("k6"), "miss reason=absent")
	want(t, "absent", c.Stats().Reasons["absent"], 7)
}

// K6
func TestKeyRefused(t *testing.T) {
	c := open(t, entries(8))
	c.get("k", maker{value: "v0"})
	for _, v := range []string{"v1", "v2"} {
		r := c.request(c.Cache, "k", maker{value: v})
		r.Unhashable = "include"
		l, o, err := c.Get(context.Background(), r)
		want(t, "field", o.Field, "include")
		want(t, "reason", o.Reason, "key_refused")
		want(t, "get", said(l, o, err), v+" by=miss")
		c.eventuallyFreed(v, 1)
	}
	want(t, "len", c.Len(), 1)
	want(t, "refused", c.Stats().Reasons["key_refused"], 2)
	want(t, "get", c.get("", maker{}), "error invalid")
	if _, _, err := c.Get(context.Background(), artefacts.Request{Key: "k"}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no creator: %v", err)
	}
}

// C10: an owner whose floor has come to nothing, as that of a session that closed, is
// forgotten, whether it made what it used or hit upon it; a Reset then finds nothing.
func TestClosedTenantIsForgotten(t *testing.T) {
	c := open(t, entries(8))
	if err := c.AddFloor("a", 10); err != nil {
		t.Fatal(err)
	}
	c.get("made", maker{owner: "a"})
	c.get("hit", maker{owner: "b"})
	want(t, "get", c.get("hit", maker{owner: "a"}), "hit by=hit")
	if err := errors.Join(c.AddFloor("a", -10), c.Reset("a"), c.Reset("b")); err != nil {
		t.Fatal(err)
	}
	want(t, "made", c.has("made"), 1)
	want(t, "hit", c.has("hit"), 0) // b was the last that is known of
}

// C13: what capacity evicted is found by its key, and resident again, while it is
// leased; a clear ends that.
func TestEvictedWhileLeased(t *testing.T) {
	c := open(t, entries(1))
	lease := func(key, value string) (*artefacts.Lease, string) {
		l, o, err := c.Get(background, c.request(c.Cache, key, maker{value: value}))
		if err != nil {
			t.Fatal(err)
		}
		return l, fmt.Sprintf("%v by=%s", l.Value(), o.Event)
	}
	first, _ := lease("k", "v")
	other, _ := lease("other", "x")
	other.End()
	second, how := lease("k", "w")
	want(t, "found", how, "v by=hit")
	want(t, "entries", c.Len(), 1)
	want(t, "resident", c.Has("k"), true)
	want(t, "outside the capacity", c.LeasedBytes(), 0)
	first.End()
	second.End()
	if err := c.SetCapacity(limit.Of(1), limit.Unlimited); err != nil { // a turn behind the ends
		t.Fatal(err)
	}
	want(t, "still resident", c.Has("k"), true)
	want(t, "freed while resident", c.count(c.mu.freed, "v"), 0)
	third, _ := lease("k", "w")
	other, _ = lease("other", "y")
	other.End()
	for _, n := range []int64{0, 1} {
		if err := c.SetCapacity(limit.Of(n), limit.Unlimited); err != nil {
			t.Fatal(err)
		}
	}
	again, how := lease("k", "w")
	want(t, "after a clear", how, "w by=miss")
	third.End()
	again.End()
	c.close()
	c.eventuallyFreed("v", 1)
}

// C13: what was evicted and cannot fit any more is a hit all the same, outside the
// capacity, until its last lease ends.
func TestFoundThoughItDoesNotFit(t *testing.T) {
	c := open(t, artefacts.Config{Bytes: limit.Of(100)})
	get := func() *artefacts.Lease {
		l, o, err := c.Get(background, c.request(c.Cache, "k", maker{value: "v", bytes: 60}))
		if err != nil || l.Value() != "v" || c.count(c.mu.creations, "k") != 1 {
			t.Fatalf("%v %v, made %d times", o, err, c.count(c.mu.creations, "k"))
		}
		return l
	}
	first := get()
	if err := c.SetCapacity(limit.Limit{}, limit.Of(50)); err != nil {
		t.Fatal(err)
	}
	second := get()
	want(t, "resident", c.Has("k"), false)
	want(t, "outside the capacity", c.LeasedBytes(), 60)
	first.End()
	want(t, "freed under a lease", c.count(c.mu.freed, "v"), 0)
	second.End()
	c.eventuallyFreed("v", 1)
	c.close()
}

// C13, C1: what is found and cannot fit has nothing evicted for it.
func TestFoundThoughItDoesNotFitEvictsNothing(t *testing.T) {
	c := open(t, artefacts.Config{Entries: limit.Of(2), Bytes: limit.Of(100)})
	large := maker{value: "v", bytes: 60}
	l, _, err := c.Get(background, c.request(c.Cache, "k", large))
	if err != nil {
		t.Fatal(err)
	}
	defer l.End()
	if err := c.SetCapacity(limit.Limit{}, limit.Of(50)); err != nil {
		t.Fatal(err)
	}
	c.fill("a", "b")
	want(t, "k", c.get("k", large), "v by=hit")
	want(t, "the others", c.has("a", "b"), 2)
	want(t, "evictions", c.Stats().Evictions, 1)
}

// C13, Q1: what is found and finds the floors of others in its way has no place.
func TestFoundBehindAFloor(t *testing.T) {
	c := open(t, artefacts.Config{Bytes: limit.Of(100)})
	large := maker{value: "v", bytes: 60}
	l, _, err := c.Get(background, c.request(c.Cache, "k", large))
	if err != nil {
		t.Fatal(err)
	}
	defer l.End()
	if err := c.AddFloor("o", 60); err != nil {
		t.Fatal(err)
	}
	want(t, "the floor's", c.get("mine", maker{owner: "o", bytes: 60}), "mine by=miss")
	want(t, "k", c.get("k", large), "v by=hit")
	want(t, "entries", c.Len(), 1)
	want(t, "resident", c.has("mine", "k"), 1)
	want(t, "outside the capacity", c.LeasedBytes(), 60)
}

// C8: a peek is no hit, also where it finds what was evicted while it was leased.
func TestPeekOfEvictedIsNoHit(t *testing.T) {
	c := open(t, entries(1))
	l, _, err := c.Get(background, c.request(c.Cache, "k", maker{}))
	if err != nil {
		t.Fatal(err)
	}
	defer l.End()
	c.fill("other")
	want(t, "peek", c.peek("k"), "k")
	want(t, "hits", c.Stats().Events[artefacts.Hit], 0)
}

// C10, C13: who has found what was evicted uses it: it is not found any more when the
// last of its owners is released.
func TestReleaseOfEvicted(t *testing.T) {
	c := open(t, artefacts.Config{Bytes: limit.Of(100)})
	l, _, err := c.Get(background, c.request(c.Cache, "k", maker{bytes: 60, owner: "first"}))
	if err != nil {
		t.Fatal(err)
	}
	defer l.End()
	if err := c.SetCapacity(limit.Limit{}, limit.Of(50)); err != nil {
		t.Fatal(err)
	}
	for _, owner := range []string{"first", "second"} {
		want(t, "found before the release of "+owner, c.get("k", maker{owner: "second"}), "k by=hit")
		if err := c.Reset(owner); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "after both", c.get("k", maker{owner: "third"}), "k by=miss")
}
