package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/kiln-cache/kiln/internal/measure/incumbent"
	"github.com/kiln-cache/kiln/internal/measure/reads"
)

// contender is one row of the table: a way to ask a store. find asks for the
// requests from one place of the list up to another and gives how many were
// there; the loop is the contender's own, so that a lookup costs no call of the
// harness. It is safe for concurrent use.
type contender struct {
	name  string
	ours  bool
	note  string // what a reader of the figure must know
	store store  // nil: the empty loop
	find  func(from, to int) int
	value func(request int) (*reads.Value, bool) // what one request gives; nil where it gives none

	renew func() // makes the store again, before each round of readers alone; nil = nothing

	native *incumbent.Process // instead of store, find and value: asked in C
	mode   string             // of native
}

// store is one filled cache, which several contenders may ask. put may run
// beside find, the others not; all are called by one goroutine at a time.
type store interface {
	// put stores the i-th new artefact of the workload. A store without a bound
	// of its own removes the one that is w.room groups older.
	put(ctx context.Context, i int) error
	// restore puts back what was evicted of the requests' artefacts.
	restore(ctx context.Context) error
	close(ctx context.Context) error
}

// flat is a cache with one level of keys, as all but Kiln's are.
type flat struct {
	w     *workload
	bound bool // it evicts by itself
	get   func(reads.Key) (*reads.Value, bool)
	set   func(*reads.Value)
	drop  func(reads.Key)
	done  func() // waits for what set left to be done; nil = nothing
	end   func() // nil = nothing
}

// tries is how often a cache that may refuse an entry is asked to take it.
const tries = 8

// bring stores those of n values that are not there. A cache that loses some after
// several tries is measured as it is: its share of hits says so.
func (f *flat) bring(n int, value func(i int) *reads.Value) {
	for range tries {
		missing := 0
		for i := range n {
			a := value(i)
			if _, ok := f.get(a.Key); ok {
				continue
			}
			missing++
			f.set(a)
			if f.done != nil && missing%1024 == 0 {
				f.done()
			}
		}
		if f.done != nil {
			f.done()
		}
		if missing == 0 {
			return
		}
	}
}

func (f *flat) put(_ context.Context, i int) error {
	a := &f.w.fresh[i%len(f.w.fresh)]
	f.set(a)
	if kept := f.w.room * names; !f.bound && i >= kept {
		f.drop(f.w.fresh[(i-kept)%len(f.w.fresh)].Key)
	}
	return nil
}

func (f *flat) restore(context.Context) error {
	f.bring(len(f.w.Places), func(i int) *reads.Value { return &f.w.Values[f.w.Places[i]] })
	return nil
}

func (f *flat) close(context.Context) error {
	if f.end != nil {
		f.end()
	}
	return nil
}

// emptyLoop is the row of what the harness costs.
const emptyLoop = "(the loop alone)"

// The rows of oneDNN's own cache.
const (
	nativeKept  = "oneDNN, descriptor + primitive"
	nativeAllIn = "oneDNN, all-in"
)

// contenders fills every cache with the workload, ours first. The empty loop is
// what the harness itself adds to every row.
func contenders(ctx context.Context, w *workload, c *incumbent.Process) (all []contender, err error) {
	kiln, err := openKiln(ctx, w)
	if err != nil {
		return nil, err
	}
	all = append(kiln.contenders(), contender{name: emptyLoop, find: func(from, to int) int { return to - from }})
	for _, open := range []func(*workload) (contender, error){openSyncMap, openXsync, openOtter, openRistretto, openTheine, openLRU} {
		next, err := open(w)
		if err != nil {
			closeAll(ctx, all)
			return nil, fmt.Errorf("bench: %w", err)
		}
		all = append(all, next)
	}
	if c != nil {
		all = append(all,
			contender{name: nativeKept, native: c, mode: incumbent.Kept, note: "memory descriptors and attributes kept; D of the other rows"},
			contender{name: nativeAllIn, native: c, mode: incumbent.AllIn, note: "with memory descriptors, attributes and every destroy, as frameworks do it"})
	}
	return all, nil
}

func closeAll(ctx context.Context, all []contender) error {
	closed := make(map[store]bool)
	var errs []error
	for _, c := range all {
		if c.store == nil || closed[c.store] {
			continue
		}
		closed[c.store] = true
		errs = append(errs, c.store.close(ctx))
	}
	return errors.Join(errs...)
}
