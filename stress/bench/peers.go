package main

import (
	"hash/maphash"

	"github.com/Yiling-J/theine-go"
	"github.com/dgraph-io/ristretto/v2"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/maypok86/otter/v2"
	"github.com/puzpuzpuz/xsync/v4"

	"github.com/kiln-cache/kiln/internal/measure/reads"
)

// reference is the contender that ratios are to, S.
const reference = "sync.Map"

func openSyncMap(w *workload) (contender, error) {
	peer := reads.NewPeer(w.Requests)
	f := &flat{w: w,
		get: func(k reads.Key) (*reads.Value, bool) {
			v, _ := peer.Map.Load(k)
			a, ok := v.(*reads.Value)
			return a, ok
		},
		set:  func(a *reads.Value) { peer.Map.Store(a.Key, a) },
		drop: func(k reads.Key) { peer.Map.Delete(k) },
	}
	c := f.contender(reference, "no bound, no eviction of its own; S of the other rows", peer.Find)
	c.renew = peer.Renew
	return c, nil
}

func openXsync(w *workload) (contender, error) {
	m := xsync.NewMap[reads.Key, *reads.Value]()
	f := &flat{w: w, get: m.Load, set: func(a *reads.Value) { m.Store(a.Key, a) }, drop: m.Delete}
	find := func(from, to int) (found int) {
		for _, k := range w.Keys[from:to] {
			if _, ok := m.Load(k); ok {
				found++
			}
		}
		return found
	}
	return f.contender("xsync.Map", "no bound, no eviction of its own", find), nil
}

func openOtter(w *workload) (contender, error) {
	c, err := otter.New(&otter.Options[reads.Key, *reads.Value]{MaximumSize: w.capacity()})
	if err != nil {
		return contender{}, err
	}
	f := &flat{w: w, bound: true,
		get:  c.GetIfPresent,
		set:  func(a *reads.Value) { c.Set(a.Key, a) },
		done: c.CleanUp,
		end:  func() { c.StopAllGoroutines() },
	}
	find := func(from, to int) (found int) {
		for _, k := range w.Keys[from:to] {
			if _, ok := c.GetIfPresent(k); ok {
				found++
			}
		}
		return found
	}
	return f.contender("otter v2", "", find), nil
}

// openRistretto asks by a digest and compares the key in the value, which is the
// cheapest exact use of it.
func openRistretto(w *workload) (contender, error) {
	c, err := ristretto.NewCache(&ristretto.Config[uint64, *reads.Value]{
		NumCounters: 10 * int64(w.capacity()), MaxCost: int64(w.capacity()), BufferItems: 64, IgnoreInternalCost: true,
	})
	if err != nil {
		return contender{}, err
	}
	seed := maphash.MakeSeed()
	f := &flat{w: w, bound: true,
		get: func(k reads.Key) (*reads.Value, bool) {
			a, ok := c.Get(maphash.Comparable(seed, k))
			return a, ok && a.Key == k
		},
		set:  func(a *reads.Value) { c.Set(maphash.Comparable(seed, a.Key), a, 1) },
		done: c.Wait,
		end:  c.Close,
	}
	find := func(from, to int) (found int) {
		for _, k := range w.Keys[from:to] {
			if a, ok := c.Get(maphash.Comparable(seed, k)); ok && a.Key == k {
				found++
			}
		}
		return found
	}
	const note = "does not identify keys: asked by a 64-bit digest, the key compared by the harness, colliding keys replace each other; drops sets under load"
	return f.contender("ristretto v2, digest + compare", note, find), nil
}

func openTheine(w *workload) (contender, error) {
	c, err := theine.NewBuilder[reads.Key, *reads.Value](int64(w.capacity())).Build()
	if err != nil {
		return contender{}, err
	}
	f := &flat{w: w, bound: true, get: c.Get, set: func(a *reads.Value) { c.Set(a.Key, a, 1) }, done: c.Wait, end: c.Close}
	find := func(from, to int) (found int) {
		for _, k := range w.Keys[from:to] {
			if _, ok := c.Get(k); ok {
				found++
			}
		}
		return found
	}
	return f.contender("theine", "", find), nil
}

func openLRU(w *workload) (contender, error) {
	c, err := lru.New[reads.Key, *reads.Value](w.capacity())
	if err != nil {
		return contender{}, err
	}
	f := &flat{w: w, bound: true, get: c.Get, set: func(a *reads.Value) { c.Add(a.Key, a) }}
	find := func(from, to int) (found int) {
		for _, k := range w.Keys[from:to] {
			if _, ok := c.Get(k); ok {
				found++
			}
		}
		return found
	}
	return f.contender("golang-lru v2", "one mutex for all readers", find), nil
}

// contender is the row of a flat cache, once it is filled.
func (f *flat) contender(name, note string, find func(from, to int) int) contender {
	f.bring(len(f.w.Values), func(i int) *reads.Value { return &f.w.Values[i] })
	value := func(request int) (*reads.Value, bool) { return f.get(f.w.Keys[request]) }
	return contender{name: name, note: note, store: f, find: find, value: value}
}
