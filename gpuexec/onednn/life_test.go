package onednn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// E5: goroutines share primitives, and get the same bits each time: scratch memory is a
// worker's own.
func TestSharedPrimitives(t *testing.T) {
	r := open1(t, limit.Limit{})
	const callers, runs = 8, 1000
	type job struct {
		p    *primitive.Primitive
		args []Arg
		dst  tensor
		want []byte
	}
	var jobs []job
	add := func(s primitive.Spec, args ...Arg) {
		dst := s.Op.Tensors[len(s.Op.Tensors)-1]
		m := r.memory(dst)
		p := r.both(s, append(args[:len(args):len(args)], Arg{Dst, m})...)
		jobs = append(jobs, job{p, args, dst, bytes.Clone(m.Bytes())})
	}
	for _, m := range []int64{1, 7, 32} {
		s := matmul(m, 384, 1536, Dense("f32", 384, 1536))
		s.Attr.PostOps = []primitive.PostOp{{Kind: "eltwise", Algorithm: "gelu_erf"}}
		add(s, Arg{Src, r.filled(1, Dense("f32", m, 384))}, Arg{Weights, r.filled(2, Dense("f32", 384, 1536))}, Arg{Bias, r.filled(3, Dense("f32", 1, 1536))})
	}
	shape := Dense("f32", 16, 64)
	add(spec("softmax", "inference", "accurate", []param{ints("axis", 1)}, shape, shape), Arg{Src, r.filled(4, shape)})
	norm := spec("layer_normalization", "inference", "", []param{float("epsilon", 1e-5)}, shape, tensor{}, shape)
	norm.Op.Tensors = []tensor{shape, shape, {}}
	m := r.memory(shape)
	args := []Arg{{Src, r.filled(5, shape)}}
	jobs = append(jobs, job{r.both(norm, args[0], Arg{Dst, m}), args, shape, bytes.Clone(m.Bytes())})

	if jobs[0].p.Descriptor().Scratchpad() == 0 {
		t.Error("no scratch memory is needed: this test shows nothing")
	}
	var wrong atomic.Int64
	var all sync.WaitGroup
	for range callers {
		var own []*Memory
		for _, j := range jobs {
			own = append(own, r.memory(j.dst))
		}
		all.Go(func() {
			for i := range runs {
				j, dst := jobs[i%len(jobs)], own[i%len(jobs)]
				clear(dst.Bytes())
				if err := r.Execute(bg, j.p, append(j.args[:len(j.args):len(j.args)], Arg{Dst, dst})...); err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(dst.Bytes(), j.want) {
					wrong.Add(1)
				}
			}
		})
	}
	if all.Wait(); wrong.Load() != 0 {
		t.Errorf("%d of %d results are wrong", wrong.Load(), callers*runs)
	}
}

// D7: forward on one goroutine, backward on another, step by step.
func TestTrainingStep(t *testing.T) {
	r := open1(t, limit.Limit{})
	const steps = 20
	x, y := Dense("f32", 1, 16, 9, 9), Dense("f32", 1, 16, 5, 5)
	params := append([]param{ints("kernel", 3, 3)}, spatial...)
	type handed struct {
		hints          []tensor
		src, workspace *Memory
	}
	handing := make(chan handed)
	var all sync.WaitGroup
	all.Go(func() {
		defer close(handing)
		for i := range steps {
			s := spec("pooling", "forward", "max", params, x, y)
			lease, _, err := r.Primitive(bg, &s, "")
			if err != nil {
				t.Error(err)
				return
			}
			p := lease.Primitive()
			src, dst, workspace := r.filled(uint64(i), x), r.memory(y), r.memory(p.Descriptor().Hints()[2])
			if err := r.Execute(bg, p, Arg{Src, src}, Arg{Dst, dst}, Arg{Workspace, workspace}); err != nil {
				t.Error(err)
			}
			handing <- handed{p.Descriptor().Hints(), src, workspace}
			lease.End()
		}
	})
	all.Go(func() {
		for h := range handing {
			s := spec("pooling", "backward_data", "max", params, x, y)
			s.Hints = h.hints
			lease, _, err := r.Primitive(bg, &s, "")
			if err != nil {
				t.Error(err)
				continue
			}
			diffSrc, diffDst := r.memory(x), r.memory(y)
			for i := range Of[float32](diffDst) {
				Of[float32](diffDst)[i] = 1
			}
			if err := r.Execute(bg, lease.Primitive(), Arg{DiffSrc, diffSrc}, Arg{DiffDst, diffDst}, Arg{Workspace, h.workspace}); err != nil {
				t.Error(err)
			}
			lease.End()
			want := make([]float64, 16*81)
			for plane := range 16 {
				best := make(map[int]int)
				window(func(to, from, _ int) {
					image := Of[float32](h.src)[plane*81:]
					if at, any := best[to]; !any || image[from] > image[at] {
						best[to] = from
					}
				})
				for _, at := range best {
					want[plane*81+at]++
				}
			}
			near(t, "gradient", Of[float32](diffSrc), want, 0)
		}
	})
	all.Wait()
	if n := r.cache.Len(); n != 2 {
		t.Errorf("%d entries, want one forward and one backward", n)
	}
}

