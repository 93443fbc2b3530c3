//go:build linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/fakecuda"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// theirs is a cuBLAS made of Go, with what its calls are to do in a test.
var theirs = sync.OnceValue(func() *fakecuda.BLAS {
	b := fakecuda.NewBLAS(fake)
	l := must(bindBLAS(b.Symbol))
	openedBLAS.Store("made of Go", func() *cublas { return l })
	return b
})

// withBLAS is the backend with that cuBLAS, of which a call takes so many milliseconds, and a
// count of its products. What was measured before is forgotten.
func withBLAS(t testing.TB, cost float32) (b backend, products *atomic.Int64) {
	b, products = needFake(t), new(atomic.Int64)
	theirs().Cost = cost
	theirs().Fault = func(name string) int32 {
		if name == blasNames[blasProducts] {
			products.Add(1)
		}
		return success
	}
	most := mostSums
	mostSums = 1 << 12 // the kernel is interpreted
	choices.Clear()
	t.Cleanup(func() { mostSums, theirs().Fault = most, func(string) int32 { return success } })
	b.cfg.CUBLAS, b.cfg.InProcess = "made of Go", true
	return b, products
}

const (
	quick = 0.5  // quicker than a kernel with its 17 KiB
	slow  = 1000 // milliseconds of a call
)

// batch is a product of each head.
func batch(turned bool, scale float32, dims ...int64) ops.Op {
	op := ops.New(ops.BatchMatMul, dims...)
	op.TransposeB, op.Scale = turned, scale
	return op
}

// biased is a product with a bias.
func biased(dims ...int64) ops.Op {
	op := ops.New(ops.MatMul, dims...)
	op.Bias = true
	return op
}

// tensorsOf are the tensors of a product, out the last, and what out is to be. A weight is in
// panels, whose last is filled up with what nobody is to read.
func tensorsOf(op ops.Op) (all [][]float32, want []float32) {
	rnd := rand.New(rand.NewPCG(7, uint64(op.Kind)))
	for _, n := range general.Elements(op, panel) {
		numbers := make([]float32, n)
		for i := range numbers {
			numbers[i] = float32(rnd.NormFloat64())
		}
		all = append(all, numbers)
	}
	items, m, k, n, scale := int64(1), op.Dims[0], op.Dims[1], op.Dims[2], float64(1)
	if op.Kind == ops.BatchMatMul {
		items, m, k, n = op.Dims[0]*op.Dims[1], op.Dims[2], op.Dims[3], op.Dims[4]
		if op.Scale != 0 {
			scale = float64(op.Scale)
		}
	}
	right := func(item, i, column int64) float32 {
		switch {
		case op.Kind == ops.MatMul:
			return all[1][column/panel*panel*k+i*panel+column%panel]
		case op.TransposeB:
			return all[1][item*k*n+column*k+i]
		}
		return all[1][item*k*n+i*n+column]
	}
	for at := range items * m * n {
		row, column := at/n, at%n
		var sum float64
		for i := range k {
			sum += float64(all[0][row*k+i]) * float64(right(row/m, i, column))
		}
		if sum *= scale; op.Bias {
			sum += float64(all[2][column])
		}
		want = append(want, float32(sum))
	}
	return all, want
}

// run computes a product by a kernel of an executor.
func run(t testing.TB, e *gpuexec.Executor, op ops.Op, k *gpuexec.Kernel) (got, want []float32) {
	t.Helper()
	all, want := tensorsOf(op)
	var args []gpuexec.Arg
	var out *gpuexec.Buffer
	for _, numbers := range all {
		const before = 256 // bytes of the buffer that are not the tensor's
		out = must(e.Alloc(bg, before+int64(4*len(numbers))))
		defer out.Release()
		check(e.Write(bg, out, before, gpuexec.BytesOf(numbers)))
		args = append(args, gpuexec.PartArg(out, before, int64(4*len(numbers))))
	}
	grid, values := backend{}.Launch(op)
	check(e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: grid, Args: append(args, values...)}))
	return download[float32](t, e, out)[256/4:], want
}

// equal tells whether numbers are others but for their rounding.
func equal(got, want []float32) bool {
	return slices.EqualFunc(got, want, func(a, b float32) bool { return math.Abs(float64(a-b)) <= 1e-5+1e-4*math.Abs(float64(b)) })
}

