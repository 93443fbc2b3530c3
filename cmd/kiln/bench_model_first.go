package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/measure"
)

// Of a length that a process meets first.
const (
	shortest, longest = 3, 512
	firstProcesses    = 5 // that meet each
	firstCalls        = 3 // of each in a process
)

// firsts measures the first call of a length over its later ones, in fresh processes of both
// sides with one thread. What a machine does by chance in one process it does not do again in
// most others; what belongs to the first call comes in each.
func (b *modelBench) firsts(ctx context.Context) error {
	step := 8
	if b.long {
		step = 1
	}
	count := (longest-shortest)/step + 1
	var meetings []meeting
	for process := range firstProcesses {
		order := rand.New(rand.NewPCG(1, uint64(process))).Perm(count)
		cliffs, err := b.meet(ctx, order, step)
		if err != nil {
			return err
		}
		meetings = append(meetings, meeting{order, cliffs})
	}
	b.figures = append(b.figures, firstFigures(count, meetings)...)
	return nil
}

// meeting is what a process of each side took for lengths in an order: the first call of each
// over the later ones.
type meeting struct {
	order  []int
	cliffs [2][]float64
}

// firstFigures leaves out the first length of each process, which starts with it.
func firstFigures(lengths int, meetings []meeting) (figures []measure.Figure) {
	var all, usual [2][]float64 // usual: of each length
	for side := range all {
		each := make([][]float64, lengths)
		for _, m := range meetings {
			for i, at := range m.order[1:] {
				cliff := m.cliffs[side][i+1]
				all[side] = append(all[side], cliff)
				each[at] = append(each[at], cliff)
			}
		}
		for _, cliffs := range each {
			usual[side] = append(usual[side], measure.SpreadOf(cliffs).Median)
		}
		slices.Sort(all[side])
		slices.Sort(usual[side])
	}
	for _, f := range []struct {
		name    string
		percent int
		of      [2][]float64
	}{{"median", 50, all}, {"99 of 100 are below", 99, all}, {"worst length, in the median of its processes", 100, usual}} {
		ours, theirs := f.of[0], f.of[1]
		figures = append(figures, measure.Figure{Bench: "model, first call of a length, " + f.name, RatioTo: "its later calls", Goroutines: 1,
			Ratio: measure.Percentile(ours, f.percent), Min: ours[0], Max: ours[len(ours)-1], N: len(ours),
			Note: fmt.Sprintf("%.3f with onnxruntime; %d lengths in random order in %d processes each", measure.Percentile(theirs, f.percent), lengths, len(meetings))})
	}
	return figures
}

// meet has a process of each side compute texts of all lengths in an order, each thrice on
// both sides in turns, so that a later call finds the processor's caches as the first one does:
// the time of the first call over the quicker of the others.
func (b *modelBench) meet(ctx context.Context, order []int, step int) (cliffs [2][]float64, err error) {
	err = b.fresh(ctx, func(ask asking) error {
		for _, at := range order {
			var took [firstCalls][2]time.Duration
			for call := range took {
				if took[call], err = ask(shortest + at*step); err != nil {
					return err
				}
			}
			for side := range cliffs {
				later := min(took[1][side], took[2][side])
				cliffs[side] = append(cliffs[side], took[0][side].Seconds()/later.Seconds())
			}
		}
		return nil
	})
	return cliffs, err
}

// asking has both sides compute a text of that many tokens, and says how long each took.
type asking func(tokens int) (took [2]time.Duration, err error)

// fresh starts a process of each side with one thread, and ends them after fn.
func (b *modelBench) fresh(ctx context.Context, fn func(asking) error) (err error) {
	ours := b.ours(ctx, "")
	ours.Env = append(ours.Environ(), "GOMAXPROCS=1")
	var sides [2]*server
	for i, cmd := range []*exec.Cmd{ours, b.peers(ctx)} {
		s, failed := startServer(cmd)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, s.end(ctx, nil)) }()
		sides[i] = s
	}
	return fn(func(tokens int) (took [2]time.Duration, err error) {
		lines := [2]string{words([]int{tokens})[0], numbers([]int{tokens})[0]}
		for side, s := range sides {
			if took[side], err = s.ask(lines[side]); err != nil {
				return took, err
			}
		}
		return took, nil
	})
}

// traffic measures what new lengths cost requests as they come: fresh processes of both sides
// answer all questions in a random order, in which lengths are new, and then the same once more.
// The first question of all takes the start of its process, too. The tail is that of all
// processes together, since one has only three questions above it; least and most are theirs.
func (b *modelBench) traffic(ctx context.Context) error {
	var ratios [2][]float64            // of the 99th percentiles, one a process
	var together [2][2][]time.Duration // by side: with new lengths, and with seen ones
	for process := range firstProcesses {
		questions := slices.Clone(data.Questions())
		rand.New(rand.NewPCG(2, uint64(process))).Shuffle(len(questions), func(i, k int) { questions[i], questions[k] = questions[k], questions[i] })
		var times [2][2][]time.Duration
		err := b.fresh(ctx, func(ask asking) error {
			for i, tokens := range slices.Concat(questions, questions) {
				took, err := ask(tokens)
				if err != nil {
					return err
				}
				for side, t := range took {
					pass := &times[side][i/len(questions)]
					*pass = append(*pass, t)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for side, passes := range times {
			ratios[side] = append(ratios[side], tails(passes))
			for pass, took := range passes {
				together[side][pass] = append(together[side][pass], took...)
			}
		}
	}
	f := measure.Figure{Bench: "model, questions that bring new lengths, 99 of 100 are below", RatioTo: "the same questions once more", Goroutines: 1,
		Note: fmt.Sprintf("%.3f with onnxruntime; %d questions in random order in %d processes each", tails(together[1]), len(data.Questions()), firstProcesses)}.From(ratios[0])
	f.Ratio = tails(together[0])
	b.figures = append(b.figures, f)
	return nil
}

// tails is the 99th percentile of times over that of later ones.
func tails(passes [2][]time.Duration) float64 {
	var tail [2]float64
	for i, pass := range passes {
		tail[i] = measure.Percentile(slices.Sorted(slices.Values(pass)), 99).Seconds()
	}
	return tail[0] / tail[1]
}