// E3: what does not fit is refused before the library sees it: it would compute on, or crash.
func TestArguments(t *testing.T) {
	r := open1(t, limit.Limit{})
	p := r.kernel(matmul(4, 8, 16, Dense("f32", 8, 16)))
	src, weights, bias, dst := r.filled(1, Dense("f32", 4, 8)), r.filled(2, Dense("f32", 8, 16)), r.filled(3, Dense("f32", 1, 16)), r.memory(Dense("f32", 4, 16))
	good := []Arg{{Src, src}, {Weights, weights}, {Bias, bias}, {Dst, dst}}
	r.run(p, good...)
	want := bytes.Clone(dst.Bytes())
	clear(dst.Bytes())
	gone, err := r.NewMemory(Dense("f32", 4, 16))
	if err != nil {
		t.Fatal(err)
	}
	gone.Release()
	other := need(t, 1)
	theirs, err := other.NewMemory(Dense("f32", 4, 16))
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Release()
	turned := tensor{Type: "f32", Dims: []int64{4, 16}, Strides: []int64{1, 4}}
	for name, c := range map[string]struct {
		with Arg // in the place of dst
		want error
	}{
		"too few rows":        {Arg{Dst, r.memory(Dense("f32", 3, 16))}, fault.ErrInvalid},
		"too many rows":       {Arg{Dst, r.memory(Dense("f32", 5, 16))}, fault.ErrInvalid},
		"another type":        {Arg{Dst, r.memory(Dense("s32", 4, 16))}, fault.ErrInvalid},
		"another layout":      {Arg{Dst, r.memory(turned)}, fault.ErrInvalid},
		"another slot":        {Arg{DiffDst, dst}, fault.ErrInvalid},
		"none":                {Arg{Dst, nil}, fault.ErrInvalid},
		"released":            {Arg{Dst, gone}, fault.ErrClosed},
		"another library's":   {Arg{Dst, theirs}, fault.ErrInvalid},
		"one that is another": {Arg{Src, src}, fault.ErrInvalid},
	} {
		args := append(good[:3:3], c.with)
		err := r.Execute(bg, p, args...)
		if _, typed := errors.AsType[*fault.Error](err); !typed || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for name, args := range map[string][]Arg{"one too few": good[:3], "one too many": append(good[:4:4], Arg{Workspace, dst}), "none": nil} {
		if err := r.Execute(bg, p, args...); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if err := other.Execute(bg, p, good...); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("another library: %v, want ErrInvalid", err)
	}
	if _, err := r.NewMemory(tensor{Type: "f32", Dims: []int64{4, 16}}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("memory without a layout: %v, want ErrInvalid", err)
	}
	for _, b := range dst.Bytes() {
		if b != 0 {
			t.Fatal("something was computed")
		}
	}
	if r.run(p, good...); !bytes.Equal(dst.Bytes(), want) {
		t.Error("another result behind what was refused")
	}
	var held []*worker
	for range cap(r.workers) {
		held = append(held, <-r.workers)
	}
	ended, cancel := context.WithCancel(bg)
	cancel()
	if err := r.Execute(ended, p, good...); !errors.Is(err, context.Canceled) {
		t.Errorf("all workers busy: %v", err)
	}
	for _, w := range held {
		r.workers <- w
	}
}

// C5: what is leased outlives the library's Close, and the last of it takes the engine
// with it.
func TestCloseBeforeTheLast(t *testing.T) {
	l := need(t, 1)
	cache, err := artefacts.Open(artefacts.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := primitive.Open(primitive.Config{Cache: cache, Library: l, Backend: Name, Identity: l.About().Identity})
	if err != nil {
		t.Fatal(err)
	}
	shape := Dense("f32", 4, 4)
	s := spec("eltwise", "inference", "relu", nil, shape, shape)
	lease, _, err := e.Primitive(bg, &s, "")
	if err != nil {
		t.Fatal(err)
	}
	m, err := l.NewMemory(shape)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	Of[float32](m)[3] = -1
	if err := l.Execute(bg, lease.Primitive(), Arg{Src, m}, Arg{Dst, m}); err != nil || Of[float32](m)[3] != 0 {
		t.Errorf("behind Close: %v, %v", Of[float32](m)[3], err)
	}
	s.Op.Algorithm = "tanh"
	if _, _, err := e.Descriptor(bg, &s); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("a new request: %v, want ErrClosed", err)
	}
	if _, err := l.NewMemory(shape); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("new memory: %v, want ErrClosed", err)
	}
	lease.End()
	if err := cache.Close(bg); err != nil {
		t.Error(err)
	}
	if l.Objects() == 0 {
		t.Error("the engine went while there was memory of it")
	}
	if m.Release(); l.Objects() != 0 {
		t.Errorf("%d objects are left", l.Objects())
	}
}

