package opencl_test

import (
	"math"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
	"github.com/kiln-cache/kiln/gpuexec/opencl"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// library is the backend, which may have no driver.
func library() ops.Library { return gpuexec.Find(opencl.Name).(ops.Library) }

// E8: the operations compute what package ops says, with bits that do not depend on
// what stands beside a row.
func TestOperations(t *testing.T) {
	devicetest.Operations(t, device(t).(ops.Library))
}

// K4: operations of one kind and flags have one source, whatever their dimensions,
// epsilon or scale; those of another kind or flags have another.
func TestOneSourceForEveryShape(t *testing.T) { generaltest.OneSource(t, library()) }

// A runtime compiles each program once for all shapes. Blobs are taken after a run
// with all numbers 0, which the programs survive on buffers of a number each.
func TestOneCompileForEveryShape(t *testing.T) {
	lib, programs := device(t).(ops.Library), generaltest.Programs()
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
func TestIdsOutsideOfTheTable(t *testing.T) { generaltest.Ids(t, device(t).(ops.Library)) }

// E3: a length below 0 or above the keys counts as all of them in a softmax, which then
// reads its own rows alone.
func TestLengthsOutsideOfTheKeys(t *testing.T) { generaltest.Lengths(t, device(t).(ops.Library)) }

// E5: a program has one grid, whatever the shape: PoCL runs it for two callers at once then. P6: the
// grid is small, since PoCL compiles other code for 2^16 blocks one way, which is in no blob.
func TestOneGridForEveryShape(t *testing.T) {
	lib := library()
	for _, op := range generaltest.Programs() {
		grid, _ := lib.Launch(op)
		if slices.Max(grid[:]) >= 1<<16 {
			t.Errorf("%s: a grid of %v", op, grid)
		}
		for _, by := range []int64{2, 5, 1000} {
			if other, _ := lib.Launch(generaltest.Scaled(op, by)); other != grid {
				t.Errorf("%s: a grid of %v, and of %v for dimensions that are %d times as large", op, grid, other, by)
			}
		}
	}
}

// E8: the bits do not depend on how many groups share the work.
func TestAnyNumberOfGroups(t *testing.T) {
	generaltest.Grids(t, device(t).(ops.Library), gpuexec.Size{1}, gpuexec.Size{3}, gpuexec.Size{64}, gpuexec.Size{500})
}

// E3: a weight is bounded as it lies on the device, its last panel filled up.
func TestSourceBoundsFilledWeight(t *testing.T) { generaltest.FilledWeight(t, library()) }

// B2: each program says the size of blocks that it is launched with, so that its blob has
// the code for it (docs/devices.md).
func TestProgramsSayTheirBlocks(t *testing.T) {
	lib := library()
	for _, op := range generaltest.Programs() {
		if code := must(lib.Source(op)).Spec.(gpuexec.Code); code.Block != (gpuexec.Size{1}) {
			t.Errorf("%s: blocks of %v, want one item", op, code.Block)
		}
	}
}

// Package ops: a driver has nothing to warn of. PoCL says on the process's stderr how many warnings it
// counts, such as of vectors of 16 numbers that are handed on where there is no AVX-512.
func TestProgramsWarnOfNothing(t *testing.T) {
	lib := library()
	for _, op := range generaltest.Programs() {
		if code := must(lib.Source(op)).Spec.(gpuexec.Code); !slices.Contains(code.Options, "-w") {
			t.Errorf("%s: its options are %q, want -w among them", op, code.Options)
		}
	}
}

// Package ops: numbers at the ends of their range, and what is none, give on this device
// what they give on cpu, whole and in the tail of a row.
func TestSpecialNumbers(t *testing.T) {
	generaltest.SpecialNumbers(t, device(t).(ops.Library), must(cpu.New("auto")))
}

// E8: gelu is as accurate as it says.
func TestGELUIsAccurate(t *testing.T) {
	lib := device(t).(ops.Library)
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = 20 * (float32(i)/float32(len(x)) - 0.5)
	}
	e, op := generaltest.Open(t, lib, 1), ops.New(ops.GELU, 1, int64(len(x)))
	b := upload(t, e, x)
	generaltest.Launch(t, e, lib, op, b, b)
	for i, got := range download[float32](t, e, b) {
		v := float64(x[i])
		want := v / 2 * math.Erfc(-v/math.Sqrt2)
		if off := math.Abs(float64(got) - want); !(off <= max(4e-7, 1.2e-7*math.Abs(want))) {
			t.Fatalf("gelu of %v is %v, want %v", v, got, want)
		}
	}
}

// BenchmarkOperations runs what MiniLM does at 128 tokens, and a wider product, in turns with cpu.
func BenchmarkOperations(b *testing.B) {
	generaltest.Beside(b, device(b).(ops.Library), must(cpu.New("auto")))
}
