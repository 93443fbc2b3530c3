package sessioncache_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/sessioncache"
)

// watched opens a session as a room of a memory limit that nothing reaches.
func watched(t *testing.T, c sessioncache.Config) (*box, *pressure.Room) {
	watch := pressure.New(pressure.Config{Limit: 1 << 40})
	s := open(t, hidden.With(c, watch))
	return s, watch.Rooms()[0]
}

// Under memory pressure whole groups go that nobody uses: above the floor first,
// and what is leased from elsewhere is told apart.
func TestShrink(t *testing.T) {
	c := tenant(nil, 30, 1000)
	c.Policy = "duel"
	s, room := watched(t, c)
	for n := 1; n <= 6; n++ {
		v := sessioncache.Value{Bytes: 10, Cost: time.Duration(1) << (4 * n), Leased: n == 1}
		if err := s.Set(bg, shape(t, n), "x", v, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	h, err := s.Group(bg, shape(t, 2)) // in use
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	offer := func(tier pressure.Tier) (bytes int64) {
		for _, it := range room.Offer(bg) {
			if it.Tier == tier {
				bytes += it.Bytes
			}
		}
		return bytes
	}
	want(t, "offered above the floor", offer(pressure.Spare), 30)
	want(t, "offered below it", offer(pressure.Floors), 20)
	want(t, "nothing of constants", room.Shrink(bg, 5, pressure.Last), pressure.Freed{})
	want(t, "the cheapest", room.Shrink(bg, 15, pressure.Spare), pressure.Freed{Bytes: 20, Leased: 10})
	want(t, "1 and 3 have gone, 2 is in use", s.has(1, 2, 3), 1)
	want(t, "the rest above the floor", room.Shrink(bg, 100, pressure.Spare), pressure.Freed{Bytes: 10})
	want(t, "the floor", room.Shrink(bg, 100, pressure.Floors), pressure.Freed{Bytes: 20})
	want(t, "what is in use", s.Bytes(), 10)
	if err := s.Close(bg); err != nil {
		t.Fatal(err)
	}
	want(t, "closed", room.Shrink(bg, 100, pressure.Floors), pressure.Freed{})
	want(t, "closed", len(room.Offer(bg)), 0)
}

// The groups of a floor are offered with it, even where it has no bytes.
func TestOfferKeepsGroupsOfTheFloor(t *testing.T) {
	c := tenant(nil, 0, 1000)
	c.Floor.Groups = 4
	s, room := watched(t, c)
	for n := 1; n <= 6; n++ {
		if err := s.sized(n, "x", "v", 10); err != nil {
			t.Fatal(err)
		}
	}
	tiers := make(map[pressure.Tier]int)
	for _, it := range room.Offer(bg) {
		tiers[it.Tier]++
	}
	want(t, "offered above the floor", tiers[pressure.Spare], 2)
	want(t, "offered below it", tiers[pressure.Floors], 4)
	want(t, "given above the floor", room.Shrink(bg, 1000, pressure.Spare), pressure.Freed{Bytes: 20})
}

// G4, G9: a byte is counted for the memory limit from its making to its free, as
// long as a lease or a handle keeps it, and once.
func TestMemoryCounts(t *testing.T) {
	watch := pressure.New(pressure.Config{Limit: 1 << 40})
	s := open(t, hidden.With(sessioncache.Config{Groups: sessioncache.LimitOf(2)}, watch))
	counted := func(what string, bytes int64) {
		t.Helper()
		eventually(t, func() bool { return watch.Stats().Bytes == bytes }, func() any { return watch.Stats().Bytes }, what, bytes)
	}
	set := func(n int, v sessioncache.Value) {
		t.Helper()
		if err := s.Set(bg, shape(t, n), "x", v, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	set(1, sessioncache.Value{Bytes: 10})
	set(2, sessioncache.Value{Bytes: 100, Leased: true})
	counted("own bytes", 10)
	l := s.lease(1, "x")
	set(1, sessioncache.Value{Bytes: 20})
	counted("overwritten and leased", 30)
	l.End()
	counted("overwritten", 20)
	h, err := s.Group(bg, shape(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	set(3, sessioncache.Value{Bytes: 5})
	counted("another group", 25)
	if err := s.SetGroups(bg, sessioncache.LimitOf(0)); err != nil {
		t.Fatal(err)
	}
	counted("evicted under a handle", 20)
	_, _, err = h.Get(bg, "y", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		return sessioncache.Value{Bytes: 7}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	counted("made for it alone", 27)
	h.Close()
	counted("closed", 0)
}

// F6, Q5: a Free that blocks stalls neither the memory limit, which waits for what a
// shrink frees, nor the Frees that come after it. Close waits for it.
func TestShrinkPastAStuckFree(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		s, room := watched(t, sessioncache.Config{})
		var freed atomic.Int32
		for n := 1; n <= 4; n++ {
			free := func() { freed.Add(1) }
			if n == 1 {
				free = func() { <-gate }
			}
			if err := s.Set(bg, shape(t, n), "x", sessioncache.Value{Bytes: 10, Cost: time.Duration(n), Free: free}, sessioncache.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		want(t, "all but the floor", room.Shrink(bg, 40, pressure.Spare), pressure.Freed{Bytes: 40})
		if took := time.Since(began); took > 200*time.Millisecond || freed.Load() != 3 {
			t.Errorf("answered after %v, with %d of 3 freed", took, freed.Load())
		}
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("closed before its last Free ended: %v", err)
		}
		close(gate)
		if err := s.Close(bg); err != nil {
			t.Error(err)
		}
	})
}
