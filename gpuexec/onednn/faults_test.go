package onednn

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// life does everything once that uses the library, with every call that can fail.
func life(im *image) (err error) {
	l, err := open(im, 2)
	if err != nil {
		return err
	}
	cache, err := artefacts.Open(artefacts.Config{})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, cache.Close(bg), l.Close())
		if n := l.Len(); n != 0 {
			err = errors.Join(err, fmt.Errorf("LEAK: %d objects are left", n))
		}
	}()
	e, err := primitive.Open(primitive.Config{Cache: cache, Library: l, Backend: Name, Identity: l.About().Identity})
	if err != nil {
		return err
	}
	run := func(s primitive.Spec) ([]tensor, error) {
		lease, _, err := e.Primitive(bg, &s, "")
		if err != nil {
			return nil, err
		}
		defer lease.End()
		d := lease.Primitive().Descriptor()
		var args []Arg
		for _, a := range d.Native().(*plan).args {
			m, err := l.NewMemory(a.tensor)
			if err != nil {
				return nil, err
			}
			defer m.Release()
			args = append(args, Arg{a.slot, m})
		}
		return d.Hints(), l.Execute(bg, lease.Primitive(), args...)
	}
	listed := spec("reduction", "", "sum", nil, Dense("f32", 4, 16), Dense("f32", 4, 1))
	for d, err := range e.All(bg, &listed) {
		if err != nil {
			return err
		}
		d.Release()
	}
	all, err := requests(im)
	if err != nil {
		return err
	}
	for _, pair := range all {
		var hints []tensor
		for i, s := range pair {
			if i > 0 {
				s.Hints = hints
			}
			got, err := run(s)
			if err != nil {
				return err
			}
			if i == 0 {
				hints = got
			}
		}
	}
	return nil
}

// requests are of every kind, each a forward request with the backward ones that take its
// hints, with all that this version has of attributes.
func requests(im *image) ([][]primitive.Spec, error) {
	shape := Dense("f32", 4, 16)
	product := matmul(4, 16, 32, tensor{Type: "f32", Dims: []int64{16, 32}})
	product.Attr.PostOps = []primitive.PostOp{{Kind: "sum", Scale: 1}, {Kind: "eltwise", Algorithm: "relu"}, {Kind: "binary", Algorithm: "add", Source: Dense("f32", 1, 32)}}
	whole := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []tensor{Dense("u8", 4, 8), Dense("s8", 8, 4), {}, Dense("f32", 4, 4)}},
		Attr: primitive.Attributes{ZeroPoints: []primitive.Quant{{Arg: "src"}}}}
	blocked := shape
	opaque := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []tensor{Dense("s8", 4, 64), {Type: "s8", Dims: []int64{64, 32}}, {}, Dense("f32", 4, 32)}}}
	summed := opaque
	if t, ok := im.tables.(*table3); ok {
		if t.Rounding != nil {
			product.Attr.FPMath, product.Attr.FPMathInts, product.Attr.Accumulation, product.Attr.Deterministic = "any", true, "any", true
			opaque.Attr.Rounding = []primitive.Rounding{{Arg: "dst", Mode: "environment"}}
			opaque.Attr.Scales = []primitive.Quant{{Arg: "weights", Mask: 3, Groups: []int64{32, 1}, Type: "bf16"}}
			opaque.Attr.ZeroPoints = []primitive.Quant{{Arg: "weights", Mask: 3, Groups: []int64{32, 1}, Type: "s8"}}
		}
		product.Attr.PostOps = append(product.Attr.PostOps, primitive.PostOp{Kind: "prelu", Mask: 2})
		whole.Attr.Scales = []primitive.Quant{{Arg: "src"}}
		blocked = tensor{Type: "f32", Dims: []int64{2, 32, 4, 4}, Strides: []int64{512, 256, 64, 16}, Blocks: []primitive.Block{{Dim: 1, Size: 16}}}
	}
	reorder, err1 := primitive.Reorder([]tensor{Dense("f32", blocked.Dims...), blocked})
	sum, err2 := primitive.Sum([]float64{1, 1}, []tensor{shape, shape, shape})
	concat, err3 := primitive.Concat(0, []tensor{shape, shape, Dense("f32", 8, 16)})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	image, pooled := Dense("f32", 1, 16, 9, 9), Dense("f32", 1, 16, 5, 5)
	x, w, y := Dense("f32", 4, 16), Dense("f32", 8, 16), Dense("f32", 4, 8)
	kernel := Dense("f32", 16, 16, 3, 3)
	window := append([]param{ints("kernel", 3, 3)}, spatial...)
	row := Dense("f32", 4)
	return [][]primitive.Spec{
		{product}, {whole}, {opaque}, {summed}, {reorder}, {sum}, {concat},
		{spec("binary", "", "add", nil, shape, shape, shape)},
		{spec("reduction", "", "sum", nil, shape, Dense("f32", 4, 1))},
		{spec("eltwise", "forward", "relu", nil, shape, shape), spec("eltwise", "backward_data", "relu", nil, shape, shape, shape)},
		{spec("softmax", "forward", "accurate", []param{ints("axis", 1)}, shape, shape), spec("softmax", "backward_data", "accurate", []param{ints("axis", 1)}, shape, shape, shape)},
		{spec("layer_normalization", "forward", "", nil, shape, shape, row), spec("layer_normalization", "backward_data", "", nil, shape, shape, shape, row)},
		{spec("pooling", "forward", "max", window, image, pooled), spec("pooling", "backward_data", "max", window, image, pooled)},
		{spec("inner_product", "forward", "", nil, x, w, tensor{}, y), spec("inner_product", "backward_data", "", nil, x, w, y), spec("inner_product", "backward_weights", "", nil, x, w, tensor{}, y)},
		{spec("convolution", "forward", "auto", spatial, image, kernel, tensor{}, pooled), spec("convolution", "backward_data", "direct", spatial, image, kernel, pooled),
			spec("convolution", "backward_weights", "direct", spatial, image, kernel, tensor{}, pooled)},
	}, nil
}