// C5, C2: primitives that come and go leave nothing.
func TestEvictions(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 500
	}
	r := open1(t, limit.Of(8))
	most := int64(0)
	for i := range n {
		shape := Dense("f32", int64(1+i/2), 4)
		s := spec("eltwise", "inference", []string{"relu", "abs"}[i%2], nil, shape, shape)
		lease, outcome, err := r.Primitive(bg, &s, "")
		if err != nil || outcome.Event != artefacts.Miss {
			t.Fatal(outcome.Event, err)
		}
		lease.End()
		if i%100 == 0 {
			if err := r.cache.Settle(bg); err != nil {
				t.Fatal(err)
			}
		}
		most = max(most, r.Objects())
	}
	t.Logf("%d primitives, at most %d objects at a time", n, most)
}

// Opening and closing leaves nothing.
func TestOpenClose(t *testing.T) {
	for range 1000 {
		l, err := Open(Config{Path: path(), Workers: 2})
		if errors.Is(err, fault.ErrUnavailable) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil || l.Objects() != 0 {
			t.Fatal(l.Objects(), err)
		}
	}
}

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
		if n := l.Objects(); n != 0 {
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
		for _, a := range lease.Primitive().Native().(*kernel).plan.args {
			m, err := l.NewMemory(a.tensor)
			if err != nil {
				return nil, err
			}
			defer m.Release()
			args = append(args, Arg{a.slot, m})
		}
		return d.Hints(), l.Execute(bg, lease.Primitive(), args...)
	}
	shape := Dense("f32", 4, 16)
	listed := spec("reduction", "", "sum", nil, shape, Dense("f32", 4, 1))
	for d, err := range e.All(bg, &listed) {
		if err != nil {
			return err
		}
		d.Release()
	}
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
		return err
	}
	image, pooled := Dense("f32", 1, 16, 9, 9), Dense("f32", 1, 16, 5, 5)
	x, w, y := Dense("f32", 4, 16), Dense("f32", 8, 16), Dense("f32", 4, 8)
	kernel := Dense("f32", 16, 16, 3, 3)
	window := append([]param{ints("kernel", 3, 3)}, spatial...)
	row := Dense("f32", 4)
	for _, pair := range [][]primitive.Spec{
		{product}, {whole}, {opaque}, {summed}, {reorder}, {sum}, {concat},
		{spec("binary", "", "add", nil, shape, shape, shape)},
		{listed},
		{spec("eltwise", "forward", "relu", nil, shape, shape), spec("eltwise", "backward_data", "relu", nil, shape, shape, shape)},
		{spec("softmax", "forward", "accurate", []param{ints("axis", 1)}, shape, shape), spec("softmax", "backward_data", "accurate", []param{ints("axis", 1)}, shape, shape, shape)},
		{spec("layer_normalization", "forward", "", nil, shape, shape, row), spec("layer_normalization", "backward_data", "", nil, shape, shape, shape, row)},
		{spec("pooling", "forward", "max", window, image, pooled), spec("pooling", "backward_data", "max", window, image, pooled)},
		{spec("inner_product", "forward", "", nil, x, w, tensor{}, y), spec("inner_product", "backward_data", "", nil, x, w, y), spec("inner_product", "backward_weights", "", nil, x, w, tensor{}, y)},
		{spec("convolution", "forward", "auto", spatial, image, kernel, tensor{}, pooled), spec("convolution", "backward_data", "direct", spatial, image, kernel, pooled),
			spec("convolution", "backward_weights", "direct", spatial, image, kernel, tensor{}, pooled)},
	} {
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
