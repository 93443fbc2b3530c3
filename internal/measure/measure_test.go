package measure

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{9, 1, 5}, Spread{5, 1, 9}},
		{[]float64{4, 1, 100, 2}, Spread{3, 1, 100}},
	} {
		given := slices.Clone(c.values)
		if got := SpreadOf(given); got != c.want {
			t.Errorf("SpreadOf(%v) = %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(given, c.values) {
			t.Errorf("SpreadOf changed the order of %v to %v", c.values, given)
		}
		if f := (Figure{}).From(given); f.Ratio != c.want.Median || f.Min != c.want.Min || f.Max != c.want.Max || f.N != len(given) {
			t.Errorf("From(%v) = %+v", given, f)
		}
	}
	if f := (Figure{}).From(nil); !math.IsNaN(f.Ratio) || !math.IsNaN(f.Min) || !math.IsNaN(f.Max) || f.N != 0 {
		t.Errorf("no rounds give %+v", f)
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for percent, want := range map[int]int{0: 1, 50: 50, 99: 99, 100: 100} {
		if got := Percentile(hundred, percent); got != want {
			t.Errorf("percentile %d of 1 to 100 = %d, want %d", percent, got, want)
		}
	}
	if got := Percentile([]int{7}, 99); got != 7 {
		t.Errorf("percentile of one = %d", got)
	}
	if got := Percentile([]int(nil), 50); got != 0 {
		t.Errorf("percentile of none = %d", got)
	}
}

// The median of the rounds' ratios is not the ratio of the medians: a round that
// was disturbed as a whole gives its true ratio.
func TestRatiosPairRounds(t *testing.T) {
	ours, peer := []float64{10, 100, 12}, []float64{20, 200, 24}
	if r := Ratios(ours, peer); !slices.Equal(r, []float64{0.5, 0.5, 0.5}) {
		t.Errorf("ratios = %v", r)
	}
	if r := Ratios([]float64{1, 2, 3}, []float64{2}); !slices.Equal(r, []float64{0.5}) {
		t.Errorf("ratios of unequal rounds = %v", r)
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
		{Figure{Ratio: 1, Allocs: 1, Gate: AtMost(2).Allocating(0)}, false},
		{Figure{Ratio: 1, Allocs: 8, Gate: AtMost(2).Allocating(8)}, true},
		{Figure{Ratio: math.NaN(), Gate: AtMost(2)}, false},
	} {
		if got := c.figure.Holds(); got != c.holds {
			t.Errorf("%+v with gate %v holds: %v", c.figure, c.figure.Gate, got)
		}
	}
}

// A gate without a bound for the ratio says nothing of it: it said ">= 0".
func TestGateSaysItsBounds(t *testing.T) {
	for _, c := range []struct {
		gate *Gate
		want string
	}{
		{AtMost(2), "<= 2"},
		{AtLeast(0.9).Allocating(0), ">= 0.9, 0 allocations"},
		{AtLeast(math.Inf(-1)).Allocating(0), "0 allocations"},
	} {
		if got := c.gate.String(); got != c.want {
			t.Errorf("%+v says %q, want %q", *c.gate, got, c.want)
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
		f, err := Figure{Gate: c.gate}.Take(context.Background(), 3, func() (float64, error) {
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
	_, err := Figure{}.Take(ctx, 9, func() (float64, error) {
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
	got, err := round(Quotient, []paced{{noisy, 10}, {still, 50}})
	if err != nil || got < 10 || got > 10.04 || n < agreeing*6 || n == mostTurns*slicesEach {
		t.Errorf("ratio %v after %d slices, %v", got, n, err)
	}
	n = 0
	odd := func(int) (time.Duration, error) { n++; return time.Duration(1 << min(n, 50)), nil }
	if _, err := round(Quotient, []paced{{odd, 1}, {still, 1}}); err != nil || n != mostTurns*slicesEach {
		t.Errorf("%d slices that do not agree, %v", n, err)
	}
	n = 0
	void := func([]float64) float64 { return math.NaN() }
	if _, err := round(void, []paced{{noisy, 1}}); err != nil || n != mostTurns*slicesEach {
		t.Errorf("%d slices that tell nothing, %v", n, err)
	}
	broken := errors.New("broken")
	if _, err := round(Quotient, []paced{{func(int) (time.Duration, error) { return 0, broken }, 1}}); !errors.Is(err, broken) {
		t.Errorf("a side that fails: %v", err)
	}
}

// All goroutines run at one time, and the time is that of the slower.
func TestTogether(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	var ran [2]bool
	began := time.Now()
	took := Together(2, func(g int) {
		both.Done()
		both.Wait() // for ever if the other one came later
		ran[g] = true
	})
	if !ran[0] || !ran[1] || took <= 0 || took != Disturbed && took > time.Since(began) {
		t.Errorf("ran %v in %v", ran, took)
	}
}

// Every side has its turns, the first place alternates, and the quickest turn of
// each counts.
func TestTurns(t *testing.T) {
	var order []int
	side := func(which int, took ...time.Duration) Side {
		return func(n int) (time.Duration, error) {
			if n != 7 {
				t.Errorf("%d operations, want 7", n)
			}
			order = append(order, which)
			one := took[0]
			took = took[1:]
			return one, nil
		}
	}
	best, err := Turns(context.Background(), 3, 7, side(0, 5, 3, 4), side(1, 2, 9, 8))
	if err != nil || !slices.Equal(best, []time.Duration{3, 2}) || !slices.Equal(order, []int{0, 1, 1, 0, 0, 1}) {
		t.Errorf("%v in the order %v, %v", best, order, err)
	}
	broken := errors.New("broken")
	if _, err := Turns(context.Background(), 1, 1, func(int) (time.Duration, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("a side that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Turns(ctx, 1, 1, side(0, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// An operation's time is that of the quickest slice.
func TestEach(t *testing.T) {
	slow := true
	each, err := Each(func(n int) (time.Duration, error) {
		if slow = !slow; slow {
			return time.Duration(n) * 50, nil
		}
		return time.Duration(n) * 10, nil
	}, time.Millisecond)
	if err != nil || each != 10 {
		t.Errorf("%v ns, %v", each, err)
	}
	if each, err = Each(func(int) (time.Duration, error) { return Disturbed, nil }, time.Millisecond); err != nil || !math.IsInf(each, 1) {
		t.Errorf("nothing but disturbed slices: %v, %v", each, err)
	}
}

// More goroutines than cores run once each, and a time is given or known to be none.
func TestCrowd(t *testing.T) {
	var ran [8]atomic.Int32
	took := Crowd(len(ran), func(g int) { ran[g].Add(1) })
	for g := range ran {
		if n := ran[g].Load(); n != 1 {
			t.Errorf("goroutine %d ran %d times", g, n)
		}
	}
	if took <= 0 {
		t.Errorf("took %v", took)
	}
}
