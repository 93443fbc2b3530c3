// Package generaltest tests backends whose program of an operation serves every shape:
// what internal/general promises of them. A test of a backend calls it by its own name.
package generaltest

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

var background = context.Background()

// Programs are operations that each need a program of their own.
func Programs() []ops.Op {
	norm := ops.New(ops.LayerNorm, 2, 3)
	norm.Epsilon = 1e-5
	biased := ops.New(ops.MatMul, 2, 3, 4)
	biased.Bias = true
	scores := ops.New(ops.BatchMatMul, 1, 2, 3, 4, 3)
	scores.TransposeB, scores.Scale = true, 0.25
	mixed := ops.New(ops.BatchMatMul, 1, 2, 3, 3, 4)
	mixed.MaskK = true
	return []ops.Op{ops.New(ops.Gather, 2, 3, 4), ops.New(ops.Add, 2, 3, 1), norm, ops.New(ops.MatMul, 2, 3, 4), biased, scores, mixed,
		ops.New(ops.Softmax, 1, 2, 3, 3), ops.New(ops.Reorder, 1, 2, 3, 4), ops.New(ops.GELU, 2, 3), ops.New(ops.Tanh, 2, 3), ops.New(ops.Slice, 1, 2, 3),
		ops.New(ops.Attention, 2, 3, 4, 1)}
}

// Scaled is an operation with other dimensions, epsilon and scale.
func Scaled(op ops.Op, by int64) ops.Op {
	for i := range op.Kind.Dims() {
		op.Dims[i] *= by
	}
	op.Epsilon, op.Scale = op.Epsilon/float32(by), op.Scale*float32(by)
	return op
}

// OneSource tests that operations of one kind and flags have one source, whatever their
// dimensions, epsilon or scale, and that those of another kind or flags have another. It
// needs no driver.
func OneSource(t *testing.T, lib ops.Library) {
	seen := make(map[string]ops.Op)
	for _, op := range Programs() {
		a, err := lib.Source(op)
		if err != nil {
			t.Fatal(err)
		}
		b, err := lib.Source(Scaled(op, 5))
		if err != nil || a.Key != b.Key {
			t.Errorf("%s and %s have other keys, %v", op, Scaled(op, 5), err)
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

// Ids tests that an id outside of the table reads nothing: its row is 0, whatever lies
// behind the table.
func Ids(t *testing.T, lib ops.Library) {
	e, op := Open(t, lib, 1), ops.New(ops.Gather, 4, 3, 2)
	ids, table, out := Upload(t, e, []int32{2, -1, 1, 0}), Upload(t, e, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}), Upload(t, e, make([]float32, 12))
	Launch(t, e, lib, op, ids, table, out)
	if got, want := Download[float32](t, e, out), []float32{0, 0, 0, 0, 0, 0, 4, 5, 6, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Lengths tests that a length below 0 or above the keys counts as all of them in a softmax,
// which then reads its own rows alone.
func Lengths(t *testing.T, lib ops.Library) {
	e, op := Open(t, lib, 1), ops.New(ops.Softmax, 2, 1, 1, 3)
	x := Upload(t, e, []float32{1, 2, 3, 9, 9, 9})
	run := func(length int32) []float32 {
		lengths, out := Upload(t, e, []int32{length, 3}), Upload(t, e, make([]float32, 6))
		Launch(t, e, lib, op, x, lengths, out)
		return Download[float32](t, e, out)
	}
	want := run(3)
	for _, length := range []int32{-1, 4, 6} {
		if got := run(length); !slices.Equal(got, want) {
			t.Errorf("length %d: %v, want %v", length, got, want)
		}
	}
}

// FilledWeight tests that a weight is bounded as it lies on the device, its last panel
// filled up. It needs no driver.
func FilledWeight(t *testing.T, lib ops.Library) {
	if _, err := lib.Source(ops.New(ops.MatMul, 1, 1<<27, 1)); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("2^32 numbers in panels: %v, want ErrUnsupported", err)
	}
}

// SpecialNumbers tests that numbers at the ends of their range, and what is none, give on
// this device what they give on another, whole and in the tail of a row.
func SpecialNumbers(t *testing.T, lib, other ops.Library) {
	inf := float32(math.Inf(1))
	numbers := []float32{0, 1e-45, 1e-40, 1.1754944e-38, 1e-20, 1e-3, 0.5, 1, 3, 5, 6, 10, 15.5, 16, 17, 88, 103.5, 3.4e38, inf}
	for _, v := range slices.Clone(numbers) {
		numbers = append(numbers, -v)
	}
	numbers = append(numbers, float32(math.NaN()))
	n := int64(len(numbers))
	for _, op := range []ops.Op{ops.New(ops.GELU, 1, n), ops.New(ops.GELU, n, 1), ops.New(ops.Tanh, 1, n), ops.New(ops.Tanh, n, 1)} {
		var outputs [2][]float32
		for i, lib := range []ops.Library{lib, other} {
			e := Open(t, lib, 1)
			b := Upload(t, e, numbers)
			Launch(t, e, lib, op, b, b) // in place
			outputs[i] = Download[float32](t, e, b)
		}
		for i, want := range outputs[1] {
			got := outputs[0][i]
			if same := got == want || got != got && want != want; !same && !(math.Abs(float64(got-want)) <= 1e-6+1e-4*math.Abs(float64(want))) {
				t.Errorf("%s of %v is %v, on %s %v", op, numbers[i], got, other.Name(), want)
			}
		}
	}
}
