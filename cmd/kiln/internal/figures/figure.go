package figures

import (
	"fmt"
	"math"
	"runtime"
	"slices"
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

	before func() // each round of compare; nil = nothing
}

// Gate is what a figure must hold.
type Gate struct {
	Least, Most float64 // of the ratio
	Allocs      float64 // at most so many; +Inf where they do not matter
}

// AtMost is a gate for what should be small, AtLeast for what should be large.
func AtMost(ratio float64) *Gate  { return &Gate{math.Inf(-1), ratio, math.Inf(1)} }
func AtLeast(ratio float64) *Gate { return &Gate{ratio, math.Inf(1), math.Inf(1)} }

// allocating is a gate that allows so many allocations and no more.
func (g *Gate) allocating(most float64) *Gate {
	g.Allocs = most
	return g
}

// Holds reports whether the figure is within its gate; true without one.
func (f Figure) Holds() bool {
	g := f.Gate
	return g == nil || f.Ratio >= g.Least && f.Ratio <= g.Most && f.Allocs <= g.Allocs
}

// String is what the gate asks.
func (g *Gate) String() string {
	text := fmt.Sprintf("<= %g", g.Most)
	if !math.IsInf(g.Least, -1) {
		text = fmt.Sprintf(">= %g", g.Least)
	}
	if !math.IsInf(g.Allocs, 1) {
		text += fmt.Sprintf(", %g allocations", g.Allocs)
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
