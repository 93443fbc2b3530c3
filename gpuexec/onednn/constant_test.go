package onednn

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// kept is an engine of constants whose capacity the environment says.
func kept(t *testing.T, capacity string) *constants.Engine {
	t.Helper()
	said := env.Read(func(name string) (string, bool) {
		return capacity, name == "ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY"
	})
	cache, err := constants.Open(constants.Config{Capacity: [2]limit.Limit{said.CPUConstants.Value.Capacity, said.GPUConstants.Value.Capacity}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cache.Close(bg); err != nil {
			t.Error(err)
		}
	})
	e, err := cache.Engine(constants.CPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// weight gives the constant out of the cache, and counts what is made.
func (r *rig) weight(e *constants.Engine, numbers []float32, to primitive.Tensor, made *atomic.Int64) *constants.Lease {
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&numbers[0])), 4*len(numbers))
	c, err := r.Constant(r.Engine, raw, Dense("f32", to.Dims...), to)
	if err != nil {
		r.Error(err)
		return nil
	}
	l, _, err := e.Get(bg, constants.Key{ID: constants.Content(c.Parts...)}, c.Bytes, constants.Options{}, func(ctx context.Context) (constants.Value, error) {
		made.Add(1)
		m, err := c.Make(ctx)
		if err != nil {
			return constants.Value{}, err
		}
		return constants.Value{Any: m, Bytes: c.Bytes, Free: m.Release}, nil
	})
	if err != nil {
		r.Error(err)
		return nil
	}
	return l
}

// Two models with equal weights hold one copy of them, in the layout that the product
// wants; 8 goroutines of each compute it once, and other numbers are another constant:
// K5, T5, T8.
func TestOneConstantForEqualWeights(t *testing.T) {
	r, e := open1(t, limit.Limit{}), kept(t, "cpu:64")
	const k, n = 384, 1536
	d, _, err := r.Descriptor(bg, new(matmul(7, k, n, primitive.Tensor{Type: "f32", Dims: []int64{k, n}})))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Release()
	to := d.Tensors()[1]
	numbers := Of[float32](r.filled(1, Dense("f32", k, n)))
	models := [2][]float32{numbers, append([]float32(nil), numbers...)}
	var made atomic.Int64
	var all [16]*constants.Lease
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { all[i] = r.weight(e, models[i%2], to, &made) })
	}
	wg.Wait()
	for _, l := range all {
		if l == nil {
			t.FailNow()
		}
		if l.Value() != all[0].Value() {
			t.Error("a second copy")
		}
	}
	one := all[0].Value().(*Memory)
	if made.Load() != 1 || e.Len() != 1 || e.Size() != int64(len(one.Bytes())) {
		t.Errorf("%d were made, %d are kept in %d bytes, want one of %d", made.Load(), e.Len(), e.Size(), len(one.Bytes()))
	}
	models[1][0]++
	other := r.weight(e, models[1], to, &made)
	if made.Load() != 2 || bytes.Equal(other.Value().(*Memory).Bytes(), one.Bytes()) {
		t.Error("other numbers have the same constant")
	}
	other.End()
	p := r.kernel(*d.Spec())
	src, bias, dst := r.filled(2, Dense("f32", 7, k)), r.memory(Dense("f32", 1, n)), r.memory(Dense("f32", 7, n))
	r.run(p, Arg{Src, src}, Arg{Weights, one}, Arg{Bias, bias}, Arg{Dst, dst})
	near(t, "with the constant", Of[float32](dst), product(Of[float32](src), numbers, 7, k, n), 1e-4)
	for _, l := range all {
		l.End()
	}
}

// Without a capacity each has its own, and it is right: T2.
func TestConstantWithoutCapacity(t *testing.T) {
	r, e := open1(t, limit.Limit{}), kept(t, "cpu:0")
	turned := primitive.Tensor{Type: "f32", Dims: []int64{2, 3}, Strides: []int64{1, 2}}
	var made atomic.Int64
	for range 2 {
		l := r.weight(e, []float32{1, 2, 3, 4, 5, 6}, turned, &made)
		if l == nil {
			t.FailNow()
		}
		near(t, "turned", Of[float32](l.Value().(*Memory)), []float64{1, 4, 2, 5, 3, 6}, 0)
		l.End()
	}
	if made.Load() != 2 || e.Len() != 0 || e.Size() != 0 {
		t.Errorf("%d were made, %d are kept", made.Load(), e.Len())
	}
}