// What cuBLAS computes is right: weights whose last panel is whole and not, biases, and
// batches with either right-hand side. Sums that lengths bound are not given to it.
func TestProductsOfCuBLAS(t *testing.T) {
	b, products := withBLAS(t, quick)
	e := generaltest.Open(t, b, 2)
	masked := batch(false, 0, 1, 1, 4, 4, 4)
	masked.MaskK = true
	for _, op := range []ops.Op{ops.New(ops.MatMul, 1, 1, 1), ops.New(ops.MatMul, 3, 5, 31), biased(17, 7, 32), biased(20, 33, 65), ops.New(ops.MatMul, 2, 64, 96),
		batch(false, 0, 2, 3, 5, 7, 9), batch(true, 0.25, 1, 2, 9, 4, 9), batch(true, 2, 3, 1, 1, 1, 1), masked} {
		k := compile(t, e, must(b.Source(op)))
		before := products.Load()
		if got, want := run(t, e, op, k); !op.MaskK && !equal(got, want) {
			t.Errorf("%s: %v, want %v", op, got, want)
		}
		if asked := products.Load() > before; asked == op.MaskK {
			t.Errorf("%s: cuBLAS was asked: %t", op, asked)
		}
	}
	if must(b.Source(masked)).Key != must(tested().Source(masked)).Key {
		t.Error("a sum that lengths bound has another key")
	}
}

// The quicker one computes, as it was measured first in this process, and another process
// finds that in the store: whatever it would have measured, it measures nothing.
func TestQuickerOneIsChosen(t *testing.T) {
	op := biased(3, 5, 40)
	asked := func(b backend, products *atomic.Int64, dir string) (asked bool, compiles, measured int64) {
		rt := must(kiln.Open(kiln.Config{StoreDir: dir}))
		defer func() { check(rt.Close(bg)) }()
		e := must(rt.Executor(bg, b, 0))
		group := must(must(rt.Session(kiln.SessionConfig{})).Group(bg, []int64{3}))
		defer group.Close()
		k := must(group.Kernel(bg, "product", e, must(b.Source(op))))
		before := products.Load()
		if got, want := run(t, e, op, k); !equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		return products.Load() > before, e.Stats().Compiles, before
	}
	for cost, want := range map[float32]bool{quick: true, slow: false} {
		b, products := withBLAS(t, cost)
		dir := t.TempDir()
		if theirs, compiles, measured := asked(b, products, dir); theirs != want || compiles != 1 || measured == 0 {
			t.Errorf("cost %v: cuBLAS was asked: %t, %d compiles, %d products measured", cost, theirs, compiles, measured)
		}
		theirs().Cost = quick + slow - cost
		products.Store(0)
		if theirs, compiles, measured := asked(b, products, ""); theirs != want || compiles != 1 || measured != 0 {
			t.Errorf("cost %v, compiled once more: cuBLAS was asked: %t, %d compiles, %d products measured", cost, theirs, compiles, measured)
		}
		b, products = withBLAS(t, quick+slow-cost)
		if theirs, compiles, measured := asked(b, products, dir); theirs != want || compiles != 0 || measured != 0 {
			t.Errorf("cost %v, from the store: cuBLAS was asked: %t, %d compiles, %d products measured", cost, theirs, compiles, measured)
		}
	}
}

// life is all that happens to a product's program: it is loaded, measured, and computes twice
// on two queues.
func life(b backend, src gpuexec.Source, blob []byte, op ops.Op) (outs [][]float32, err error) {
	opened, err := b.open(bg, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	d := opened.(*device)
	loaded, err := d.Load(bg, src, blob)
	if err != nil {
		return nil, err
	}
	p := loaded.(*program)
	choices.Clear()
	if err := d.choose(bg, p); err != nil {
		return nil, err
	}
	all, _ := tensorsOf(op)
	for range 2 {
		q, err := d.OpenQueue()
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, q.Close()) }()
		args, _, err := d.operands(op)
		if err != nil {
			return nil, err
		}
		for i, numbers := range all {
			if err := q.Write(args[i].Memory, 0, gpuexec.BytesOf(numbers)); err != nil {
				return nil, err
			}
		}
		grid, _ := backend{}.Launch(op)
		if err := q.Launch(bg, p, args, gpuexec.Size{grid[0], max(1, grid[1]), 1}, gpuexec.Size{productBlock, 1, 1}); err != nil {
			return nil, err
		}
		out := make([]float32, len(all[len(all)-1]))
		if err := cmp.Or(q.Read(args[len(all)-1].Memory, 0, gpuexec.BytesOf(out)), q.Finish(bg)); err != nil {
			return nil, err
		}
		outs = append(outs, out)
	}
	return outs, nil
}

