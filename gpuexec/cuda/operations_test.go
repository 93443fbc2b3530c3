//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// E8: the operations compute what package ops says, with bits that do not depend on
// what stands beside a row.
func TestOperations(t *testing.T) {
	devicetest.Operations(t, need(t))
}

// programs are operations that each need a program of their own.
func programs() []ops.Op {
	norm := ops.New(ops.LayerNorm, 2, 3)
	norm.Epsilon = 1e-5
	biased := ops.New(ops.MatMul, 2, 3, 4)
	biased.Bias = true
	scores := ops.New(ops.BatchMatMul, 1, 2, 3, 4, 3)
	scores.TransposeB, scores.Scale = true, 0.25
	mixed := ops.New(ops.BatchMatMul, 1, 2, 3, 3, 4)
	mixed.MaskK = true
	return []ops.Op{ops.New(ops.Gather, 2, 3, 4), ops.New(ops.Add, 2, 3, 1), norm, ops.New(ops.MatMul, 2, 3, 4), biased, scores, mixed,
		ops.New(ops.Softmax, 1, 2, 3, 3), ops.New(ops.Reorder, 1, 2, 3, 4), ops.New(ops.GELU, 2, 3), ops.New(ops.Tanh, 2, 3), ops.New(ops.Slice, 1, 2, 3)}
}

// scaled is an operation with other dimensions, epsilon and scale.
func scaled(op ops.Op, by int64) ops.Op {
	for i := range op.Kind.Dims() {
		op.Dims[i] *= by
	}
	op.Epsilon, op.Scale = op.Epsilon/float32(by), op.Scale*float32(by)
	return op
}

// K4: operations of one kind and flags have one source, whatever their dimensions,
// epsilon or scale; those of another kind or flags have another.
func TestOneSourceForEveryShape(t *testing.T) {
	lib := backend{}
	seen := make(map[string]ops.Op)
	for _, op := range programs() {
		a, err := lib.Source(op)
		if err != nil {
			t.Fatal(err)
		}
		b, err := lib.Source(scaled(op, 5))
		if err != nil || a.Key != b.Key {
			t.Errorf("%s and %s have other keys, %v", op, scaled(op, 5), err)
		}
		if twin, twice := seen[a.Key]; twice {
			t.Errorf("%s and %s have one key", op, twin)
		}
		seen[a.Key] = op
	}
	if _, err := lib.Source(ops.New(ops.GELU, 1<<31, 1)); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("2^31 elements: %v, want ErrUnsupported", err)
	}
}

// A runtime compiles each program once for all shapes. Blobs are taken after a run
// with all numbers 0, which the programs survive on buffers of a number each.
func TestOneCompileForEveryShape(t *testing.T) {
	lib := need(t)
	rt, err := kiln.Open(kiln.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(bg)
	e, session := must(rt.Executor(bg, lib, 0)), must(rt.Session(kiln.SessionConfig{}))
	for by := range int64(3) {
		group := must(session.Group(bg, []int64{1 + by}))
		defer group.Close()
		for _, op := range programs() {
			src := must(lib.Source(scaled(op, 1+by)))
			kernel, err := group.Kernel(bg, op.String(), e, src)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kernel.Blob(bg); err != nil {
				t.Errorf("%s: %v", op, err)
			}
		}
	}
	if n := e.Stats().Compiles; n != int64(len(programs())) {
		t.Errorf("%d compiles for %d programs of three shapes each", n, len(programs()))
	}
}

// E3: an id outside of the table reads nothing: its row is 0, whatever lies behind the table.
func TestIdsOutsideOfTheTable(t *testing.T) {
	lib, e := need(t), open(t, 1)
	op := ops.New(ops.Gather, 4, 3, 2)
	k := compile(t, e, must(lib.Source(op)))
	ids, table, out := upload(t, e, []int32{2, -1, 1, 0}), upload(t, e, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}), upload(t, e, make([]float32, 12))
	grid, values := lib.Launch(op)
	args := append([]gpuexec.Arg{gpuexec.BufferArg(ids), gpuexec.BufferArg(table), gpuexec.BufferArg(out)}, values...)
	if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: grid, Args: args}); err != nil {
		t.Fatal(err)
	}
	if got, want := download[float32](t, e, out), []float32{0, 0, 0, 0, 0, 0, 4, 5, 6, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// E3: a length below 0 or above the keys counts as all of them in a softmax, which then
// reads its own rows alone.
func TestLengthsOutsideOfTheKeys(t *testing.T) {
	lib, e := need(t), open(t, 1)
	op := ops.New(ops.Softmax, 2, 1, 1, 3)
	k := compile(t, e, must(lib.Source(op)))
	grid, values := lib.Launch(op)
	x := upload(t, e, []float32{1, 2, 3, 9, 9, 9})
	run := func(length int32) []float32 {
		lengths, out := upload(t, e, []int32{length, 3}), upload(t, e, make([]float32, 6))
		args := append([]gpuexec.Arg{gpuexec.BufferArg(x), gpuexec.BufferArg(lengths), gpuexec.BufferArg(out)}, values...)
		if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: grid, Args: args}); err != nil {
			t.Fatal(err)
		}
		return download[float32](t, e, out)
	}
	want := run(3)
	for _, length := range []int32{-1, 4, 6} {
		if got := run(length); !slices.Equal(got, want) {
			t.Errorf("length %d: %v, want %v", length, got, want)
		}
	}
}

