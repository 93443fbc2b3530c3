package main

import (
	"context"
	"errors"
	"flag"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/measure/incumbent"
)

// The request of the bench is the matmul that the peer looks up, whatever was built in its
// memory before.
func TestRequestOfAProblem(t *testing.T) {
	s, all := new(request), incumbent.Matmuls(128)
	s.build(&all[127])
	got, err1 := s.build(&all[4]).Key()
	want, err2 := (&primitive.Spec{Kind: "matmul", Engine: "cpu", Threads: 1, Scratchpad: "user",
		Op: primitive.Operation{Tensors: []primitive.Tensor{
			onednn.Dense("f32", 5, 384), onednn.Dense("f32", 384, 1536), onednn.Dense("f32", 1, 1536), onednn.Dense("f32", 5, 1536)}},
		Attr: primitive.Attributes{PostOps: []primitive.PostOp{{Kind: "eltwise", Algorithm: "gelu_erf"}}}}).Key()
	if err := errors.Join(err1, err2); err != nil || got != want {
		t.Errorf("%q, want %q, %v", got, want, err)
	}
}

// Both libraries take all problems of a model and of the passes, and each pass makes of ours
// what it says: an eviction each, nothing after a shrink to half but what went, and a cold
// model's distinct primitives. It runs in a process of its own: another test may have
// loaded another version of the library.
func TestPasses(t *testing.T) {
	const alone = "alone"
	if flag.Arg(0) != alone {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestPasses$", "-test.v", alone)
		switch text, err := cmd.CombinedOutput(); {
		case err != nil:
			t.Errorf("%v\n%s", err, text)
		case strings.Contains(string(text), "--- SKIP"):
			t.Skip(string(text))
		}
		return
	}
	const library = "../../.cache/onednn-3.13/libdnnl.so.3"
	r, err := openRivals(t.Context(), library)
	if errors.Is(err, fault.ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	names, all, err := namesOf("bert_base_uncased", 128)
	if err != nil || all != 224 || len(names) != 221 { // two gathers and a slice have no primitive
		t.Fatalf("%d of %d names, %v", len(names), all, err)
	}
	for _, p := range []struct {
		passes
		made string
	}{
		{evicting(64, nil), "made 64 of 64"},
		{shrinking(64, nil), "made 0 of 32"},
		{cold("bert", names, nil), "made 14 of 221"},
	} {
		out, err := p.measure(t.Context(), r)
		if err != nil || len(out) != 1 || out[0].N == 0 || !strings.Contains(out[0].Note, p.made) {
			t.Errorf("%s: %+v, %v: want %q", p.name, out, err, p.made)
		}
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