// E1, E3: whatever call of the library fails, the error is typed and nothing is left.
func TestEveryCallMayFail(t *testing.T) {
	need(t, 1)
	if err := life(loaded.image); err != nil {
		t.Fatal(err)
	}
	im, err := newImage(loaded.image.lib) // a table of its own, to break
	if err != nil {
		t.Fatal(err)
	}
	table := reflect.ValueOf(im.tables).Elem()
	var tables []reflect.Value
	tables = append(tables, table.FieldByName("common"), table)
	broken, unused := 0, []string{}
	for _, fields := range tables {
		for i := range fields.NumField() {
			name := fields.Type().Field(i).Tag.Get("c")
			at := fields.Field(i)
			// What answers no status, and what only gives back.
			if name == "" || at.Type().NumOut() != 1 || at.Type().Out(0).Kind() != reflect.Int32 || at.IsNil() || strings.HasSuffix(name, "destroy") ||
				strings.HasSuffix(name, "equal") || strings.HasSuffix(name, "isa") || strings.HasSuffix(name, "_s32") {
				continue
			}
			was := reflect.ValueOf(at.Interface())
			for _, nth := range []int{1, 2, 5} {
				for _, code := range []int32{outOfMemory, 5} {
					var calls atomic.Int64
					at.Set(reflect.MakeFunc(at.Type(), func(args []reflect.Value) []reflect.Value {
						if calls.Add(1) == int64(nth) {
							return []reflect.Value{reflect.ValueOf(code)}
						}
						return was.Call(args)
					}))
					err := life(im)
					at.Set(was)
					if calls.Load() == 0 && !slices.Contains(unused, name) {
						unused = append(unused, name)
					}
					if calls.Load() < int64(nth) {
						continue
					}
					broken++
					_, typed := errors.AsType[*fault.Error](err)
					if err != nil && strings.Contains(err.Error(), "LEAK") || err != nil && !typed && !answered(err, code) {
						t.Errorf("%s fails with %d at call %d: %v", name, code, nth, err)
					}
				}
			}
		}
	}
	t.Logf("%d faults; not called: %v", broken, unused)
	if broken < 60 {
		t.Errorf("%d faults were made, want every call's", broken)
	}
}

// E1, F9: scratch memory that cannot grow stays as it was, and is freed once.
func TestScratchThatCannotGrow(t *testing.T) {
	need(t, 1)
	im, err := newImage(loaded.image.lib) // a table of its own, to break
	if err != nil {
		t.Fatal(err)
	}
	l, err := open(im, 1)
	if err != nil {
		t.Fatal(err)
	}
	made := make(map[handle]bool)
	create, destroy := l.c.MemoryMake, l.c.MemoryFree
	works := func(h *handle, md *memoryDesc, engine handle, at unsafe.Pointer) int32 {
		code := create(h, md, engine, at)
		made[*h] = true
		return code
	}
	l.c.MemoryMake = works
	l.c.MemoryFree = func(h handle) int32 {
		if !made[h] {
			t.Errorf("memory %#x is freed that is not there", h)
			return success
		}
		delete(made, h)
		return destroy(h)
	}
	w := <-l.workers
	if err := w.grow(100); err != nil {
		t.Fatal(err)
	}
	memory, size := w.memory, len(w.scratch)
	l.c.MemoryMake = func(*handle, *memoryDesc, handle, unsafe.Pointer) int32 { return outOfMemory }
	if err := w.grow(1000); !errors.Is(err, fault.ErrTooLarge) || w.memory != memory || len(w.scratch) != size {
		t.Errorf("%v, want ErrTooLarge; the memory is %#x of %d bytes, was %#x of %d", err, w.memory, len(w.scratch), memory, size)
	}
	l.c.MemoryMake = works
	if err := w.grow(1000); err != nil || w.memory == memory || len(w.scratch) < 1000 {
		t.Errorf("%v; %d bytes, want 1000", err, len(w.scratch))
	}
	l.workers <- w
	if err := l.Close(); err != nil || l.Len() != 0 || len(made) != 0 {
		t.Errorf("%v; %d objects of the library and %d memories are left", err, l.Len(), len(made))
	}
}

// D1, F2: a list whose next step fails has not ended: nobody is told that there are no more.
func TestNextStepFails(t *testing.T) {
	r := open1(t, limit.Limit{})
	im, err := newImage(r.image.lib) // a table of its own
	if err != nil {
		t.Fatal(err)
	}
	table, ok := im.tables.(*table3)
	if !ok {
		t.Skip("2.x has lists of another kind")
	}
	whole, short := table.PlanNext, true
	table.PlanNext = func(pd handle) int32 {
		if short {
			return outOfMemory
		}
		return whole(pd)
	}
	r.b, r.c, r.image = im.tables, &table.common, im
	s := matmul(3, 4, 5, Dense("f32", 4, 5))
	s.Impl = 1
	if _, _, err := r.Descriptor(bg, &s); !errors.Is(err, fault.ErrTooLarge) || errors.Is(err, primitive.ErrEnd) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
	short = false
	d, _, err := r.Descriptor(bg, &s)
	if err != nil {
		t.Fatal(err)
	}
	d.Release()
}
