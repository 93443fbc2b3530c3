package onednn

import (
	"bytes"
	"context"
	"errors"
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

	if !slices.ContainsFunc(jobs, func(j job) bool { return j.p.Descriptor().Scratchpad() > 0 }) { // products of 3.2 have none with AVX2
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

// E3: memory has the sizes that it was made with: the caller's list of sizes, used again for the
// next one, makes it no larger.
func TestMemoryKeepsItsSizes(t *testing.T) {
	r := open1(t, limit.Limit{})
	sizes := []int64{1, 16}
	small := r.memory(Dense("f32", sizes...))
	sizes[0] = 4096
	large := r.memory(Dense("f32", sizes...))
	p := r.kernel(spec("eltwise", "inference", "abs", nil, Dense("f32", 4096, 16), Dense("f32", 4096, 16)))
	if err := r.Execute(bg, p, Arg{Src, small}, Arg{Dst, large}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("memory of %d bytes was taken for 4096 x 16: %v, want ErrInvalid", len(small.Bytes()), err)
	}
}

// K4, E3: two libraries on one artefact cache are each served, by a primitive of its own: the second
// was given the first's, which it cannot execute.
func TestTwoLibrariesOnOneCache(t *testing.T) {
	lib := need(t, 1)
	one := open1(t, limit.Limit{})
	two := engineOf(t, lib, one.cache)
	x := Dense("f32", 3, 4)
	s := spec("eltwise", "inference", "abs", nil, x, x)
	first := one.kernel(s)
	two.run(two.kernel(s), Arg{Src, two.memory(x)}, Arg{Dst, two.memory(x)})
	if again := one.kernel(s); again != first || one.cache.Len() != 2 {
		t.Errorf("%d entries, want one for each library", one.cache.Len())
	}
	if err := two.Execute(bg, first, Arg{Src, two.memory(x)}, Arg{Dst, two.memory(x)}); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "another library's") {
		t.Errorf("the first library's primitive: %v, want ErrInvalid that says whose it is", err)
	}
}

// engineOf is an engine on a library of its own, and on another's cache.
func engineOf(t *testing.T, lib *Library, cache *artefacts.Cache) *rig {
	t.Helper()
	e, err := primitive.Open(primitive.Config{Cache: cache, Library: lib, Backend: Name, Identity: lib.About().Identity})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{TB: t, Library: lib, cache: cache, Engine: e}
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
	if l.Len() == 0 {
		t.Error("the engine went while there was memory of it")
	}
	if m.Release(); l.Len() != 0 {
		t.Errorf("%d objects are left", l.Len())
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
		most = max(most, r.Len())
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
		if err := l.Close(); err != nil || l.Len() != 0 {
			t.Fatal(l.Len(), err)
		}
	}
}

// A look at the devices leaves no engine behind.
func TestDevicesLeaveNothing(t *testing.T) {
	b := backend(t)
	c := loaded.image.tables.base()
	make1, free := c.EngineMake, c.EngineFree
	defer func() { c.EngineMake, c.EngineFree = make1, free }()
	made, freed := 0, 0
	c.EngineMake = func(h *handle, kind int32, index uintptr) int32 { made++; return make1(h, kind, index) }
	c.EngineFree = func(h handle) int32 { freed++; return free(h) }
	if d := b.Devices(bg)[0]; !d.Available || made != 1 || freed != 1 {
		t.Errorf("%d engines were made and %d freed, want one: %s", made, freed, d.Reason)
	}
}

// C5: descriptors that were made in search of a layout's name are freed, those of the wrong
// names too.
func TestSearchOfALayoutLeavesNothing(t *testing.T) {
	l := need(t, 1)
	im, err := newImage(l.image.lib)
	if err != nil {
		t.Fatal(err)
	}
	table, ok := im.tables.(*table3)
	if !ok {
		t.Skip("2.x has no descriptors to free")
	}
	made, freed, tagged, free := 0, 0, table.DescTagged, table.DescFree
	table.DescTagged = func(md **memoryDesc, n int32, d *dims, dataType, tag int32) int32 {
		code := tagged(md, n, d, dataType, tag)
		if code == success {
			made++
		}
		return code
	}
	table.DescFree = func(md *memoryDesc) int32 { freed++; return free(md) }
	gaps := tensor{Type: "f32", Dims: []int64{2, 32, 4, 4}, Strides: []int64{9999, 256, 64, 16}, Blocks: []primitive.Block{{Dim: 1, Size: 16}}}
	if _, err := table.describe(&gaps); !errors.Is(err, fault.ErrUnsupported) || made == 0 || freed != made {
		t.Errorf("%d descriptors were made and %d freed: %v", made, freed, err)
	}
}

// A worker's scratch memory stays while it is large enough.
func TestScratchStays(t *testing.T) {
	l := need(t, 1)
	w := l.made[0]
	if err := w.grow(1000); err != nil {
		t.Fatal(err)
	}
	first, n := w.memory, int64(len(w.scratch))
	for _, size := range []int64{1000, 1, n} {
		if err := w.grow(size); err != nil || w.memory != first {
			t.Errorf("%d bytes of %d were made anew: %v", size, n, err)
		}
	}
	if err := w.grow(n + 1); err != nil || w.memory == first || int64(len(w.scratch)) <= n {
		t.Errorf("%d bytes behind %d: %v", len(w.scratch), n, err)
	}
}

// What is asked of the library for each primitive that is made is called without what translates
// any function's arguments: of a creation that evicts that was a third of the allocations.
func TestAllocationsOfACreation(t *testing.T) {
	r := open1(t, limit.Of(1))
	rows := int64(0)
	got := testing.AllocsPerRun(200, func() {
		rows++
		lease, _, err := r.Primitive(bg, &primitive.Spec{Kind: "reorder", Op: primitive.Operation{Tensors: []tensor{
			Dense("f32", rows, 4), {Type: "f32", Dims: []int64{rows, 4}, Strides: []int64{1, rows}}}}}, "")
		if err != nil {
			t.Fatal(err)
		}
		lease.End()
	})
	t.Log(got)
	if most := 120.0; got > most {
		t.Errorf("%v allocations, want at most %v", got, most)
	}
}
