package figures

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// slice is about how long one side runs at a time: short beside the time that an
// operating system gives a thread, so that on a busy machine some slices of
// every round pass undisturbed.
const slice = 400 * time.Microsecond

// In a turn every side has so many slices: the first of them find the caches of
// the processor full of the other side's memory.
const slicesEach = 4

// A round ends when the quickest so many slices of each side agree to within the
// tolerance, so that the quickest is no accident, or after the most turns.
const (
	agreeing   = 3
	tolerance  = 1.05
	leastTurns = 3
	mostTurns  = 100
)

// side takes n operations and gives their time, without what it sets up first.
type side func(n int) (time.Duration, error)

// paced is a side with the number of operations that fill a slice. All sides of
// a figure take equally long: a short slice would be disturbed less often.
type paced struct {
	side
	n int
}

// pace tries a side that is like one that takes so many operations to a slice.
func pace(s side, like int) (paced, error) {
	const least, most, probe = 1 << 6, 1 << 19, 1 << 10
	took, err := fastest(64, func() (time.Duration, error) { return s(probe) })
	if took == disturbed {
		return paced{s, like}, err
	}
	n := float64(probe) * float64(slice) / float64(max(took, 1))
	return paced{s, min(max(int(n), least), most)}, err
}

// each is the time of one operation, by one slice; infinite if that was disturbed.
func (p paced) each() (float64, error) {
	took, err := p.side(p.n)
	if took == disturbed {
		return math.Inf(1), err
	}
	return float64(took) / float64(p.n), err
}

// round is the ratio of one round, made of the quickest slice of every side, the
// sides taking turns. Other work on the machine only ever adds, so the quickest
// is the best estimate of the undisturbed cost.
func round(ratio func([]float64) float64, sides []paced) (float64, error) {
	quickest := make([][]float64, len(sides)) // of each side, the agreeing ones in order
	best := make([]float64, len(sides))
	for turn := range mostTurns {
		settled := true
		for i, s := range sides {
			for range slicesEach {
				took, err := s.each()
				if err != nil {
					return 0, err
				}
				at, _ := slices.BinarySearch(quickest[i], took)
				quickest[i] = slices.Insert(quickest[i], at, took)
				quickest[i] = quickest[i][:min(len(quickest[i]), agreeing)]
			}
			best[i] = quickest[i][0]
			settled = settled && quickest[i][agreeing-1] <= best[i]*tolerance
		}
		if settled && turn >= leastTurns && slices.Max(best) < math.Inf(1) && !math.IsNaN(ratio(best)) {
			break
		}
	}
	return ratio(best), nil
}

// compare measures sides in rounds; ratio makes one number of their quickest
// slices, NaN where these tell nothing.
func (f Figure) compare(ctx context.Context, ratio func([]float64) float64, sides ...side) (Figure, error) {
	all := make([]paced, len(sides))
	like := 1 << 10
	for i, s := range sides {
		p, err := pace(s, like)
		if err != nil {
			return f, err
		}
		all[i], like = p, p.n
	}
	return f.take(ctx, 9, func() (float64, error) {
		if f.before != nil {
			f.before()
		}
		return round(ratio, all)
	})
}

// quotient is the first of two sides by the second.
func quotient(best []float64) float64 { return best[0] / best[1] }

// patience is how many times the planned rounds are taken at most, before a
// figure that narrowly misses its gate is found to miss it. Of fewer than
// leastRounds no figure is made.
const patience, leastRounds = 4, 3

// take measures n rounds, and n more as long as the median narrowly misses the
// gate. All rounds count but void ones, whose ratio is NaN: they saw too little
// of the machine to tell. After n of those it gives up, and the figure says so
// in place of a ratio and a gate. It ends early with ctx.
func (f Figure) take(ctx context.Context, n int, round func() (float64, error)) (Figure, error) {
	var ratios []float64
	for void := 0; len(ratios) < patience*n && void < n; {
		if err := ctx.Err(); err != nil {
			return f, err
		}
		r, err := round()
		if err != nil {
			return f, err
		}
		if math.IsNaN(r) {
			void++
			continue
		}
		ratios = append(ratios, r)
		if f = f.From(ratios); f.N%n == 0 && (f.Holds() || f.far()) {
			break
		}
	}
	if f.N < leastRounds {
		return f.unmeasured("other work left no cores for it"), nil
	}
	return f, nil
}

const oneCore = "it needs two cores, and GOMAXPROCS is 1"

// unmeasured is a figure of no rounds, and why.
func (f Figure) unmeasured(why string) Figure {
	f.Ratio, f.Min, f.Max, f.N, f.Gate = 0, 0, 0, 0, nil
	f.Note = "not measured, and held against no gate: " + why
	return f
}

// far reports whether the ratio is beyond its gate by more than a half.
func (f Figure) far() bool {
	const margin = 1.5
	return f.Ratio > f.Gate.Most*margin || f.Ratio*margin < f.Gate.Least
}

// fastest is the least of n times.
func fastest(n int, f func() (time.Duration, error)) (time.Duration, error) {
	best := time.Duration(math.MaxInt64)
	for range n {
		took, err := f()
		if err != nil {
			return 0, err
		}
		best = min(best, took)
	}
	return best, nil
}

// Quickest is the time of the quickest of n calls.
func Quickest(n int, f func() error) (time.Duration, error) {
	return fastest(n, func() (time.Duration, error) {
		began := time.Now()
		err := f()
		return time.Since(began), err
	})
}

// disturbed is the time of a slice that tells nothing.
const disturbed = time.Duration(math.MaxInt64)

// together runs f on n goroutines, begun as one, and gives the time from the
// first begin to the last end; disturbed if one of them did not have a core for
// nearly all of it. They wait for each other awake: to be woken can take longer
// than a slice.
func together(n int, f func(goroutine int)) time.Duration {
	type span struct {
		began, ended time.Time
		ran          time.Duration // of that, on a core
		known        bool
	}
	spans := make(chan span, n)
	var ready atomic.Int32
	run := func(g int) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for ready.Add(1); int(ready.Load()) < n; {
		}
		began := time.Now()
		before, _ := threadTime()
		f(g)
		after, known := threadTime()
		spans <- span{began, time.Now(), after - before, known}
	}
	for g := 1; g < n; g++ {
		go run(g)
	}
	run(0)
	whole := <-spans
	for range n - 1 {
		s := <-spans
		if s.began.Before(whole.began) {
			whole.began = s.began
		}
		if s.ended.After(whole.ended) {
			whole.ended = s.ended
		}
		whole.ran = min(whole.ran, s.ran)
	}
	took := whole.ended.Sub(whole.began)
	if lost := took - whole.ran; whole.known && lost > took/20+2*time.Microsecond { // what the clocks take
		return disturbed
	}
	return took
}
