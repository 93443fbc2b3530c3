package versus

import (
	"context"
	"errors"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/gemm"
	"github.com/kiln-cache/kiln/internal/measure"
)

// The two sides give the same product and every figure is filled in; without
// the library the answer is fault.ErrUnavailable (E2).
func TestCompare(t *testing.T) {
	r, err := Compare(t.Context(), Config{M: 5, K: 40, N: 70, Rounds: 2, Weights: 3})
	if errors.Is(err, fault.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Set != gemm.Best().Name() || r.Peer == "" {
		t.Errorf("compared %q with %q", r.Set, r.Peer)
	}
	for _, s := range []measure.Spread{r.Ours, r.Theirs, r.Ratio} {
		if !(0 < s.Min && s.Min <= s.Median && s.Median <= s.Max) {
			t.Errorf("spread %+v", s)
		}
	}
	if _, err := openPeer("", gemm.Best().Name() == "avx512"); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("the width of vectors chosen twice: %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compare(ctx, Config{M: 5, K: 40, N: 70, Rounds: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestInvalid(t *testing.T) {
	for _, c := range []Config{{K: 1, N: 1}, {M: 1, N: 1}, {M: 1, K: 1}, {M: 1, K: 1, N: 1, Rounds: -1}, {M: 1, K: 1, N: 1, Weights: -1}} {
		if _, err := Compare(t.Context(), c); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