// lives calls fn with the blob of a product, and holds what is left against what there was.
func lives(t *testing.T, b backend, op ops.Op, what string, fault func()) ([][]float32, error) {
	t.Helper()
	src := must(b.Source(op))
	blob := productBlob(t, b, op)
	before, live := native.Load(), fake.Live()
	fault()
	outs, err := life(b, src, blob, op)
	inject.Store(nil)
	if now := native.Load(); now != before || fake.Live() != live || fake.Current() {
		t.Fatalf("%s: %d objects are left, %d of the driver; a context on a thread: %t", what, now-before, fake.Live()-live, fake.Current())
	}
	return outs, err
}

var productBlobs sync.Map

func productBlob(t testing.TB, b backend, op ops.Op) []byte {
	src := must(b.Source(op))
	if blob, ok := productBlobs.Load(src.Key); ok {
		return slices.Clone(blob.([]byte))
	}
	e := must(gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1}))
	k := must(e.Compile(bg, src))
	blob := must(k.Blob(bg))
	k.Release()
	check(e.Close(bg))
	productBlobs.Store(src.Key, slices.Clone(blob))
	return blob
}

// Every call of cuBLAS may fail: the kernel computes instead, and from then on; nothing is
// left, and the device is not lost.
func TestEveryCallOfCuBLASMayFail(t *testing.T) {
	b, _ := withBLAS(t, quick)
	op := biased(3, 5, 40)
	_, want := tensorsOf(op)
	for _, name := range blasNames[1:] {
		for nth := range int64(64) {
			var calls, later atomic.Int64
			what := fmt.Sprintf("%s fails at call %d", name, nth)
			outs, err := lives(t, b, op, what, func() {
				theirs().Fault = func(called string) int32 {
					if called == name && calls.Add(1) == nth+1 {
						return 13
					}
					if calls.Load() > nth && called != blasNames[blasDestroy] && name != blasNames[blasDestroy] {
						later.Add(1)
					}
					return success
				}
			})
			if later.Load() > 0 {
				t.Errorf("%s: it is asked %d times more", what, later.Load())
			}
			for _, got := range outs {
				if !equal(got, want) {
					t.Errorf("%s: %v, want %v", what, got, want)
				}
			}
			if err != nil || len(outs) != 2 {
				t.Errorf("%s: %v", what, err)
			}
			if calls.Load() <= nth {
				break // there is no such call
			}
		}
	}
}

// Every call of the driver may fail while products are measured and computed: typed errors,
// right results, and nothing left.
func TestEveryCallMayFailWhileMeasuring(t *testing.T) {
	b, _ := withBLAS(t, quick)
	op := biased(3, 5, 40)
	_, want := tensorsOf(op)
	for f := range functions {
		for nth := int64(0); nth < 1000; nth += 1 + nth {
			code := []int32{illegalAddress, outOfMemory}[bits.OnesCount64(uint64(nth))%2] // nth is 0, 1, 3, 7 ...
			var calls atomic.Int64
			hook := func(called function) int32 {
				if called == f && calls.Add(1) == nth+1 {
					return code
				}
				return success
			}
			what := fmt.Sprintf("%s fails with %d at call %d", f, code, nth)
			outs, err := lives(t, b, op, what, func() { inject.Store(&hook) })
			if err != nil {
				typed(t, f, code, err)
			}
			for _, got := range outs {
				if !equal(got, want) {
					t.Errorf("%s: %v, want %v", what, got, want)
				}
			}
			if calls.Load() <= nth {
				break
			}
		}
	}
}

// E2: a cuBLAS that is not there changes nothing, and is no error.
func TestNoCuBLAS(t *testing.T) {
	plain, with := needFake(t), needFake(t)
	for _, path := range []string{"/nowhere/libcublas.so.13", "libKilnHasNone.so.1", "libc.so.6"} {
		with.cfg.CUBLAS = path
		op := biased(3, 5, 7)
		if a, b := must(plain.Source(op)), must(with.Source(op)); a.Key != b.Key {
			t.Errorf("%s: another key", path)
		}
		if a, b := plain.Devices(bg)[0], with.Devices(bg)[0]; fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("%s: %v, want %v", path, b, a)
		}
	}
}

