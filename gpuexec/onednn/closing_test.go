package onednn

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// F4, F8, C5: callers whose contexts end at any time, capacities that change and a close of cache
// and library meanwhile leave no object, and nobody is given a wrong number.
func TestCloseWhileCallersRun(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	need(t, 1)
	for round := range uint64(rounds) {
		l, err := Open(Config{Path: path(), Workers: 4})
		if err != nil {
			t.Fatal(err)
		}
		cache, err := artefacts.Open(artefacts.Config{Entries: limit.Of(3)})
		if err != nil {
			t.Fatal(err)
		}
		r := engineOf(t, l, cache)
		var all sync.WaitGroup
		for seed := range uint64(16) {
			all.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, round))
				for r.ended(rnd) {
				}
			})
		}
		for _, n := range []int64{0, 1, 8, 0, 2} {
			time.Sleep(3 * time.Millisecond)
			if err := cache.SetCapacity(limit.Of(n), limit.Of(1<<30)); err != nil {
				t.Error(err)
			}
		}
		if round%2 == 0 {
			err = errors.Join(cache.Close(bg), l.Close())
		} else {
			err = errors.Join(l.Close(), cache.Close(bg))
		}
		all.Wait()
		for range 1000 { // what callers gave back last may be freed behind them
			if l.Len() == 0 {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if err != nil || l.Len() != 0 {
			t.Fatalf("round %d: %v, and %d objects are left", round, err, l.Len())
		}
	}
}

// ended makes and runs a product within a time that may be too short, and tells whether to go on.
func (r *rig) ended(rnd *rand.Rand) bool {
	ctx, cancel := context.WithTimeout(bg, time.Duration(rnd.IntN(2000))*time.Microsecond)
	defer cancel()
	rows := int64(1 + rnd.IntN(5))
	s := spec("matmul", "", "", nil, Dense("f32", rows, 4), Dense("f32", 4, 8), tensor{}, Dense("f32", rows, 8))
	err := r.once(ctx, &s)
	if err != nil && !errors.Is(err, fault.ErrClosed) && !errors.Is(err, context.DeadlineExceeded) {
		r.Error(err)
	}
	return !errors.Is(err, fault.ErrClosed)
}

// once makes a primitive and runs it on numbers of which each result is the sum of four.
func (r *rig) once(ctx context.Context, s *primitive.Spec) error {
	lease, _, err := r.Primitive(ctx, s, "")
	if err != nil {
		return err
	}
	defer lease.End()
	var args []Arg
	for i, slot := range []Slot{Src, Weights, Dst} {
		m, err := r.NewMemory(s.Op.Tensors[[]int{0, 1, 3}[i]])
		if err != nil {
			return err
		}
		defer m.Release()
		for at := range Of[float32](m) {
			Of[float32](m)[at] = 1
		}
		args = append(args, Arg{slot, m})
	}
	if err := r.Execute(ctx, lease.Primitive(), args...); err != nil {
		return err
	}
	for _, v := range Of[float32](args[2].Memory) {
		if v != 4 {
			r.Errorf("%v, want 4", v)
			break
		}
	}
	return nil
}

// C5, F8: the engine stays while a list is walked through, also where the library is closed in
// the body of the loop.
func TestCloseWhileDescribing(t *testing.T) {
	need(t, 1)
	l, err := Open(Config{Path: path(), Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	im, err := newImage(l.image.lib) // a table of its own
	if err != nil {
		t.Fatal(err)
	}
	c, freed := im.tables.base(), 0
	free := c.EngineFree
	c.EngineFree = func(h handle) int32 { freed++; return free(h) }
	l.b, l.c, l.image = im.tables, c, im
	s := matmul(3, 4, 5, Dense("f32", 4, 5))
	for _, err := range l.Implementations(bg, &s) {
		if err := errors.Join(err, l.Close()); err != nil || freed != 0 {
			t.Errorf("the engine was freed %d times in the loop: %v", freed, err)
		}
	}
	if freed != 1 || l.Len() != 0 {
		t.Errorf("the engine was freed %d times, and %d objects are left", freed, l.Len())
	}
}
