package figures

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"
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
		{Figure{Ratio: 1, Allocs: 1, Gate: AtMost(2).allocating(0)}, false},
		{Figure{Ratio: 1, Allocs: 8, Gate: AtMost(2).allocating(8)}, true},
		{Figure{Ratio: math.NaN(), Gate: AtMost(2)}, false},
	} {
		if got := c.figure.Holds(); got != c.holds {
			t.Errorf("%+v with gate %v holds: %v", c.figure, c.figure.Gate, got)
		}
	}
}

// A narrow miss is measured again, a wide one is not, and a void round tells
// nothing.
func TestTake(t *testing.T) {
	for _, c := range []struct {
		name   string
		gate   *Gate
		ratios []float64 // of the rounds, the last one again and again
		median float64
		rounds int
		holds  bool
	}{
		{"holds", AtMost(8), []float64{7}, 7, 3, true},
		{"no gate", nil, []float64{7}, 7, 3, true},
		{"narrowly missed, by noise", AtMost(8), []float64{9, 9, 9, 7}, 8, 6, true},
		{"narrowly missed", AtMost(8), []float64{9}, 9, 12, false},
		{"twice as slow", AtMost(8), []float64{14}, 14, 3, false},
		{"half as much", AtLeast(1.4), []float64{0.7}, 0.7, 3, false},
		{"void rounds", AtLeast(1.4), []float64{math.NaN(), 1.5, math.NaN(), 1.5}, 1.5, 5, true},
		{"missed between void rounds", AtLeast(1.4), []float64{math.NaN(), 0.5, math.NaN(), 0.5}, 0.5, 5, false},
		{"nothing but void rounds", AtLeast(1.4), []float64{math.NaN()}, 0, 3, true},
		{"too few rounds", AtLeast(1.4), []float64{0.5, 0.5, math.NaN()}, 0, 5, true},
	} {
		n := 0
		f, err := Figure{Gate: c.gate}.take(context.Background(), 3, func() (float64, error) {
			n++
			return c.ratios[min(n, len(c.ratios))-1], nil
		})
		told := (f.N == 0) == (f.Note != "" && f.Gate == nil)
		if err != nil || f.Ratio != c.median || n != c.rounds || f.Holds() != c.holds || !told {
			t.Errorf("%s: ratio %v after %d rounds, holds %v, %v", c.name, f.Ratio, n, f.Holds(), err)
		}
	}
}

func TestTakeEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	_, err := Figure{}.take(ctx, 9, func() (float64, error) {
		if n++; n == 3 {
			cancel()
		}
		return 1, nil
	})
	if !errors.Is(err, context.Canceled) || n != 3 {
		t.Errorf("%d rounds, %v", n, err)
	}
}

// A round is the quickest slice of each side, by the operation, found three
// times; it goes on while that tells nothing.
func TestRound(t *testing.T) {
	n := 0
	noisy := func(int) (time.Duration, error) { // disturbed five times of six
		if n++; n%6 != 0 {
			return 3000, nil
		}
		return time.Duration(1000 + n%5), nil
	}
	still := func(int) (time.Duration, error) { return 500, nil }
	got, err := round(quotient, []paced{{noisy, 10}, {still, 50}})
	if err != nil || got < 10 || got > 10.04 || n < agreeing*6 || n == mostTurns*slicesEach {
		t.Errorf("ratio %v after %d slices, %v", got, n, err)
	}
	n = 0
	odd := func(int) (time.Duration, error) { n++; return time.Duration(1 << min(n, 50)), nil }
	if _, err := round(quotient, []paced{{odd, 1}, {still, 1}}); err != nil || n != mostTurns*slicesEach {
		t.Errorf("%d slices that do not agree, %v", n, err)
	}
	n = 0
	void := func([]float64) float64 { return math.NaN() }
	if _, err := round(void, []paced{{noisy, 1}}); err != nil || n != mostTurns*slicesEach {
		t.Errorf("%d slices that tell nothing, %v", n, err)
	}
	broken := errors.New("broken")
	if _, err := round(quotient, []paced{{func(int) (time.Duration, error) { return 0, broken }, 1}}); !errors.Is(err, broken) {
		t.Errorf("a side that fails: %v", err)
	}
}

// All goroutines run at one time, and the time is that of the slower.
func TestTogether(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	var ran [2]bool
	began := time.Now()
	took := together(2, func(g int) {
		both.Done()
		both.Wait() // for ever if the other one came later
		ran[g] = true
	})
	if !ran[0] || !ran[1] || took <= 0 || took != disturbed && took > time.Since(began) {
		t.Errorf("ran %v in %v", ran, took)
	}
}

// The read paths find what was loaded, and a lookup that misses is an error.
func TestLoaded(t *testing.T) {
	l, err := load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer l.session.Close(context.Background())
	n := len(l.asked) + 1 // beyond the end, and on from the beginning
	for _, find := range []finder{l.fullFind, l.nameFind, l.internedFind, l.heldFind, l.peerFind} {
		if _, err := l.reads(1, find)(n); err != nil {
			t.Error(err)
		}
	}
	asked := 0
	lastMissed := func(places []int) int {
		if asked += len(places); asked == n {
			return 1
		}
		return 0
	}
	if _, err := l.reads(0, lastMissed)(n); err == nil || asked != n {
		t.Errorf("%d of %d asked, the last of them missed: %v", asked, n, err)
	}
}
