package kernels_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

func TestValidate(t *testing.T) {
	nan := float32(math.NaN())
	for _, s := range []kernels.Spec{
		{}, specOf(200), specOf(ops.GELU, 0, 1), specOf(ops.GELU, 1, 0), specOf(ops.GELU, 1, 1, 1), specOf(ops.MatMul, 1, 1, 1),
		{Op: ops.Op{Kind: ops.GELU, Dims: specOf(ops.GELU, 1, 1).Dims, Epsilon: 1e-5}},
		layerNorm(1, 1, 0), layerNorm(1, 1, -1), layerNorm(1, 1, nan), layerNorm(1, 1, 2),
		specOf(ops.Add, 6, 1, 4), specOf(ops.Add, 6, 1, 12), specOf(ops.GELU, 1<<20, 1<<10), specOf(ops.Gather, 1, 1<<10, 1<<20),
		specOf(ops.Reorder, 1<<31, 1<<31, 1<<31, 1<<31),
	} {
		if err := s.Validate(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", s, err)
		}
		if b, err := s.Emit(); err == nil || b != nil {
			t.Errorf("%s was emitted", s)
		}
	}
	if err := specOf(ops.Softmax, 1, 1, 1, 1<<20).Validate(); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("a row of a million: %v", err) // E4
	}
}

// TestCalls: no call of BlocksPerCall blocks is meant to last half a millisecond
// (E4), and blocks are not so few that calls cost more than work.
func TestCalls(t *testing.T) {
	all := append(specs(3), specOf(ops.GELU, 512, 3072), specOf(ops.Softmax, 32, 12, 512, 512), layerNorm(4096, 768, 1e-12))
	for _, s := range all {
		n, cost := s.BlocksPerCall(), s.BlockCost()
		if n < 1 || n > s.Blocks() || time.Duration(n)*cost > 500*time.Microsecond {
			t.Errorf("%s: %d of %d blocks a call, %v each", s, n, s.Blocks(), cost)
		}
		if n < s.Blocks() && time.Duration(n)*cost < 50*time.Microsecond {
			t.Errorf("%s: a call of %d blocks lasts only %v", s, n, time.Duration(n)*cost)
		}
	}
}

// TestEmit: modules are deterministic and contain only what changes the code.
func TestEmit(t *testing.T) {
	emit := func(s kernels.Spec) []byte {
		t.Helper()
		b, err := s.Emit()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, s := range specs(4) {
		if !slices.Equal(emit(s), emit(s)) {
			t.Errorf("%s is emitted in two ways", s)
		}
	}
	for _, c := range []struct {
		a, b kernels.Spec
		same bool
	}{
		{specOf(ops.GELU, 14, 1536), specOf(ops.GELU, 128, 1536), true},
		{layerNorm(14, 384, 1e-12), layerNorm(128, 384, 1e-12), true},
		{layerNorm(14, 384, 1e-12), layerNorm(14, 384, 1e-5), false},
		{specOf(ops.Softmax, 1, 12, 14, 14), specOf(ops.Softmax, 8, 12, 14, 14), true},
		{specOf(ops.Softmax, 1, 12, 14, 14), specOf(ops.Softmax, 1, 12, 15, 15), false},
		{specOf(ops.Add, 128, 384, 128), specOf(ops.Add, 14, 384, 14), true},
		{specOf(ops.Add, 128, 384, 128), specOf(ops.Add, 12, 384, 3), true},
		{specOf(ops.Add, 128, 384, 128), specOf(ops.Add, 128, 385, 128), false},
	} {
		if same := slices.Equal(emit(c.a), emit(c.b)); same != c.same {
			t.Errorf("%s and %s share a module: %v", c.a, c.b, same)
		}
	}
}

// TestIdentity names the emitter and the compiler (P3).
func TestIdentity(t *testing.T) {
	id := kernels.Identity()
	if id == "" || id != kernels.Identity() || !strings.Contains(id, "emitter ") || !strings.Contains(id, "compiler ") {
		t.Errorf("identity %q", id)
	}
}
