package measure

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
)

// Spread is what is shown of values over the rounds: their median, the least and
// the most of them. All are NaN without any value.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf leaves the order of the values as it is.
func SpreadOf(values []float64) Spread {
	n := len(values)
	if n == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(values))
	return Spread{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

// Ratios divides round by round, for as many rounds as both have. The median of
// these is the figure, not the ratio of two medians: a round that was disturbed as
// a whole still gives its true ratio.
func Ratios(of, to []float64) []float64 {
	out := make([]float64, min(len(of), len(to)))
	for i := range out {
		out[i] = of[i] / to[i]
	}
	return out
}

// Percentile is the least of the sorted values that this percentage of them does
// not exceed; 0 without any.
func Percentile[T any](sorted []T, percent int) T {
	var zero T
	if len(sorted) == 0 {
		return zero
	}
	rank := (len(sorted)*percent + 99) / 100
	return sorted[max(rank, 1)-1]
}

// Figure is the ratio of a subject to its peer over N rounds.
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

	Before func() error `json:"-"` // called before each round of Compare; nil = nothing
}

// Gate is what a figure must hold.
type Gate struct {
	Least, Most float64 // of the ratio
	Allocs      float64 // the most of one operation; +Inf where they do not matter
}

// AtMost is a gate for a ratio that should be small.
func AtMost(ratio float64) *Gate { return &Gate{math.Inf(-1), ratio, math.Inf(1)} }

// AtLeast is a gate for a ratio that should be large; any is, from -Inf on.
func AtLeast(ratio float64) *Gate { return &Gate{ratio, math.Inf(1), math.Inf(1)} }

// Allocating adds a bound on the allocations of one operation.
func (g *Gate) Allocating(most float64) *Gate {
	g.Allocs = most
	return g
}

// Holds reports whether the figure is within its gate; true without one.
func (f Figure) Holds() bool {
	g := f.Gate
	return g == nil || f.Ratio >= g.Least && f.Ratio <= g.Most && f.Allocs <= g.Allocs
}

// String is what the gate asks, and nothing of what has no bound.
func (g *Gate) String() string {
	var asks []string
	for _, a := range []struct {
		bound float64
		text  string
	}{{g.Least, ">= %g"}, {g.Most, "<= %g"}, {g.Allocs, "%g allocations"}} {
		if !math.IsInf(a.bound, 0) {
			asks = append(asks, fmt.Sprintf(a.text, a.bound))
		}
	}
	return strings.Join(asks, ", ")
}

// From fills in the spread of the rounds' ratios.
func (f Figure) From(ratios []float64) Figure {
	r := SpreadOf(ratios)
	f.N, f.Ratio, f.Min, f.Max = len(ratios), r.Median, r.Min, r.Max
	return f
}

// Allocations is how many one call of f makes, the mean of many, rounded down.
func Allocations(f func()) float64 {
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
