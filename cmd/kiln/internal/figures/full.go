package figures

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/limit"
)

// Full measures what a store of 100,000 entries at its capacity costs, against one of
// 1,000.
func Full(ctx context.Context) ([]measure.Figure, error) { return full(ctx, 100_000, 1000) }

func full(ctx context.Context, many, few int) ([]measure.Figure, error) {
	return inFolders(ctx, func(ctx context.Context, dir string) (out []measure.Figure, err error) {
		var sides [2]*filled
		for i, entries := range []int{many, few} {
			if sides[i], err = fill(ctx, filepath.Join(dir, fmt.Sprint(entries)), entries); err != nil {
				return nil, err
			}
			defer sides[i].close()
		}
		big, small := sides[0], sides[1]
		for _, step := range []struct {
			what string
			gate *measure.Gate
			of   func(f *filled) (do, undo func() error)
		}{
			{"put that evicts", measure.AtMost(3), func(f *filled) (do, undo func() error) { return f.put, nothing }},
			{"inspect", measure.AtMost(3), func(f *filled) (do, undo func() error) { return f.inspect, nothing }},
			{"open", measure.AtMost(3), func(f *filled) (do, undo func() error) { return f.open, f.reclose }},
			{"open, then a put that evicts", measure.AtMost(3), func(f *filled) (do, undo func() error) { return f.openAndPut, f.reclose }},
			{"open under lru", measure.AtMost(3), func(f *filled) (do, undo func() error) { f.cfg.Policy = blobstore.LRU; return f.open, f.reclose }},
			{"open under lru, then a put that evicts", measure.AtMost(3), func(f *filled) (do, undo func() error) { return f.openAndPut, f.reclose }},
		} {
			ours, peer := undone(step.of(big)), undone(step.of(small))
			if step.what == "open" {
				big.close()
				small.close()
			}
			f := measure.Figure{Bench: fmt.Sprintf("%s, %d entries", step.what, many), RatioTo: fmt.Sprintf("%d", few), Goroutines: 1, Gate: step.gate}
			if f, err = inTurn(ctx, f, 9, 5, firstTwo, ours, peer); err != nil {
				return out, err
			}
			out = append(out, f)
		}
		held := float64(big.locked) / float64(20*time.Millisecond)
		return append(out, measure.Figure{Bench: fmt.Sprintf("longest hold of the lock, %d entries", many), RatioTo: "20 ms", Ratio: held, Min: held, Max: held,
			Goroutines: 1, N: 1, Gate: measure.AtMost(1)}), nil
	})
}

// filled is a store at its capacity.
type filled struct {
	ctx  context.Context
	cfg  blobstore.Config
	s    *blobstore.Store
	n    int
	last string // the place of the latest put

	locked time.Duration // longest time for which the lock of the directory was held
}

// fill makes a store of that many entries. All but the first are copies of one: that
// they are of another key costs what is measured here nothing.
func fill(ctx context.Context, dir string, entries int) (*filled, error) {
	const each = 8 << 10
	f := &filled{ctx: ctx, cfg: blobstore.Config{Dir: dir, Capacity: limit.Of(int64(entries) * each), Durability: blobstore.None,
		Identity: func(string) gpuexec.Identity { return gpuexec.Identity{Library: "1", Build: "1"} }}}
	if err := f.open(); err != nil {
		return nil, err
	}
	if err := f.put(); err != nil {
		return nil, err
	}
	b, _, err := f.s.Get(ctx, storeBackend, "key 1")
	if err == nil {
		err = f.s.Close(ctx)
	}
	for i := 1; i < entries && err == nil; i++ {
		if err = ctx.Err(); err == nil {
			err = copyEntry(filepath.Join(dir, b.Place), filepath.Join(dir, storeBackend, fmt.Sprint(i), "0"))
		}
	}
	if err == nil {
		err = f.open()
	}
	if err == nil {
		err = f.put() // which reads what eviction needs of all of them
	}
	return f, err
}

func copyEntry(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"key.bin", "kernel.bin"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *filled) open() (err error) {
	f.s, err = blobstore.Open(f.ctx, f.cfg)
	return err
}

func (f *filled) put() error {
	f.n++
	f.last = storeBackend + "/" + f.s.Bucket(fmt.Sprint("key ", f.n)) + "/0"
	return f.s.Put(f.ctx, storeBackend, fmt.Sprint("key ", f.n), make([]byte, 850), time.Second)
}

func (f *filled) openAndPut() error {
	if err := f.open(); err != nil {
		return err
	}
	return f.put()
}

func (f *filled) inspect() error {
	_, err := f.s.Inspect(f.ctx, f.last)
	return err
}

func (f *filled) close() { _ = f.reclose() }

func (f *filled) reclose() error {
	f.locked = max(f.locked, f.s.Stats().Locked)
	return f.s.Close(context.WithoutCancel(f.ctx))
}
