package main

import (
	"context"

	"github.com/kiln-cache/kiln/internal/measure/reads"
	"github.com/kiln-cache/kiln/sessioncache"
)

// kilnStore is our session, which five contenders ask in five ways.
type kilnStore struct {
	*reads.Loaded
	w *workload
}

func openKiln(ctx context.Context, w *workload) (*kilnStore, error) {
	l, err := reads.Load(ctx, w.Requests, w.room)
	if err != nil {
		return nil, err
	}
	return &kilnStore{l, w}, nil
}

func (k *kilnStore) put(ctx context.Context, i int) error {
	i %= len(k.w.fresh)
	return k.Set(ctx, reads.ShapeOf(k.w.Groups+i/names), &k.w.fresh[i])
}

func (k *kilnStore) restore(ctx context.Context) error { return k.Restore(ctx) }

func (k *kilnStore) close(ctx context.Context) error { return k.Session.Close(ctx) }

// What the rows of a lookup by its full key are called: the one that stands
// against each of oneDNN's.
const (
	keyKept  = "kiln: session, shape, name"
	keyBuilt = "kiln: the same, key built"
)

func (k *kilnStore) contenders() []contender {
	row := func(name, note string, find reads.Finder, value func(i int) (sessioncache.Ref, bool)) contender {
		return contender{name: name, note: note, ours: true, store: k, find: find, value: func(i int) (*reads.Value, bool) {
			ref, ok := value(i)
			if !ok {
				return nil, false
			}
			return ref.Value().(*reads.Value), true
		}}
	}
	full := func(i int) (sessioncache.Ref, bool) {
		return k.Session.Lookup(k.w.AskedShapes[i], k.w.AskedNames[i], 0)
	}
	return []contender{
		row("kiln: held reference", "asks whether what it holds is still resident", k.Held,
			func(i int) (sessioncache.Ref, bool) { return k.Refs[i], k.Refs[i].Resident() }),
		row("kiln: group handle, interned name", "", k.ByID,
			func(i int) (sessioncache.Ref, bool) { return k.Groups[i].LookupID(k.IDs[i]) }),
		row("kiln: group handle, name", "", k.ByName,
			func(i int) (sessioncache.Ref, bool) { return k.Groups[i].Lookup(k.w.AskedNames[i], 0) }),
		row(keyKept, "the same question as the other caches'", k.ByKey, full),
		row(keyBuilt, "the shape is made of its dimensions for each lookup", k.ByDims, full),
	}
}
