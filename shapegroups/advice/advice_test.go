package advice_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/shapegroups/advice"
)

func stream(lengths ...int) (all []shapegroups.Shape) {
	for _, n := range lengths {
		all = append(all, shape(n))
	}
	return all
}

// S5
func TestAdvise(t *testing.T) {
	var lengths []int
	for i := range 2000 {
		lengths = append(lengths, 1000+i*7919%100) // one bucket of geometric:8 or two, a hundred shapes
	}
	r, err := advice.Advise(stream(lengths...), advice.Costs{Compile: 1, Run: 0.001, Groups: 8})
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 2000 || r.Distinct != 100 {
		t.Errorf("%d requests, %d shapes", r.Requests, r.Distinct)
	}
	if len(r.Working) != 2 || r.Working[0] != (advice.WorkingSet{Window: 100, Shapes: 100}) {
		t.Errorf("working sets %v", r.Working)
	}
	best := map[int]float64{}
	for _, c := range r.Cells {
		if c.Policy == "belady" {
			for _, d := range r.Cells {
				if d.Groups == c.Groups && d.HitRatio > c.HitRatio {
					t.Errorf("%s beats the bound at %d groups", d.Policy, d.Groups)
				}
			}
		}
		best[c.Groups] = max(best[c.Groups], c.HitRatio)
	}
	if len(best) != 8 || best[128] != 0.95 || best[8] >= 0.2 {
		t.Errorf("best hit ratios by capacity: %v", best)
	}
	for _, c := range r.Choices {
		if c.Lost < r.Best.Lost {
			t.Errorf("%s loses %v, the best %v", c.Bucketing, c.Lost, r.Best.Lost)
		}
	}
	if b := r.Best; b.Distinct > 8 || b.HitRatio < 0.99 || !strings.Contains(r.String(), "KILN_BUCKET="+b.Bucketing.String()) {
		t.Errorf("%s; best is %+v", r, b)
	}

	// Where a miss costs nothing, padding decides.
	r, err = advice.Advise(stream(lengths...), advice.Costs{Run: 0.001, Groups: 200})
	if err != nil || !r.Best.Bucketing.Exact() || r.Best.Lost != 0 {
		t.Errorf("%v: best without compile cost is %+v", err, r.Best)
	}
	found := false
	for _, c := range r.Cells {
		found = found || c.Groups == 200 && c.Policy == "lru"
	}
	if !found {
		t.Error("the capacity asked about is not among the cells")
	}
}

func TestAdviseNothing(t *testing.T) {
	r, err := advice.Advise(nil, advice.Costs{Groups: 4})
	if err != nil || r.Requests != 0 || r.String() == "" {
		t.Errorf("%v, %v", r, err)
	}
	for _, c := range []advice.Costs{{Groups: 0}, {Groups: 1, Compile: -1}, {Groups: 1, Run: math.NaN()}, {Groups: 1, Run: math.Inf(1)}} {
		if _, err := advice.Advise(nil, c); !errors.Is(err, advice.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// A shape at the limit is passed over by the bucketings that would leave it.
	r, err = advice.Advise(stream(1, min(shapegroups.MaxDim-1, math.MaxInt)), advice.Costs{Groups: 4})
	if err != nil || len(r.Choices) == 0 {
		t.Errorf("%v, %v", r, err)
	}
}
