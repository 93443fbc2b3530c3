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
)

// TestCanonical: the encoding round-trips, and each field alone changes it (K1, K4).
func TestCanonical(t *testing.T) {
	seen := map[string]kernels.Spec{}
	check := func(s kernels.Spec) {
		enc := string(s.Canonical())
		if other, ok := seen[enc]; ok && other != s {
			t.Errorf("%s and %s have one encoding", s, other)
		}
		seen[enc] = s
	}
	for _, s := range specs(2) {
		check(s)
		got, err := kernels.ParseSpec(s.Canonical())
		if err != nil || got != s {
			t.Fatalf("%s parses as %s (%v)", s, got, err)
		}
		for i := range s.Dims {
			if s.Dims[i] != 0 {
				changed := s
				changed.Dims[i] += 1000
				check(changed)
			}
		}
		changed := s
		changed.Epsilon += 0.5
		check(changed)
		b := s.Canonical()
		for n := range b {
			if _, err := kernels.ParseSpec(b[:n]); !errors.Is(err, fault.ErrInvalid) {
				t.Fatalf("%d of %d bytes of %s: %v", n, len(b), s, err)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	nan := float32(math.NaN())
	for _, s := range []kernels.Spec{
		{}, {Kind: 200}, kernels.GELU(0, 1), kernels.GELU(1, 0), {Kind: kernels.KindGELU, Dims: [4]uint32{1, 1, 1}},
		{Kind: kernels.KindGELU, Dims: [4]uint32{1, 1}, Epsilon: 1e-5},
		{Kind: kernels.KindGELU, Dims: [4]uint32{1, 1}, Epsilon: float32(math.Copysign(0, -1))},
		kernels.LayerNorm(1, 1, 0), kernels.LayerNorm(1, 1, -1), kernels.LayerNorm(1, 1, nan), kernels.LayerNorm(1, 1, 2),
		kernels.Add(6, 1, 4), kernels.Add(6, 1, 12), kernels.GELU(1<<20, 1<<10), kernels.Gather(1, 1<<10, 1<<20),
		kernels.Reorder(1<<31, 1<<31, 1<<31, 1<<31),
	} {
		if err := s.Validate(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", s, err)
		}
		if b, err := s.Emit(); err == nil || b != nil {
			t.Errorf("%s was emitted", s)
		}
	}
	if err := kernels.Softmax(1, 1, 1, 1<<20).Validate(); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("a row of a million: %v", err) // E4
	}
}

// TestCalls: no call of BlocksPerCall blocks is meant to last half a millisecond
// (E4), and blocks are not so few that calls cost more than work.
func TestCalls(t *testing.T) {
	all := append(specs(3), kernels.GELU(512, 3072), kernels.Softmax(32, 12, 512, 512), kernels.LayerNorm(4096, 768, 1e-12))
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
		{kernels.GELU(14, 1536), kernels.GELU(128, 1536), true},
		{kernels.LayerNorm(14, 384, 1e-12), kernels.LayerNorm(128, 384, 1e-12), true},
		{kernels.LayerNorm(14, 384, 1e-12), kernels.LayerNorm(14, 384, 1e-5), false},
		{kernels.Softmax(1, 12, 14, 14), kernels.Softmax(8, 12, 14, 14), true},
		{kernels.Softmax(1, 12, 14, 14), kernels.Softmax(1, 12, 15, 15), false},
		{kernels.Add(128, 384, 128), kernels.Add(14, 384, 14), true},
		{kernels.Add(128, 384, 128), kernels.Add(128, 384, 1), false},
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