// E3: no grid is larger than a device takes: 65535 blocks in the second and third direction.
func TestGridsAreSmall(t *testing.T) {
	for _, op := range programs() {
		for i := range op.Kind.Dims() {
			large := op
			large.Dims[i] <<= 24
			if grid, _ := (backend{}).Launch(large); slices.Max(grid[:]) > mostBlocks {
				t.Errorf("%s: a grid of %v", large, grid)
			}
		}
	}
}

// E3: a weight is bounded as it lies on the device, its last panel filled up.
func TestSourceBoundsFilledWeight(t *testing.T) {
	lib := backend{}
	if _, err := lib.Source(ops.New(ops.MatMul, 1, 1<<27, 1)); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("2^32 numbers in panels: %v, want ErrUnsupported", err)
	}
}

// E8: few rows and many go through tiles of other sizes, and a row has the same bits in both.
func TestFewRowsAndMany(t *testing.T) {
	lib, e := need(t), open(t, 1)
	rnd := rand.New(rand.NewPCG(1, 2))
	numbers := func(n int64) []float32 {
		list := make([]float32, n)
		for i := range list {
			list[i] = float32(rnd.NormFloat64())
		}
		return list
	}
	for _, shape := range [][2]int64{{1, 1}, {31, 33}, {32, 64}, {257, 65}, {300, 5}} {
		k, n := shape[0], shape[1]
		x, weight := numbers((few+1)*k), numbers(k*n)
		product := func(m int64) []float32 {
			op := ops.New(ops.MatMul, m, k, n)
			prepared := must(lib.Prepare(op))
			packed := make([]byte, prepared.Bytes)
			check(prepared.Fill(packed, weight))
			b := must(e.Alloc(bg, prepared.Bytes))
			defer b.Release()
			check(e.Write(bg, b, 0, packed))
			in, out := upload(t, e, x[:m*k]), upload(t, e, make([]float32, m*n))
			grid, values := lib.Launch(op)
			args := append([]gpuexec.Arg{gpuexec.BufferArg(in), gpuexec.BufferArg(b), gpuexec.BufferArg(out)}, values...)
			check(e.Submit(bg, gpuexec.Launch{Kernel: compile(t, e, must(lib.Source(op))), Grid: grid, Args: args}))
			return download[float32](t, e, out)
		}
		if got, want := product(few), product(few + 1)[:few*n]; !slices.Equal(got, want) {
			t.Errorf("k %d, n %d: %d rows have other bits than one more", k, n, few)
		}
	}
}

// Package ops: numbers at the ends of their range, and what is none, give on this device
// what they give on cpu, whole and in the tail of a row.
func TestSpecialNumbers(t *testing.T) {
	inf := float32(math.Inf(1))
	numbers := []float32{0, 1e-45, 1e-40, 1.1754944e-38, 1e-20, 1e-3, 0.5, 1, 3, 5, 6, 10, 15.5, 16, 17, 88, 103.5, 3.4e38, inf}
	for _, v := range slices.Clone(numbers) {
		numbers = append(numbers, -v)
	}
	numbers = append(numbers, float32(math.NaN()))
	n := int64(len(numbers))
	for _, op := range []ops.Op{ops.New(ops.GELU, 1, n), ops.New(ops.GELU, n, 1), ops.New(ops.Tanh, 1, n), ops.New(ops.Tanh, n, 1)} {
		var outputs [2][]float32
		for i, lib := range []ops.Library{need(t), must(cpu.New("auto"))} {
			e := must(gpuexec.Open(bg, gpuexec.Config{Backend: lib, Workers: 1}))
			defer e.Close(bg)
			b := upload(t, e, numbers)
			grid, values := lib.Launch(op)
			args := append([]gpuexec.Arg{gpuexec.BufferArg(b), gpuexec.BufferArg(b)}, values...) // in place
			check(e.Submit(bg, gpuexec.Launch{Kernel: compile(t, e, must(lib.Source(op))), Grid: grid, Args: args}))
			outputs[i] = download[float32](t, e, b)
		}
		for i, want := range outputs[1] {
			got := outputs[0][i]
			if same := got == want || got != got && want != want; !same && !(math.Abs(float64(got-want)) <= 1e-6+1e-4*math.Abs(float64(want))) {
				t.Errorf("%s of %v is %v, on cpu %v", op, numbers[i], got, want)
			}
		}
	}
}
