package onednn

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

var _ ops.Library = (*Backend)(nil)

// Source implements ops.Library. A program is of exact dimensions.
func (b *Backend) Source(op ops.Op) (gpuexec.Source, error) {
	if err := general.Padded(op, 1); err != nil {
		return gpuexec.Source{}, err
	}
	src := gpuexec.Source{Key: op.String(), Spec: op}
	for _, n := range general.Elements(op, 1) {
		src.Params = append(src.Params, gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4 * n})
	}
	if op.Kind == ops.MatMul {
		w, err := b.formats.of(op.Dims[1], op.Dims[2])
		if err != nil {
			return gpuexec.Source{}, err
		}
		src.Key += " layout=" + w.format
		src.Params[1].Bytes = w.bytes
	}
	return src, nil
}

// Launch implements ops.Library: programs have their dimensions.
func (*Backend) Launch(ops.Op) (gpuexec.Size, []gpuexec.Arg) { return gpuexec.Size{1}, nil }

// Prepare implements ops.Library: a weight in rows, for products of any number of rows,
// and behind that as a constant in the layout that the library's products of one number
// want, where that is another.
func (b *Backend) Prepare(op ops.Op) (ops.Prepared, error) {
	if op.Kind != ops.MatMul {
		return ops.Prepared{}, fault.Invalidf("onednn: prepare", "%s has no weight to prepare", op)
	}
	if err := general.Padded(op, 1); err != nil {
		return ops.Prepared{}, err
	}
	k, n := op.Dims[1], op.Dims[2]
	w, err := b.formats.of(k, n)
	if err != nil {
		return ops.Prepared{}, err
	}
	return ops.Prepared{Format: w.format, Bytes: w.bytes, Fill: func(dst []byte, numbers []float32) error {
		if int64(len(dst)) != w.bytes || int64(len(numbers)) != k*n {
			return fault.Invalidf("onednn: prepare", "%d numbers into %d bytes, want %d into %d", len(numbers), len(dst), k*n, w.bytes)
		}
		clear(dst)
		copy(dst, gpuexec.BytesOf(numbers))
		if !w.blocked() {
			return nil
		}
		return b.formats.with(func(r *opened) error {
			c, err := r.lib.Constant(r.engine, gpuexec.BytesOf(numbers), w.rows, w.wanted)
			if err != nil {
				return err
			}
			m, err := c.Make(context.Background())
			if err != nil {
				return err
			}
			defer m.Release()
			copy(dst[w.at:], m.Bytes())
			return nil
		})
	}}, nil
}

// weight is how the weight of a matmul is kept.
type weight struct {
	rows, wanted primitive.Tensor // the latter without a type: as rows
	at, bytes    int64            // where the blocked one begins; of both
	format       string
}

func (w *weight) blocked() bool { return w.wanted.Type != "" }

func (w *weight) tensor(blocked bool) primitive.Tensor {
	if blocked && w.blocked() {
		return w.wanted
	}
	return w.rows
}

// formats are what the library wants of weights. Safe for concurrent use.
type formats struct {
	path string
	mu   struct {
		sync.Mutex
		known map[[2]int64]weight
	}
}

const (
	mostFormats = 1024
	usualRows   = 64 // of a product: layouts are the same for all but very few
)

// with opens the library for a moment.
func (l *formats) with(use func(*opened) error) (err error) {
	r, err := openAll(l.path)
	if err != nil {
		return err
	}
	defer func() {
		if failed := r.close(); err == nil {
			err = failed
		}
	}()
	return use(r)
}

// of asks the library once for each size.
func (l *formats) of(k, n int64) (w weight, err error) {
	size := [2]int64{k, n}
	l.mu.Lock()
	w, known := l.mu.known[size]
	l.mu.Unlock()
	if known {
		return w, nil
	}
	err = l.with(func(r *opened) (err error) {
		w, err = r.weight(k, n)
		return err
	})
	if err != nil {
		return w, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.known == nil || len(l.mu.known) >= mostFormats {
		l.mu.known = make(map[[2]int64]weight)
	}
	l.mu.known[size] = w
	return w, nil
}

func (r *opened) weight(k, n int64) (w weight, err error) {
	a := r.lib.About()
	w = weight{rows: Dense("f32", k, n), bytes: 4 * k * n, format: fmt.Sprintf("oneDNN %s %.12s rows", a.Version, a.Build)}
	s := matmulSpec(ops.New(ops.MatMul, usualRows, k, n), usualRows, primitive.Tensor{Type: "f32", Dims: []int64{k, n}})
	d, _, err := r.engine.Descriptor(context.Background(), &s)
	if err != nil {
		return w, err
	}
	defer d.Release()
	wanted := d.Tensors()[1]
	if len(wanted.Blocks) == 0 || wanted.Layout != "" || wanted.Offset != 0 {
		return w, nil
	}
	bytes, err := r.lib.size(&wanted)
	if err != nil {
		return w, err
	}
	wanted.Dims, wanted.Strides, wanted.Blocks = slices.Clone(wanted.Dims), slices.Clone(wanted.Strides), slices.Clone(wanted.Blocks)
	w.wanted = wanted
	w.at = (w.bytes + alignment - 1) / alignment * alignment
	w.bytes = w.at + bytes
	w.format += fmt.Sprintf(" and %v %v", wanted.Strides, wanted.Blocks)
	return w, nil
}