// E2: what lies beside cuBLAS and is cut short is an error, as it is of the library itself: the
// loader would map what is not there.
func TestCuBLASBesideWhatIsCutShort(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "libcublas.so")
	check(os.WriteFile(filepath.Join(dir, "libcublas.so.13.1"), nil, 0o600))
	check(os.Symlink("libcublas.so.13.1", path))
	program := must(os.ReadFile(must(os.Executable())))
	check(os.WriteFile(filepath.Join(dir, "libcublasLt.so.13.1"), program[:1000], 0o600))
	if _, err := openBLAS(path); err == nil || !strings.Contains(err.Error(), "libcublasLt.so.13.1 of 1000 bytes") {
		t.Errorf("%v, want an error of libcublasLt", err)
	}
}

// K4, P8: what a choice was measured for is in the key, and with what in the identity.
func TestKeysOfMeasuredProducts(t *testing.T) {
	b, _ := withBLAS(t, 0.5)
	key := func(op ops.Op) string { return must(b.Source(op)).Key }
	for _, c := range []struct {
		a, b ops.Op
		same bool
	}{
		{biased(5, 64, 40), biased(8, 64, 40), true}, {biased(4, 64, 40), biased(5, 64, 40), false}, {biased(5, 64, 40), biased(5, 64, 41), false},
		{biased(5, 64, 40), ops.New(ops.MatMul, 5, 64, 40), false}, {batch(true, 1, 2, 3, 5, 6, 7), batch(true, 2, 1, 7, 8, 8, 8), true}, {batch(true, 1, 2, 3, 5, 6, 7), batch(false, 1, 2, 3, 5, 6, 7), false},
	} {
		if same := key(c.a) == key(c.b); same != c.same {
			t.Errorf("%s and %s have one key: %t", c.a, c.b, same)
		}
	}
	if row := b.Devices(bg)[0].Driver; !strings.HasSuffix(row, ", cuBLAS "+b.cublas().version) {
		t.Errorf("the device has the driver %q", row)
	}
	info, plain := b.Devices(bg)[0].Identity, tested().Devices(bg)[0].Identity
	if info.Library == plain.Library || info.Device == plain.Device {
		t.Errorf("the identity is %v, without cuBLAS %v", info, plain)
	}
	op := biased(5, 64, 40)
	if _, _, err := Compile(bg, b.cfg, must(b.Source(op)), 80); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("compiled without a device: %v", err)
	}
	if _, err := open(t, 1).Compile(bg, must(b.Source(op))); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("on a device that is open without: %v", err)
	}
	blob, d := productBlob(t, b, op), must(b.open(bg, 0)).(*device)
	defer func() { check(d.Close()) }()
	l := b.cublas()
	was := l.version
	defer func() { l.version = was }()
	l.version = "12.0.0"
	if _, err := d.Load(bg, must(b.Source(op)), blob); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("a choice of another cuBLAS: %v", err)
	}
}

// A measurement takes bounded memory and time, whatever the shape.
func TestMeasuredProductsAreBounded(t *testing.T) {
	for _, op := range []ops.Op{biased(128, 4096, 151936), ops.New(ops.MatMul, 1<<30+1, 1, 1), ops.New(ops.MatMul, 1, 1<<15, 1<<15), ops.New(ops.MatMul, 1<<13, 1<<13, 1<<13),
		batch(true, 1, 1, 1, 46000, 46000, 1), batch(false, 1, 1, 1, 46000, 46000, 46000), batch(false, 1, 40000, 40000, 1, 1, 1), batch(false, 1, 1, 1, 1, 1, 1<<30+1)} {
		check(general.Check(op, panel))
		got := measured(classOf(op))
		numbers, sums := int64(0), int64(1)
		for _, n := range general.Elements(got, panel) {
			numbers += n
		}
		for i := range got.Kind.Dims() {
			sums *= got.Dims[i]
		}
		if err := got.Validate(); err != nil || numbers > mostMeasured || sums > mostSums {
			t.Errorf("%s is measured as %s: %d numbers, %d sums, %v", op, got, numbers, sums, err)
		}
	}
	if got := measured(biased(128, 4096, 151936)); got.Dims[0] != 128 || got.Dims[1] != 4096 {
		t.Errorf("many rows are measured as %s", got)
	}
	if op := ops.New(ops.MatMul, 128, 768, 3072); measured(op) != op {
		t.Errorf("%s is measured as %s", op, measured(op))
	}
}
