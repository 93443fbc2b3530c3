package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/shapegroups"
)

// filled is a small workload and everybody who holds it.
func filled(t *testing.T) (*workload, []contender) {
	t.Helper()
	w, err := newWorkload(4 * names)
	if err != nil {
		t.Fatal(err)
	}
	all, err := contenders(t.Context(), w, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closeAll(context.WithoutCancel(t.Context()), all); err != nil {
			t.Error(err)
		}
	})
	var caches []contender
	for _, c := range all {
		if c.store != nil {
			caches = append(caches, c)
		}
	}
	return w, caches
}

func TestEveryRequestFindsItsArtefact(t *testing.T) {
	w, all := filled(t)
	if len(all) != 11 {
		t.Errorf("%d caches", len(all))
	}
	for _, c := range all {
		if found := c.find(0, len(w.asked)); found != len(w.asked) {
			t.Errorf("%s: found %d of %d", c.name, found, len(w.asked))
		}
		for i, place := range w.asked {
			a, ok := c.value(i)
			if !ok || a != &w.artefacts[place] {
				t.Fatalf("%s: request %d of %v gives %v, %v", c.name, i, w.keys[i], a, ok)
			}
		}
	}
}

// Whatever part of the key is another, nothing is found: no contender answers
// from a part of it.
func TestAbsentKeysAreNotFound(t *testing.T) {
	w, all := filled(t)
	kiln := all[0].store.(*kilnStore)
	half := len(w.asked) / 2 // the requests from here on are made absent
	none := func(what string, but ...string) {
		t.Helper()
		for _, c := range all {
			if strings.Contains(strings.Join(but, "|"), c.name) {
				continue
			}
			if found := c.find(half, len(w.asked)); found != 0 {
				t.Errorf("%s: found %d with another %s", c.name, found, what)
			}
			if found := c.find(0, half); found != half {
				t.Errorf("%s: found %d of the %d that are there", c.name, found, half)
			}
			if a, ok := c.value(half); ok {
				t.Errorf("%s: gives %v with another %s", c.name, a, what)
			}
		}
	}
	absent, err := shapegroups.Of(dimsOf(1 << 30))
	if err != nil {
		t.Fatal(err)
	}
	for i := half; i < len(w.asked); i++ { // in place: the contenders hold these slices
		w.shapes[i], w.keys[i].shape, w.dims[i] = absent, absent.Key(), dimsOf(1<<30)
	}
	held, byID, byName := all[0].name, all[1].name, all[2].name // these hold groups, not shapes
	none("shape", held, byID, byName)
	for i := half; i < len(w.asked); i++ {
		group := w.asked[i] / names
		w.shapes[i], w.dims[i] = kiln.shapes[group], dimsOf(group)
		w.names[i] += "'"
		w.keys[i].shape, w.keys[i].name = w.shapes[i].Key(), w.names[i]
		kiln.ids[i] = kiln.session.Intern(w.names[i])
	}
	none("name", held)
	all = all[:3]
	clear(kiln.handles[half:])
	clear(kiln.refs[half:])
	for i := half; i < len(w.asked); i++ {
		w.names[i], kiln.ids[i] = w.names[0], kiln.ids[0]
	}
	none("handle")
	if err := kiln.session.ResetAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found := all[0].find(0, len(w.asked)); found != 0 {
		t.Errorf("%s: found %d after a reset", held, found)
	}
}

// The writer's keys are there once written, room for them is bounded in every
// cache, and what the requests need comes back.
func TestWritersEvict(t *testing.T) {
	w, all := filled(t)
	ctx := t.Context()
	done := make(map[store]bool)
	for _, c := range all {
		if done[c.store] {
			continue
		}
		done[c.store] = true
		f, isFlat := c.store.(*flat)
		write := make(writes).into(ctx, c.store)
		for range 2 * w.room * names {
			if err := write(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		if isFlat {
			if f.done != nil {
				f.done()
			}
			resident, fresh := 0, 0
			for i := range w.artefacts {
				if _, ok := f.get(w.artefacts[i].key); ok {
					resident++
				}
			}
			for i := range w.fresh {
				if a, ok := f.get(w.fresh[i].key); ok {
					if a != &w.fresh[i] {
						t.Fatalf("%s: %v gives %v", c.name, w.fresh[i].key, a.key)
					}
					fresh++
				}
			}
			if resident+fresh > w.capacity() || fresh == 0 {
				t.Errorf("%s: holds %d + %d, may hold %d", c.name, resident, fresh, w.capacity())
			}
			if !f.bound && fresh != w.room*names {
				t.Errorf("%s: %d new keys are left, want %d", c.name, fresh, w.room*names)
			}
		} else if k := c.store.(*kilnStore); k.session.Groups() != int64(w.groups+w.room) {
			t.Errorf("%s: %d groups, want it full with %d", c.name, k.session.Groups(), w.groups+w.room)
		}
		if err := c.store.restore(ctx); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if found := c.find(0, len(w.asked)); found < len(w.asked)*99/100 {
			t.Errorf("%s: only %d of %d requests find something again", c.name, found, len(w.asked))
		}
	}
}

// TestMisses also has each slot check that every value is its key's.
func TestMisses(t *testing.T) {
	keys, err := absentKeys()
	if err != nil {
		t.Fatal(err)
	}
	atLeastOnce := map[string]bool{"singleflight + sync.Map": true, "theine, loading cache": true}
	for _, m := range makers() {
		s, err := missSlot(t.Context(), m, keys, 8)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if s.made < 1 || s.made > 1 && !atLeastOnce[m.name] {
			t.Errorf("%s: made each name %g times", m.name, s.made)
		}
	}
}

func TestMissSlotRefusesAWrongValue(t *testing.T) {
	keys, err := absentKeys()
	if err != nil {
		t.Fatal(err)
	}
	m := makers()[1]
	right := m.open
	m.open = func(ctx context.Context, keys []artefact, made *atomic.Int64) (func(int) (*artefact, error), func() error, error) {
		ask, end, err := right(ctx, keys, made)
		return func(i int) (*artefact, error) { return ask((i + 1) % len(keys)) }, end, err
	}
	if _, err := missSlot(t.Context(), m, keys, 1); err == nil {
		t.Error("a slot took another key's value")
	}
}
