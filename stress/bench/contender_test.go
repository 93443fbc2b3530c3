package main

import (
	"context"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/internal/measure/reads"
	"github.com/kiln-cache/kiln/shapegroups"
)

// filled is a small workload and every contender that holds it.
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
		if found := c.find(0, len(w.Places)); found != len(w.Places) {
			t.Errorf("%s: found %d of %d", c.name, found, len(w.Places))
		}
		for i, place := range w.Places {
			a, ok := c.value(i)
			if !ok || a != &w.Values[place] {
				t.Fatalf("%s: request %d of %v gives %v, %v", c.name, i, w.Keys[i], a, ok)
			}
		}
	}
}

// Whatever part of the key is another, nothing is found: no contender answers
// from a part of it.
func TestAbsentKeysAreNotFound(t *testing.T) {
	w, all := filled(t)
	kiln := all[0].store.(*kilnStore)
	half := len(w.Places) / 2 // the requests from here on are made absent
	none := func(what string, but ...string) {
		t.Helper()
		for _, c := range all {
			if strings.Contains(strings.Join(but, "|"), c.name) {
				continue
			}
			if found := c.find(half, len(w.Places)); found != 0 {
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
	absent, err := shapegroups.Of(reads.DimsOf(1 << 30))
	if err != nil {
		t.Fatal(err)
	}
	for i := half; i < len(w.Places); i++ { // in place: the contenders hold these slices
		w.AskedShapes[i], w.Keys[i].Shape, w.AskedDims[i] = absent, absent.Key(), reads.DimsOf(1<<30)
	}
	held, byID, byName := all[0].name, all[1].name, all[2].name // these hold groups, not shapes
	none("shape", held, byID, byName)
	for i := half; i < len(w.Places); i++ {
		group := w.Places[i] / names
		w.AskedShapes[i], w.AskedDims[i] = w.Shapes[group], reads.DimsOf(group)
		w.AskedNames[i] += "'"
		w.Keys[i].Shape, w.Keys[i].Name = w.AskedShapes[i].Key(), w.AskedNames[i]
		kiln.IDs[i] = kiln.Session.Intern(w.AskedNames[i])
	}
	none("name", held)
	all = all[:3]
	clear(kiln.Groups[half:])
	clear(kiln.Refs[half:])
	for i := half; i < len(w.Places); i++ {
		w.AskedNames[i], kiln.IDs[i] = w.AskedNames[0], kiln.IDs[0]
	}
	none("handle")
	if err := kiln.Session.ResetAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found := all[0].find(0, len(w.Places)); found != 0 {
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
			for i := range w.Values {
				if _, ok := f.get(w.Values[i].Key); ok {
					resident++
				}
			}
			for i := range w.fresh {
				if a, ok := f.get(w.fresh[i].Key); ok {
					if a != &w.fresh[i] {
						t.Fatalf("%s: %v gives %v", c.name, w.fresh[i].Key, a.Key)
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
		} else if k := c.store.(*kilnStore); k.Session.Groups() != int64(w.Groups+w.room) {
			t.Errorf("%s: %d groups, want it full with %d", c.name, k.Session.Groups(), w.Groups+w.room)
		}
		if err := c.store.restore(ctx); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if found := c.find(0, len(w.Places)); found < len(w.Places)*99/100 {
			t.Errorf("%s: only %d of %d requests find something again", c.name, found, len(w.Places))
		}
	}
}

// TestMisses also has each slot check that every value is its key's.
func TestMisses(t *testing.T) {
	keys := reads.Absent(groups)
	atLeastOnce := map[string]bool{"singleflight + sync.Map": true, "theine, loading cache": true}
	for _, m := range makers() {
		s, err := missSlot(t.Context(), m, keys, 8)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if s.Made < 1 || s.Made > 1 && !atLeastOnce[m.name] {
			t.Errorf("%s: made each name %g times", m.name, s.Made)
		}
	}
}

func TestMissSlotRefusesAWrongValue(t *testing.T) {
	keys := reads.Absent(groups)
	m := makers()[1]
	right := m.open
	m.open = func(ctx context.Context, keys []reads.Value, made func()) (func(int) (*reads.Value, error), func() error, error) {
		ask, end, err := right(ctx, keys, made)
		return func(i int) (*reads.Value, error) { return ask((i + 1) % len(keys)) }, end, err
	}
	if _, err := missSlot(t.Context(), m, keys, 1); err == nil {
		t.Error("a slot took another key's value")
	}
}
