package artefacts_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

// F10: each way to a second run of a key has its counter, and a first run has none.
func TestAgain(t *testing.T) {
	zero, size := limit.Of(0), limit.Of
	force := func(r room, key string) { said(r.Force(context.Background(), r.request(r.Cache, key, maker{}))) }
	set := func(r room, entries, bytes limit.Limit) {
		if err := r.SetCapacity(entries, bytes); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		what string
		do   func(r room)
		want artefacts.Again
	}{
		{"first runs, hits and a join of nothing", func(r room) { r.fill("a", "b"); r.get("b", maker{}); r.peek("z") }, artefacts.Again{}},
		{"entries", func(r room) { r.fill("a", "b", "c", "a") }, artefacts.Again{Evicted: 1}},
		{"bytes", func(r room) { r.get("a", maker{bytes: 60}); r.get("b", maker{bytes: 60}); r.get("a", maker{}) }, artefacts.Again{Evicted: 1}},
		{"a lower capacity", func(r room) { r.fill("a", "b"); r.setEntries(1); r.fill("a") }, artefacts.Again{Evicted: 1}},
		{"a floor", func(r room) {
			r.get("mine", maker{owner: "o", bytes: 50})
			r.get("a", maker{bytes: 50})
			r.get("b", maker{bytes: 50})
			r.get("a", maker{})
		}, artefacts.Again{Evicted: 1}},
		{"no capacity for a moment", func(r room) { r.fill("a"); set(r, zero, limit.Limit{}); set(r, size(2), limit.Limit{}); r.fill("a") }, artefacts.Again{Cleared: 1}},
		{"cleared, then evicted", func(r room) {
			r.fill("a")
			set(r, zero, limit.Limit{})
			set(r, size(2), limit.Limit{})
			r.fill("a", "b", "c", "a")
		}, artefacts.Again{Cleared: 1, Evicted: 1}},
		{"an owner", func(r room) {
			r.get("a", maker{owner: "o"})
			if err := r.Reset("o"); err != nil {
				t.Error(err)
			}
			r.fill("a")
		}, artefacts.Again{Cleared: 1}},
		{"failures", func(r room) { r.get("a", maker{fail: "x"}); r.get("a", maker{panics: "x"}); r.fill("a") }, artefacts.Again{Failed: 2}},
		{"force", func(r room) { force(r, "a"); force(r, "a"); r.fill("a"); force(r, "a"); r.get("a", maker{}) }, artefacts.Again{Forced: 3}},
		{"force of what is there", func(r room) { r.fill("a"); force(r, "a"); r.fill("b", "c", "a") }, artefacts.Again{Forced: 1, Evicted: 1}},
		{"too large", func(r room) { r.get("a", maker{bytes: 101}); r.get("a", maker{}) }, artefacts.Again{Refused: 1}},
		{"no capacity at all", func(r room) {
			set(r, limit.Limit{}, zero)
			r.fill("a", "a")
			set(r, limit.Limit{}, size(100))
			r.fill("a")
		}, artefacts.Again{Refused: 2}},
		{"a key that cannot be hashed", func(r room) {
			for range 2 {
				q := r.request(r.Cache, "a", maker{})
				q.Unhashable = "plugin"
				said(r.Get(context.Background(), q))
			}
		}, artefacts.Again{Refused: 1}},
		{"kernels", func(r room) {
			for _, k := range []string{"a", "b", "c", "d"} {
				r.get(k, maker{kernel: "k" + k})
			}
			r.get("e", maker{kernel: "ka"})
			r.get("f", maker{kernel: "e"}) // no artefact's key is a kernel's
			set(r, zero, limit.Limit{})
			set(r, size(2), limit.Limit{})
			r.get("g", maker{kernel: "e"})
		}, artefacts.Again{Evicted: 1, Cleared: 1}},
	} {
		t.Run(c.what, func(t *testing.T) {
			cfg := entries(2)
			cfg.Bytes = size(100)
			r := open(t, cfg)
			if c.what == "a floor" {
				set(r, size(9), limit.Limit{})
				if err := r.AddFloor("o", 50); err != nil {
					t.Fatal(err)
				}
			}
			c.do(r)
			want(t, "again", r.Stats().Again, c.want)
		})
	}
}

