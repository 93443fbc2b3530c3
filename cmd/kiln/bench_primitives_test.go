package main

import (
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// The request of the bench is the matmul that the peer looks up, whatever was built in its
// memory before.
func TestMatmulSpec(t *testing.T) {
	s := new(matmulSpec)
	s.build(127)
	got, err1 := s.build(4).Key()
	want, err2 := (&primitive.Spec{Kind: "matmul", Engine: "cpu", Threads: 1, Scratchpad: "user",
		Op: primitive.Operation{Tensors: []primitive.Tensor{
			onednn.Dense("f32", 5, 384), onednn.Dense("f32", 384, 1536), onednn.Dense("f32", 1, 1536), onednn.Dense("f32", 5, 1536)}},
		Attr: primitive.Attributes{PostOps: []primitive.PostOp{{Kind: "eltwise", Algorithm: "gelu_erf"}}}}).Key()
	if err := errors.Join(err1, err2); err != nil || got != want {
		t.Errorf("%q, want %q, %v", got, want, err)
	}
}

func TestBothRan(t *testing.T) {
	if r := bothRan([]float64{6, 2}); r != 3 {
		t.Errorf("6 by 2 is %v", r)
	}
	if r := bothRan([]float64{6, math.Inf(1)}); !math.IsNaN(r) {
		t.Errorf("a side that was disturbed all the time gives %v", r)
	}
}

// Without the library the bench says what is missing.
func TestBenchPrimitivesWithoutLibrary(t *testing.T) {
	t.Setenv("KILN_ONEDNN_LIBRARY", filepath.Join(t.TempDir(), "libdnnl.so.3"))
	if out, err := benchPrimitives(t.Context()); !errors.Is(err, fault.ErrUnavailable) || len(out) != 0 {
		t.Errorf("%v, %v", out, err)
	}
}