func TestConstantRefuses(t *testing.T) { // F2
	r := open1(t, limit.Limit{})
	for what, c := range map[string]struct {
		bytes    int
		from, to primitive.Tensor
	}{
		"too few numbers":  {20, Dense("f32", 2, 3), Dense("f32", 2, 3)},
		"too many numbers": {28, Dense("f32", 2, 3), Dense("f32", 2, 3)},
		"no layout given":  {24, primitive.Tensor{Type: "f32", Dims: []int64{2, 3}}, Dense("f32", 2, 3)},
		"another size":     {24, Dense("f32", 2, 3), Dense("f32", 3, 2)},
		"no layout wanted": {24, Dense("f32", 2, 3), primitive.Tensor{Type: "f32", Dims: []int64{2, 3}}},
	} {
		if _, err := r.Constant(r.Engine, make([]byte, c.bytes), c.from, c.to); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// T1, K5: a constant is what its Parts say, also where the caller's tensors change before Make.
func TestConstantKeepsItsLayouts(t *testing.T) {
	r := open1(t, limit.Limit{})
	const n = 8
	numbers := make([]byte, 4*n*n)
	for i := range numbers {
		numbers[i] = byte(i)
	}
	to := tensor{Type: "f32", Dims: []int64{n, n}, Strides: []int64{1, n}}
	c, err := r.Constant(r.Engine, numbers, Dense("f32", n, n), to)
	if err != nil {
		t.Fatal(err)
	}
	var made [2][]byte
	for i := range made {
		m, err := c.Make(bg)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Release()
		made[i] = m.Bytes()
		to.Strides[0], to.Strides[1] = n, 1 // the caller's list, for the next one
	}
	if !bytes.Equal(made[0], made[1]) {
		t.Error("one constant has other bytes in the second Make")
	}
}

// T3, K4: another build of the library may lay the same numbers out in another way.
func TestConstantOfAnotherBuild(t *testing.T) {
	r := open1(t, limit.Limit{})
	shape := Dense("f32", 2, 3)
	id := func() string {
		c, err := r.Constant(r.Engine, make([]byte, 24), shape, shape)
		if err != nil {
			t.Fatal(err)
		}
		return constants.Content(c.Parts...)
	}
	first, seen := r.about.Identity, make(map[string]bool)
	defer func() { r.about.Identity = first }()
	seen[id()] = true
	r.about.Identity.Build = "another"
	seen[id()] = true
	r.about.Identity = first
	r.about.Identity.Library = "oneDNN 4"
	if seen[id()] = true; len(seen) != 3 {
		t.Errorf("%d constants of three libraries", len(seen))
	}
}

// K5, E3: two libraries that keep their constants in one cache have one each: the second was given
// the first's memory, which it cannot execute.
func TestConstantsOfTwoLibraries(t *testing.T) {
	lib := need(t, 1)
	one, e := open1(t, limit.Limit{}), kept(t, "cpu:64")
	two := engineOf(t, lib, one.cache)
	turned := tensor{Type: "f32", Dims: []int64{2, 3}, Strides: []int64{1, 2}}
	s := spec("eltwise", "inference", "abs", nil, turned, turned)
	var made atomic.Int64
	for range 2 {
		for _, r := range []*rig{one, two} {
			l := r.weight(e, []float32{1, 2, 3, 4, 5, 6}, turned, &made)
			if l == nil {
				t.FailNow()
			}
			defer l.End()
			dst := r.memory(turned)
			r.run(r.kernel(s), Arg{Src, l.Value().(*Memory)}, Arg{Dst, dst})
			near(t, "turned", Of[float32](dst), []float64{1, 4, 2, 5, 3, 6}, 0)
		}
	}
	if made.Load() != 2 || e.Len() != 2 {
		t.Errorf("%d were made, %d are kept, want one for each library", made.Load(), e.Len())
	}
}