// F10: what comes from the store is no run, and it is evicted like the rest.
func TestAgainFromTheStore(t *testing.T) {
	s := newShelf(t)
	r := open(t, stored(s, 1))
	r.fill("a")
	r.settle()
	r.fill("b")
	want(t, "a", r.get("a", maker{}), "a by=persistent_hit")
	want(t, "loaded", r.Stats().Again, artefacts.Again{})
	r.fill("c")
	r.settle()
	s.mu.Lock()
	clear(s.mu.blobs)
	s.mu.Unlock()
	r.fill("a")
	want(t, "again", r.Stats().Again, artefacts.Again{Evicted: 1})
}

// F10: the last 16 x capacity keys are known, whatever ran before them, and
// memory for others is bounded (TestPastIsBounded).
func TestAgainReaches(t *testing.T) {
	const capacity = 4
	r := open(t, entries(capacity))
	for i := range 1000 {
		r.fill(fmt.Sprint("old", i))
	}
	keys := each("k", 1, 16*capacity)
	r.fill(keys...)
	r.fill(keys...)
	want(t, "again", r.Stats().Again, artefacts.Again{Evicted: 16 * capacity})
	r.fill(each("old", 0, 9)...)
	want(t, "evicted, of what is forgotten", r.Stats().Again.Evicted, 16*capacity)
}

// F10: a load is no run, whatever becomes of it: one that the driver refuses does not
// change how the run before it ended.
func TestAgainAfterARefusedBlob(t *testing.T) {
	r := open(t, entries(1))
	r.fill("a", "b")
	want(t, "a bad blob", said(r.FromBlob(context.Background(), r.request(r.Cache, "a", maker{}), []byte("bad"))), "error refused")
	r.fill("a")
	want(t, "again", r.Stats().Again, artefacts.Again{Evicted: 1})
}

// F10: a clear during a second run is the reason for a third one, not for the second.
func TestAgainClearedMeanwhile(t *testing.T) {
	r := open(t, entries(1))
	r.fill("a", "b")
	q := r.request(r.Cache, "a", maker{})
	create := q.Create
	q.Create = func(ctx context.Context) (artefacts.Built, error) {
		r.setEntries(0)
		r.setEntries(1)
		return create(ctx)
	}
	want(t, "the second run", said(r.Get(context.Background(), q)), "a by=miss")
	want(t, "again", r.Stats().Again, artefacts.Again{Evicted: 1})
	r.fill("a")
	want(t, "again, after the clear", r.Stats().Again, artefacts.Again{Evicted: 1, Cleared: 1})
}

// D3, C13: a part that was evicted while it was leased does not come back beside its
// whole, whoever asks, nor does a whole beside its part.
func TestEvictedPart(t *testing.T) {
	for _, c := range []struct{ first, second, holds string }{
		{"part", "whole", "whole"}, // the whole lands while the part is leased
		{"whole", "part", "whole"}, // it comes back itself
	} {
		r := open(t, entries(2))
		get := func(key string) *artefacts.Lease {
			q := r.request(r.Cache, key, maker{})
			if key == "whole" {
				q.Part = "part"
			} else {
				q.Whole = "whole"
			}
			l, _, err := r.Get(context.Background(), q)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		defer get(c.first).End()
		r.fill("a", "b") // it goes, and is leased still
		for range 2 {
			for _, key := range []string{c.second, c.first} {
				defer get(key).End()
				r.peek("part") // which says nothing of a whole
				if r.has("part", "whole") == 2 {
					t.Errorf("%s, then %s: the part and its whole are two entries", c.first, c.second)
				}
			}
		}
		want(t, c.first+" first: there", r.has(c.holds), 1)
	}
}
