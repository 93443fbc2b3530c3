package figures

import (
	"context"
	"errors"
	"math"
	"testing"
)

func TestFrom(t *testing.T) {
	for _, c := range []struct {
		ratios             []float64
		median, least, top float64
	}{
		{[]float64{3}, 3, 3, 3},
		{[]float64{9, 1, 2}, 2, 1, 9},
		{[]float64{4, 1, 2, 9}, 3, 1, 9},
	} {
		if f := (Figure{}).From(c.ratios); f.Ratio != c.median || f.Min != c.least || f.Max != c.top || f.N != len(c.ratios) {
			t.Errorf("From(%v) = %+v", c.ratios, f)
		}
	}
	if f := (Figure{}).From(nil); !math.IsNaN(f.Ratio) {
		t.Errorf("no rounds give %v", f.Ratio)
	}
}

func TestGates(t *testing.T) {
	for _, c := range []struct {
		figure Figure
		holds  bool
	}{
		{Figure{Ratio: 9}, true},
		{Figure{Ratio: 2, Gate: AtMost(2)}, true},
		{Figure{Ratio: 2.1, Gate: AtMost(2)}, false},
		{Figure{Ratio: 0.9, Gate: AtLeast(0.9)}, true},
		{Figure{Ratio: 0.8, Gate: AtLeast(0.9)}, false},
		{Figure{Ratio: 1, Allocs: 1, Gate: free(2)}, false},
		{Figure{Ratio: math.NaN(), Gate: AtMost(2)}, false},
	} {
		if got := c.figure.Holds(); got != c.holds {
			t.Errorf("%+v with gate %v holds: %v", c.figure, c.figure.Gate, got)
		}
	}
}

func TestRoundsEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	_, err := rounds(ctx, 9, func() (float64, error) {
		if n++; n == 3 {
			cancel()
		}
		return 1, nil
	})
	if !errors.Is(err, context.Canceled) || n != 3 {
		t.Errorf("%d rounds, %v", n, err)
	}
}

// The read paths find what was loaded and allocate nothing.
func TestLoaded(t *testing.T) {
	l, err := load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer l.session.Close(context.Background())
	l.walk(0, l.fullFind)
	l.walk(1, l.peerFind)
	if n := missed.Swap(0); n != 0 {
		t.Errorf("%d lookups missed", n)
	}
	l.walk(0, func(int) bool { return false })
	if n := missed.Swap(0); n != int64(len(l.asked)) {
		t.Errorf("%d misses counted of %d", n, len(l.asked))
	}
}
