package figures

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Figure is one line of `kiln bench`: median, least and most ratio over N rounds.
type Figure struct {
	Bench      string  `json:"bench"`
	RatioTo    string  `json:"ratio_to"`
	Ratio      float64 `json:"ratio"`
	Min        float64 `json:"min"`
	Max        float64 `json:"max"`
	Allocs     float64 `json:"allocs"` // of one operation
	Goroutines int     `json:"goroutines"`
	N          int     `json:"n"`

	Gate *Gate  `json:"-"` // nil = none
	Note string `json:"-"` // for people
}

// Gate is what a figure must hold.
type Gate struct {
	Least, Most float64 // of the ratio
	NoAllocs    bool
}

// AtMost is a gate for what should be small, AtLeast for what should be large.
func AtMost(ratio float64) *Gate  { return &Gate{Least: math.Inf(-1), Most: ratio} }
func AtLeast(ratio float64) *Gate { return &Gate{Least: ratio, Most: math.Inf(1)} }

// free is AtMost for a path that must not allocate either.
func free(ratio float64) *Gate {
	g := AtMost(ratio)
	g.NoAllocs = true
	return g
}

// Holds reports whether the figure is within its gate; true without one.
func (f Figure) Holds() bool {
	g := f.Gate
	return g == nil || f.Ratio >= g.Least && f.Ratio <= g.Most && !(g.NoAllocs && f.Allocs >= 1)
}

// String is what the gate asks.
func (g *Gate) String() string {
	text := fmt.Sprintf("<= %g", g.Most)
	if !math.IsInf(g.Least, -1) {
		text = fmt.Sprintf(">= %g", g.Least)
	}
	if g.NoAllocs {
		text += ", no allocations"
	}
	return text
}

// From fills in the median and extremes of the rounds' ratios.
func (f Figure) From(ratios []float64) Figure {
	sorted := slices.Sorted(slices.Values(ratios))
	n := len(sorted)
	if f.N = n; n == 0 {
		f.Ratio, f.Min, f.Max = math.NaN(), math.NaN(), math.NaN()
		return f
	}
	f.Ratio, f.Min, f.Max = (sorted[(n-1)/2]+sorted[n/2])/2, sorted[0], sorted[n-1]
	return f
}

// rounds calls round n times and collects its ratios; it ends early with ctx.
func rounds(ctx context.Context, n int, round func() (float64, error)) ([]float64, error) {
	var ratios []float64
	for range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r, err := round()
		if err != nil {
			return nil, err
		}
		ratios = append(ratios, r)
	}
	return ratios, nil
}

// Quickest is the time of the quickest of n calls: other work on the machine
// only ever adds.
func Quickest(n int, f func() error) (time.Duration, error) {
	best := time.Duration(math.MaxInt64)
	for range n {
		began := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		best = min(best, time.Since(began))
	}
	return best, nil
}

// side runs f in each of n goroutines, released at once, and gives the time
// until the last has ended.
func side(n int, f func(goroutine int)) time.Duration {
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	for g := range n {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			ready.Done()
			<-release
			f(g)
		}()
	}
	ready.Wait()
	began := time.Now()
	close(release)
	done.Wait()
	return time.Since(began)
}

// allocations of one call of f, the mean of many.
func allocations(f func()) float64 {
	const calls = 1000
	f()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		f()
	}
	runtime.ReadMemStats(&after)
	return math.Floor(float64(after.Mallocs-before.Mallocs) / calls)
}
