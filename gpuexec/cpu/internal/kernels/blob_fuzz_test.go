package kernels_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// FuzzLoad: no input panics, and nothing but the blob itself is accepted (P4).
// Half of the runs get a right digest so that they reach what lies behind it;
// their machine code is left alone, since a digest is all that guards it.
func FuzzLoad(f *testing.F) {
	e := openEngine(f)
	sound := blobOf(f, e, specOf(ops.Add, 2, 4, 1))
	f.Add(sound, false)
	f.Add(sound[:100], true)
	f.Add([]byte("kilncpu\x01"), true)
	f.Fuzz(func(t *testing.T, in []byte, seal bool) {
		if seal && len(in) > 32 {
			in = reseal(in)
		}
		if len(in) >= len(sound)/2 && seal {
			return // may hold code of its own
		}
		p, err := e.Load(t.Context(), in)
		switch {
		case err == nil:
			if !slices.Equal(in, sound) {
				t.Errorf("accepted %x", in)
			}
			p.Close()
		case !errors.Is(err, fault.ErrRefused) && !errors.Is(err, fault.ErrInvalid):
			t.Errorf("untyped: %v", err)
		}
	})
}

// FuzzSpec: an operation that a blob names is emitted, or refused if it has no kernel.
func FuzzSpec(f *testing.F) {
	for _, s := range specs(1)[:17] {
		f.Add(s.String())
	}
	f.Add(ops.New(ops.MatMul, 1, 2, 3).String())
	f.Fuzz(func(t *testing.T, text string) {
		op, err := ops.Parse(text)
		if err != nil {
			return
		}
		s, ok := kernels.Of(op)
		invalid := s.Validate()
		if _, err := s.Emit(); (err == nil) != (ok && invalid == nil) {
			t.Errorf("%s is emitted with %v and %v", s, invalid, err)
		}
	})
}
