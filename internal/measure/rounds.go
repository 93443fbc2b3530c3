package measure

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// slice is about how long one side runs at a time: short beside the time that an
// operating system gives a thread, so that on a busy machine some slices of
// every round pass undisturbed.
const slice = 400 * time.Microsecond

// slicesEach is the number of slices that a side has in a turn: the first of them
// find the processor's caches full of the other side's memory.
const slicesEach = 4

// A round ends when this number of the quickest slices of each side agree to within
// the tolerance, so that the quickest is no accident, or after the most turns.
const (
	agreeing   = 3
	tolerance  = 1.05
	leastTurns = 3
	mostTurns  = 100
)

// A Side runs n operations and gives their time, without that of any preparation.
type Side func(n int) (time.Duration, error)

// paced is a Side with the number of operations that fill a slice. All sides of
// a figure take equally long: a short slice would be disturbed less often.
type paced struct {
	Side
	n int
}

// pace finds how many operations of a side fill a slice; like is the number to
// take where every try was disturbed.
func pace(s Side, like int) (paced, error) {
	const least, most, probe = 1 << 6, 1 << 19, 1 << 10
	took, err := fastest(64, s, probe)
	if took == Disturbed {
		return paced{s, like}, err
	}
	n := float64(probe) * float64(slice) / float64(max(took, 1))
	return paced{s, min(max(int(n), least), most)}, err
}

// each is the time of one operation, by one slice; infinite if that was disturbed.
func (p paced) each() (float64, error) {
	took, err := p.Side(p.n)
	if took == Disturbed {
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

// Compare measures sides in rounds; ratio makes one number of the time that an
// operation of each takes in its quickest slice, NaN where these tell nothing.
func (f Figure) Compare(ctx context.Context, ratio func([]float64) float64, sides ...Side) (Figure, error) {
	all := make([]paced, len(sides))
	like := 1 << 10
	for i, s := range sides {
		p, err := pace(s, like)
		if err != nil {
			return f, err
		}
		all[i], like = p, p.n
	}
	return f.Take(ctx, 9, func() (float64, error) {
		if f.Before != nil {
			if err := f.Before(); err != nil {
				return 0, err
			}
		}
		return round(ratio, all)
	})
}

// Quotient is the first of two sides by the second.
func Quotient(best []float64) float64 { return best[0] / best[1] }

// A figure that narrowly misses its gate is given up after patience times the
// planned rounds. No figure is made of fewer than leastRounds.
const patience, leastRounds = 4, 3

// Take measures n rounds, and n more as long as the median narrowly misses the
// gate. Void rounds, whose ratio is NaN, do not count: other work left them too
// little of the machine. After n of those it gives up, and the figure says so
// in place of a ratio and a gate. It ends early with ctx.
func (f Figure) Take(ctx context.Context, n int, round func() (float64, error)) (Figure, error) {
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
		return f.Unmeasured("other work left no cores for it"), nil
	}
	return f, nil
}

// OneCore is why a figure of two goroutines is not measured on one core.
const OneCore = "it needs two cores, and GOMAXPROCS is 1"

// Unmeasured is a figure of no rounds that says why.
func (f Figure) Unmeasured(why string) Figure {
	f.Ratio, f.Min, f.Max, f.N, f.Gate = 0, 0, 0, 0, nil
	f.Note = "not measured, and held against no gate: " + why
	return f
}

// far reports whether the ratio is beyond its gate by more than a half.
func (f Figure) far() bool {
	const margin = 1.5
	return f.Ratio > f.Gate.Most*margin || f.Ratio*margin < f.Gate.Least
}

// fastest is the least time that n operations take, out of several tries.
func fastest(tries int, s Side, n int) (time.Duration, error) {
	best := Disturbed
	for range tries {
		took, err := s(n)
		if err != nil {
			return 0, err
		}
		best = min(best, took)
	}
	return best, nil
}

// Clocked is a Side of one operation, by the wall clock.
func Clocked(f func() error) Side {
	return func(int) (time.Duration, error) {
		began := time.Now()
		err := f()
		return time.Since(began), err
	}
}

// Quickest is the time of the quickest of several calls.
func Quickest(calls int, f func() error) (time.Duration, error) { return fastest(calls, Clocked(f), 1) }

// Each is the time of one operation of a side in its quickest slice, in
// nanoseconds, out of the slices that fill length; infinite if all were disturbed.
func Each(s Side, length time.Duration) (float64, error) {
	p, err := pace(s, 1<<10)
	best := math.Inf(1)
	for began := time.Now(); err == nil; {
		took, failed := p.each()
		best, err = min(best, took), failed
		if time.Since(began) >= length {
			break
		}
	}
	return best, err
}

// Turns is the quickest time of n operations of each side, the sides taking this
// many turns. Which side goes first alternates.
func Turns(ctx context.Context, turns, n int, sides ...Side) ([]time.Duration, error) {
	best := slices.Repeat([]time.Duration{Disturbed}, len(sides))
	for turn := range turns {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i := range sides {
			which := (turn + i) % len(sides)
			took, err := sides[which](n)
			if err != nil {
				return nil, err
			}
			best[which] = min(best[which], took)
		}
	}
	return best, nil
}

// Disturbed is the time of a slice that tells nothing.
const Disturbed = time.Duration(math.MaxInt64)

// Crowd is the time of n goroutines that run f, begun as one, on the cores of
// GOMAXPROCS, which may be fewer; Disturbed if the process did not have all of these,
// or n of them, for nearly all of it.
func Crowd(n int, f func(goroutine int)) time.Duration {
	cores := min(n, runtime.GOMAXPROCS(0))
	var ready atomic.Int32
	var started atomic.Bool
	ended := make([]time.Time, n)
	run := func(g int) {
		f(g)
		ended[g] = time.Now()
	}
	var others sync.WaitGroup
	for g := 1; g < n; g++ {
		others.Go(func() {
			for ready.Add(1); !started.Load(); {
				runtime.Gosched()
			}
			run(g)
		})
	}
	for int(ready.Load()) < n-1 {
		runtime.Gosched()
	}
	before, _ := ProcessTime()
	began := time.Now()
	started.Store(true)
	run(0)
	others.Wait()
	after, known := ProcessTime()
	took := slices.MaxFunc(ended, time.Time.Compare).Sub(began)
	if ran := after - before; known && ran < took*time.Duration(cores)*19/20 {
		return Disturbed
	}
	return took
}

// Together runs f on n goroutines, begun as one, and gives the time from the
// first begin to the last end; Disturbed if one of them did not have a core for
// nearly all of it. They wait for each other awake: to be woken can take longer
// than a slice.
func Together(n int, f func(goroutine int)) time.Duration {
	type span struct {
		began, ended time.Time
		ran          time.Duration // of that, on a core
		known        bool
	}
	spans := make([]span, n)
	var ready atomic.Int32
	run := func(g int) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for ready.Add(1); int(ready.Load()) < n; {
		}
		began := time.Now()
		before, _ := ThreadTime()
		f(g)
		after, known := ThreadTime()
		spans[g] = span{began, time.Now(), after - before, known}
	}
	var others sync.WaitGroup
	for g := 1; g < n; g++ {
		others.Go(func() { run(g) })
	}
	run(0)
	others.Wait()
	whole := spans[0]
	for _, s := range spans[1:] {
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
		return Disturbed
	}
	return took
}
