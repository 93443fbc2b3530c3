package opencl_test

import (
	"errors"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/opencl"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// E8: the operations compute what package ops says, with bits that do not depend on
// what stands beside a row.
func TestOperations(t *testing.T) {
	devicetest.Operations(t, device(t).(ops.Library))
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
	lib := gpuexec.Find(opencl.Name).(ops.Library) // needs no driver
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
	lib := device(t).(ops.Library)
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
