package main

import (
	"context"

	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// kilnStore is our session, which five contenders ask in five ways. What a
// request holds (handles, references) is looked up again by restore, as a model
// run would.
type kilnStore struct {
	w       *workload
	session *sessioncache.Session
	shapes  []shapegroups.Shape // by group

	ids     []sessioncache.NameID // by request, as all of these
	handles []sessioncache.View
	refs    []sessioncache.Ref
}

func openKiln(ctx context.Context, w *workload) (*kilnStore, error) {
	s, err := sessioncache.Open(sessioncache.Config{Name: session, Groups: sessioncache.LimitOf(int64(w.groups + w.room))})
	if err != nil {
		return nil, err
	}
	k := &kilnStore{w: w, session: s, handles: make([]sessioncache.View, len(w.asked)), refs: make([]sessioncache.Ref, len(w.asked))}
	for _, name := range w.names {
		k.ids = append(k.ids, s.Intern(name))
	}
	for g := range w.groups {
		shape, err := shapegroups.Of(dimsOf(g))
		if err != nil {
			return nil, err
		}
		k.shapes = append(k.shapes, shape)
		for i := range names {
			if err := k.set(ctx, shape, &w.artefacts[g*names+i]); err != nil {
				return nil, err
			}
		}
	}
	return k, k.restore(ctx)
}

func (k *kilnStore) set(ctx context.Context, shape shapegroups.Shape, a *artefact) error {
	return k.session.Set(ctx, shape, a.key.name, sessioncache.Value{Any: a}, sessioncache.Options{})
}

func (k *kilnStore) put(ctx context.Context, i int) error {
	i %= len(k.w.fresh)
	return k.set(ctx, k.w.freshShape[i/names], &k.w.fresh[i])
}

func (k *kilnStore) restore(ctx context.Context) error {
	for range tries { // what comes back may evict another
		if missing, err := k.restoreOnce(ctx); missing == 0 || err != nil {
			return err
		}
	}
	return nil
}

func (k *kilnStore) restoreOnce(ctx context.Context) (missing int, err error) {
	for i, place := range k.w.asked {
		if k.refs[i].Resident() {
			continue
		}
		missing++
		shape := k.shapes[place/names]
		if _, ok := k.session.Lookup(shape, k.w.names[i], 0); !ok {
			if err := k.set(ctx, shape, &k.w.artefacts[place]); err != nil {
				return missing, err
			}
		}
		k.handles[i], _ = k.session.View(shape)
		k.refs[i], _ = k.handles[i].Lookup(k.w.names[i], 0)
	}
	return missing, nil
}

func (k *kilnStore) close(ctx context.Context) error { return k.session.Close(ctx) }

// What the rows of a lookup by its full key are called: the one that stands
// against each of oneDNN's.
const (
	keyKept  = "kiln: session, shape, name"
	keyBuilt = "kiln: the same, key built"
)

func (k *kilnStore) contenders() []contender {
	row := func(name, note string, find func(from, to int) int, value func(i int) (sessioncache.Ref, bool)) contender {
		return contender{name: name, note: note, ours: true, store: k, find: find, value: func(i int) (*artefact, bool) {
			ref, ok := value(i)
			if !ok {
				return nil, false
			}
			return ref.Value().(*artefact), true
		}}
	}
	full := func(i int) (sessioncache.Ref, bool) { return k.session.Lookup(k.w.shapes[i], k.w.names[i], 0) }
	return []contender{
		row("kiln: held reference", "asks whether what it holds is still resident", k.findHeld,
			func(i int) (sessioncache.Ref, bool) { return k.refs[i], k.refs[i].Resident() }),
		row("kiln: group handle, interned name", "", k.findID,
			func(i int) (sessioncache.Ref, bool) { return k.handles[i].LookupID(k.ids[i]) }),
		row("kiln: group handle, name", "", k.findName,
			func(i int) (sessioncache.Ref, bool) { return k.handles[i].Lookup(k.w.names[i], 0) }),
		row(keyKept, "the same question as the other caches'", k.findFull, full),
		row(keyBuilt, "the shape is made of its dimensions for each lookup", k.findBuilt, full),
	}
}

func (k *kilnStore) findHeld(from, to int) (found int) {
	for i := range k.refs[from:to] {
		if k.refs[from+i].Resident() {
			found++
		}
	}
	return found
}

func (k *kilnStore) findID(from, to int) (found int) {
	ids := k.ids[from:to]
	for i, h := range k.handles[from:to] {
		if _, ok := h.LookupID(ids[i]); ok {
			found++
		}
	}
	return found
}

func (k *kilnStore) findName(from, to int) (found int) {
	asked := k.w.names[from:to]
	for i, h := range k.handles[from:to] {
		if _, ok := h.Lookup(asked[i], 0); ok {
			found++
		}
	}
	return found
}

func (k *kilnStore) findFull(from, to int) (found int) {
	asked := k.w.names[from:to]
	for i, shape := range k.w.shapes[from:to] {
		if _, ok := k.session.Lookup(shape, asked[i], 0); ok {
			found++
		}
	}
	return found
}

func (k *kilnStore) findBuilt(from, to int) (found int) {
	asked := k.w.names[from:to]
	for i, dims := range k.w.dims[from:to] {
		shape, err := shapegroups.Of(dims)
		if err != nil {
			continue // counts as a miss
		}
		if _, ok := k.session.Lookup(shape, asked[i], 0); ok {
			found++
		}
	}
	return found
}
