//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// E8: the operations compute what package ops says, with bits that do not depend on
// what stands beside a row.
func TestOperations(t *testing.T) {
	devicetest.Operations(t, need(t))
}

// K4: operations of one kind and flags have one source, whatever their dimensions,
// epsilon or scale; those of another kind or flags have another.
func TestOneSourceForEveryShape(t *testing.T) { generaltest.OneSource(t, backend{}) }

// A runtime compiles each program once for all shapes. Blobs are taken after a run
// with all numbers 0, which the programs survive on buffers of a number each.
func TestOneCompileForEveryShape(t *testing.T) {
	lib, programs := need(t), generaltest.Programs()
	rt := must(kiln.Open(kiln.Config{}))
	defer rt.Close(bg)
	e, session := must(rt.Executor(bg, lib, 0)), must(rt.Session(kiln.SessionConfig{}))
	for by := range int64(3) {
		group := must(session.Group(bg, []int64{1 + by}))
		defer group.Close()
		for _, op := range programs {
			kernel := must(group.Kernel(bg, op.String(), e, must(lib.Source(generaltest.Scaled(op, 1+by)))))
			if _, err := kernel.Blob(bg); err != nil {
				t.Errorf("%s: %v", op, err)
			}
		}
	}
	if n := e.Stats().Compiles; n != int64(len(programs)) {
		t.Errorf("%d compiles for %d programs of three shapes each", n, len(programs))
	}
}

// E3: an id outside of the table reads nothing: its row is 0, whatever lies behind the table.
func TestIdsOutsideOfTheTable(t *testing.T) { generaltest.Ids(t, need(t)) }

// E3: a length below 0 or above the keys counts as all of them in a softmax, which then
// reads its own rows alone.
func TestLengthsOutsideOfTheKeys(t *testing.T) { generaltest.Lengths(t, need(t)) }

// E3: no grid is larger than a device takes: 65535 blocks in the second and third direction.
func TestGridsAreSmall(t *testing.T) {
	for _, op := range generaltest.Programs() {
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
func TestSourceBoundsFilledWeight(t *testing.T) { generaltest.FilledWeight(t, backend{}) }

// A head wider than a block has registers for is refused.
func TestSourceBoundsHeads(t *testing.T) {
	for width, want := range map[int64]error{mostWidth: nil, mostWidth + 1: fault.ErrUnsupported} {
		if _, err := (backend{}).Source(ops.New(ops.Attention, 2, 3, width, 2)); !errors.Is(err, want) {
			t.Errorf("a head of %d numbers: %v, want %v", width, err, want)
		}
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
func TestSpecialNumbers(t *testing.T) { generaltest.SpecialNumbers(t, need(t), must(cpu.New("auto"))) }
