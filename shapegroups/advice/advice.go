package advice

import (
	"fmt"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Costs are what advice weighs against each other.
type Costs struct {
	Compile float64 // seconds that a miss takes to compile
	Run     float64 // seconds that a request takes to run without padding; with it as much more as there are more elements
	Groups  int     // capacity of the session, at least 1
}

// Report is what a stream of shapes says.
type Report struct {
	Requests int
	Distinct int          // shapes asked
	Working  []WorkingSet // how many are in use at a time
	Cells    []Cell       // hit ratios by capacity and policy, of the shapes as asked
	Choices  []Choice     // bucketings, at the capacity of the costs and policy duel
	Best     Choice       // the one of Choices that loses the least time
}

// WorkingSet is the mean number of distinct shapes in consecutive windows of Window
// requests.
type WorkingSet struct {
	Window int     `json:"window"`
	Shapes float64 `json:"shapes"`
}

// Cell is what one policy would do at one capacity.
type Cell struct {
	Policy   string  `json:"policy"` // fifo, lru, sieve, duel or Belady
	Groups   int     `json:"capacity"`
	Hits     int     `json:"-"`
	HitRatio float64 `json:"hit_ratio"`
}

// Choice is what one bucketing would do.
type Choice struct {
	Bucketing shapegroups.Bucketing
	Distinct  int // shapes compiled
	Hits      int
	HitRatio  float64
	Padding   shapegroups.Padding
	Lost      float64 // seconds spent on misses and on padding, over the stream
}

// bucketings are the candidates; ties go to the first.
var bucketings = []string{"exact", "multiple:8", "multiple:16", "multiple:64", "geometric:16", "geometric:8", "geometric:4", "pow2"}

// Advise reports on a stream of shapes as asked. Costs that are negative or not
// finite, or no groups, are ErrInvalid.
func Advise(stream []shapegroups.Shape, c Costs) (Report, error) {
	for _, seconds := range []float64{c.Compile, c.Run} {
		if !(seconds >= 0) || math.IsInf(seconds, 0) {
			return Report{}, fault.Invalidf("advice: advise", "%v seconds: want a number of at least 0", seconds)
		}
	}
	if c.Groups < 1 {
		return Report{}, fault.Invalidf("advice: advise", "%d groups: want at least 1", c.Groups)
	}
	r := Report{Requests: len(stream), Distinct: distinct(stream), Working: working(stream)}
	for _, groups := range capacities(r.Distinct, c.Groups) {
		for _, kind := range kinds() {
			result, err := Simulate(stream, Setup{Policy: kind, Groups: groups})
			if err != nil {
				return Report{}, err
			}
			r.Cells = append(r.Cells, Cell{kind, groups, result.Hits, result.Ratio()})
		}
	}
	for _, text := range bucketings {
		choice, ok, err := choose(stream, text, c)
		if err != nil {
			return Report{}, err
		}
		if !ok {
			continue
		}
		if len(r.Choices) == 0 || choice.Lost < r.Best.Lost {
			r.Best = choice
		}
		r.Choices = append(r.Choices, choice)
	}
	return r, nil
}

// choose plays the stream with one bucketing; false: it takes a shape beyond
// what can be compiled.
func choose(stream []shapegroups.Shape, text string, c Costs) (Choice, bool, error) {
	bucketing, err := shapegroups.ParseBucketing(text)
	if err != nil {
		return Choice{}, false, err
	}
	choice := Choice{Bucketing: bucketing}
	known := make(map[shapegroups.Shape]shapegroups.Shape)
	compiled := make([]shapegroups.Shape, len(stream))
	for i, asked := range stream {
		shape, ok := known[asked]
		if !ok {
			if shape, err = bucketing.Map(asked); err != nil {
				return Choice{}, false, nil
			}
			known[asked] = shape
		}
		compiled[i] = shape
		choice.Padding.Add(asked, shape)
		if asked, padded := asked.Elements(), shape.Elements(); asked > 0 {
			choice.Lost += c.Run * (float64(padded)/float64(asked) - 1)
		}
	}
	result, err := Simulate(compiled, Setup{Policy: string(policy.Duel), Groups: c.Groups})
	if err != nil {
		return Choice{}, false, err
	}
	choice.Distinct, choice.Hits, choice.HitRatio = result.Distinct, result.Hits, result.Ratio()
	choice.Lost += c.Compile * float64(result.Requests-result.Hits)
	return choice, true, nil
}

// capacities are the powers of two up to the first that holds every shape, and
// the one asked about.
func capacities(distinct, asked int) (all []int) {
	const most = 1 << 12
	all = []int{1}
	for groups := 1; groups < min(distinct, most); {
		groups *= 2
		all = append(all, groups)
	}
	if i, found := slices.BinarySearch(all, asked); !found {
		all = slices.Insert(all, i, asked)
	}
	return all
}

func working(stream []shapegroups.Shape) (all []WorkingSet) {
	for _, window := range []int{100, 1_000, 10_000} {
		if window > len(stream) {
			break
		}
		shapes, windows := 0, len(stream)/window
		for i := range windows {
			shapes += distinct(stream[i*window : (i+1)*window])
		}
		all = append(all, WorkingSet{window, float64(shapes) / float64(windows)})
	}
	return all
}

// String is the one line that says what to use.
func (r Report) String() string {
	if r.Requests == 0 {
		return "no requests seen: nothing to advise"
	}
	padding := 0.0
	if p := r.Best.Padding; p.Asked > 0 {
		padding = 100 * (float64(p.Compiled)/float64(p.Asked) - 1)
	}
	return fmt.Sprintf("use KILN_BUCKET=%s: %d shapes in place of %d, %.1f %% hits, %.1f %% padding, %.3g s lost in %d requests",
		r.Best.Bucketing, r.Best.Distinct, r.Distinct, 100*r.Best.HitRatio, padding, r.Best.Lost, r.Requests)
}
