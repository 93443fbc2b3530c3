package onednn

import (
	"sync"
	"syscall"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// unassembled is a request that 3.2 lists, and whose primitive it fails to assemble on some
// processors.
func unassembled() primitive.Spec {
	x := Dense("s8", 1, 3, 1, 1)
	s := spec("softmax", "inference", "log", []param{ints("axis", 3)}, x, x)
	s.Attr.PostOps = []primitive.PostOp{
		{Kind: "binary", Algorithm: "lt", Source: tensor{Type: "f32", Dims: []int64{1, 3, 1, 1}, Strides: []int64{6, 2, 2, 6}}},
		{Kind: "eltwise", Algorithm: "relu", Alpha: 0.5},
	}
	return s
}

// F2: a primitive that cannot be assembled is one failure, and not that of what is made on its
// thread from then on: in 3.2 those failed as well, and a sum or a concatenation crashed.
func TestAssemblerFails(t *testing.T) {
	r := open1(t, limit.Limit{})
	s := unassembled()
	for d, err := range r.All(bg, &s) {
		if err != nil {
			break
		}
		lease, _, err := r.Make(bg, d, "")
		t.Log(d.Name(), err)
		if d.Release(); err == nil {
			lease.End()
		}
	}
	for n := int64(1); n < 40; n++ {
		x, y := Dense("s32", n, 4), tensor{Type: "s32", Dims: []int64{n, 4}, Strides: []int64{1, n}}
		s, err := primitive.Sum([]float64{1}, []tensor{x, y})
		if err != nil {
			t.Fatal(err)
		}
		src, dst := r.memory(x), r.memory(y)
		for i := range Of[int32](src) {
			Of[int32](src)[i] = int32(i)
		}
		r.run(r.kernel(s), Arg{Source(0), src}, Arg{Dst, dst})
		for i, got := range Of[int32](dst) {
			if want := int32(i%int(n)*4 + i/int(n)); got != want {
				t.Fatalf("number %d of %d x 4 is %d, want %d", i, n, got, want)
			}
		}
	}
}

// F2: the thread of a failure makes nothing more, and what fails on such a thread is made on
// another.
func TestThreadOfAFailure(t *testing.T) {
	l := need(t, 1)
	im, err := newImage(l.image.lib) // a table of its own, to break
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	failures, bad := 0, make(map[int]bool) // still to come; threads
	c := im.tables.base()
	create := c.Make
	c.Make = func(h *handle, pd handle) int32 {
		mu.Lock()
		if failures > 0 {
			failures--
			bad[syscall.Gettid()] = true
		}
		failed := bad[syscall.Gettid()]
		mu.Unlock()
		if failed {
			return runtimeError
		}
		return create(h, pd)
	}
	mine, err := open(im, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	cache, err := artefacts.Open(artefacts.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close(bg)
	r := engineOf(t, mine, cache)
	rows := int64(0)
	try := func() error {
		rows++
		s := spec("eltwise", "inference", "abs", nil, Dense("f32", rows, 4), Dense("f32", rows, 4))
		lease, _, err := r.Primitive(bg, &s, "")
		if err == nil {
			lease.End()
		}
		return err
	}
	for range 20 {
		failures = 2
		if err := try(); !answered(err, runtimeError) {
			t.Fatalf("%v, want what the library answered", err)
		}
		failures = 1
		for range 10 {
			if err := try(); err != nil {
				t.Fatalf("behind a failure on another thread: %v", err)
			}
		}
	}
}
