package figures

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/internal/measure/reads"
	"github.com/kiln-cache/kiln/internal/policy"
)

const entries = 32 * reads.Names

// loaded is a filled session with its peer S.
type loaded struct {
	*reads.Loaded
	peer *reads.Peer
	draw uint64
}

func load(ctx context.Context) (*loaded, error) {
	r, err := reads.New(entries)
	if err != nil {
		return nil, err
	}
	l, err := reads.Load(ctx, r, 0)
	if err != nil {
		return nil, err
	}
	return &loaded{Loaded: l, peer: reads.NewPeer(r)}, nil
}

// redraw makes the requests of the next round, and S again. Luck with one draw, or with the
// seed of one S, lasts: a figure takes its median over as many draws as rounds.
func (l *loaded) redraw(ctx context.Context) error {
	l.draw++
	l.Requests.Redraw(l.draw)
	l.peer.Renew()
	return l.Redrawn(ctx)
}

// side asks for what is there, from a goroutine's own start on.
func (l *loaded) side(goroutine, of int, find reads.Finder) measure.Side {
	return l.Requests.Side(find, goroutine*len(l.Requests.Places)/of, func(lookups int) error {
		return fmt.Errorf("%d lookups of resident names missed", lookups)
	})
}

// Hits measures the read paths against S, and what the policy costs.
func Hits(ctx context.Context) ([]measure.Figure, error) {
	l, err := load(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Session.Close(context.WithoutCancel(ctx))
	var hot atomic.Pointer[int]
	hot.Store(new(int))
	loads := func(from, to int) (found int) {
		for range to - from {
			if hot.Load() != nil {
				found++
			}
		}
		return found
	}
	held := func(from, to int) (found int) {
		for range to - from {
			if l.Refs[0].Resident() {
				found++
			}
		}
		return found
	}
	paths := []struct {
		name, peer string
		find, base reads.Finder
		gate       *measure.Gate
	}{
		{"hit held reference", "an atomic load", held, loads, measure.AtMost(6)},
		{"hit group handle, interned name", "S", l.ByID, l.peer.Find, measure.AtMost(0.06)},
		{"hit group handle, name", "S", l.ByName, l.peer.Find, measure.AtMost(0.5)},
		{"hit session, shape, name", "S", l.ByKey, l.peer.Find, measure.AtMost(0.9)},
	}
	var out []measure.Figure
	for _, p := range paths {
		at := 0
		f := measure.Figure{Bench: p.name, RatioTo: p.peer, Goroutines: 1, Gate: p.gate.Allocating(0), Before: func() error { return l.redraw(ctx) },
			Allocs: measure.Allocations(func() { at = (at + 1) % len(l.Requests.Places); p.find(at, at+1) })}
		if f, err = f.Compare(ctx, measure.Quotient, l.side(0, 1, p.find), l.side(0, 1, p.base)); err != nil {
			return append(out, f), err
		}
		out = append(out, f)
	}
	whole, err := l.withPolicy(ctx)
	if err != nil {
		return append(out, whole), err
	}
	alone, err := acquisition(ctx)
	return append(out, whole, alone), err
}

// acquisition is what the policy takes of a session of 256 groups that is asked
// for a few shapes more, unevenly: uses of what is there, now and then a victim.
func acquisition(ctx context.Context) (measure.Figure, error) {
	const capacity, shapes = 256, 260
	const atMost = 100 * time.Nanosecond
	p, err := policy.New(policy.Config{Kind: policy.Duel, Groups: capacity})
	if err != nil {
		return measure.Figure{}, err
	}
	known := make([]*policy.Group, shapes)
	for i := range known {
		p.Request(reads.ShapeOf(i))
		known[i] = p.Admit(reads.ShapeOf(i), 1, 1)
	}
	for p.Len() > capacity {
		p.Remove(p.Victim(nil, policy.Busy))
	}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 4, shapes-1)
	draw := make([]int, 1<<14)
	for i := range draw {
		draw[i] = int(zipf.Uint64())
	}
	at := 0
	acquire := func() {
		i := draw[at%len(draw)]
		at++
		if p.Use(known[i]); !known[i].Resident() {
			p.Remove(p.Victim(nil, policy.Busy))
			known[i] = p.Admit(known[i].Shape(), 1, 1)
		}
	}
	f := measure.Figure{Bench: "the policy, an acquisition of 256", RatioTo: "100 ns", Goroutines: 1, Gate: measure.AtMost(1).Allocating(0), Allocs: measure.Allocations(acquire)}
	f, err = f.Take(ctx, 15, func() (float64, error) {
		took, err := measure.Quickest(20, func() error {
			for range draw {
				acquire()
			}
			return nil
		})
		return float64(took) / float64(len(draw)) / float64(atMost), err
	})
	return f, err
}

// caughtUp returns once the policy has seen every lookup so far.
func (l *loaded) caughtUp(ctx context.Context) error {
	_, err := l.Session.Stream(ctx)
	return err
}

// crowd is the full key for readers at once, against as many of S, each for long: some
// milliseconds a slice, in which the policy follows them as far as they leave it a core.
func (l *loaded) crowd(ctx context.Context, readers int) (measure.Figure, error) {
	const long = 16 // times the slice of other figures
	f := measure.Figure{Bench: "hit session, shape, name, crowd", Gate: measure.AtMost(1.3)}
	return l.together(ctx, f, readers, long, func() error { return nil })
}

// burst is a crowd that looks up for so short a time that the policy heeds all of it.
// It has caught up before each slice.
func (l *loaded) burst(ctx context.Context, readers int) (measure.Figure, error) {
	f := measure.Figure{Bench: "hit session, shape, name, burst"}
	return l.together(ctx, f, readers, 1, func() error { return l.caughtUp(ctx) })
}

// together measures the full key for readers at once, in slices that are long times
// as long as those of other figures.
func (l *loaded) together(ctx context.Context, f measure.Figure, readers, long int, before func() error) (measure.Figure, error) {
	f.RatioTo, f.Goroutines, f.Before = "S for as many readers", readers, func() error { return l.redraw(ctx) }
	by := func(find reads.Finder) measure.Side {
		sides := make([]measure.Side, readers)
		for g := range sides {
			sides[g] = l.side(g, readers, find)
		}
		return func(n int) (time.Duration, error) {
			if err := before(); err != nil {
				return 0, err
			}
			errs := make([]error, readers)
			took := measure.Crowd(readers, func(g int) { _, errs[g] = sides[g](n * long / readers) })
			if took != measure.Disturbed {
				took /= time.Duration(long)
			}
			return took, errors.Join(errs...)
		}
	}
	bothRan := func(best []float64) float64 {
		if slices.Max(best) == math.Inf(1) {
			return math.NaN()
		}
		return measure.Quotient(best)
	}
	return f.Compare(ctx, bothRan, by(l.ByKey), by(func(from, to int) int { return l.peer.Find(from, to) }))
}

// withPolicy is the full key again with all that a lookup causes: what its
// reader leaves to the session's actor is waited for, on one core for both.
func (l *loaded) withPolicy(ctx context.Context) (measure.Figure, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	read := l.side(0, 1, l.ByKey)
	ours := func(n int) (time.Duration, error) {
		if err := l.caughtUp(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		if _, err := read(n); err != nil {
			return 0, err
		}
		err := l.caughtUp(ctx)
		return time.Since(began), err
	}
	f := measure.Figure{Bench: "the same and its policy's part", RatioTo: "S", Goroutines: 1, Gate: measure.AtMost(2), Before: func() error { return l.redraw(ctx) }}
	return f.Compare(ctx, measure.Quotient, ours, l.side(0, 1, l.peer.Find))
}

// Scaling is what readers of full keys get done beside each other. Two against one,
// divided by what a loop without shared memory gains in the same round; a round that
// never had two cores to itself is void; the policy has caught up before each slice. And
// 2 and 8 against as many of S, for long and in bursts.
func Scaling(ctx context.Context) ([]measure.Figure, error) {
	f := measure.Figure{Bench: "hit, two readers", RatioTo: "one reader, were the cores free", Goroutines: 2, Gate: measure.AtLeast(1.4)}
	if runtime.GOMAXPROCS(0) < 2 {
		return []measure.Figure{f.Unmeasured(measure.OneCore)}, nil
	}
	l, err := load(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Session.Close(context.WithoutCancel(ctx))
	var sinks [2]struct {
		x uint64
		_ [56]byte
	}
	spin := func(g, n int) error {
		x := uint64(g) + 1
		for range n {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		sinks[g].x = x
		return nil
	}
	var sides [2]measure.Side
	for g := range sides {
		sides[g] = l.side(g, len(sides), l.ByKey)
	}
	read := func(g, n int) error { _, err := sides[g](n); return err }
	by := func(readers int, work func(g, n int) error) measure.Side {
		return func(n int) (time.Duration, error) {
			if err := l.caughtUp(ctx); err != nil {
				return 0, err
			}
			var errs [2]error
			took := measure.Together(readers, func(g int) { errs[g] = work(g, n) })
			return took, errors.Join(errs[:]...)
		}
	}
	gained := func(t []float64) float64 {
		const leastOfTwo = 0.75 // of both cores
		free := t[2] / t[3]
		if slices.Max(t) == math.Inf(1) || free < leastOfTwo {
			return math.NaN()
		}
		return 2 * (t[0] / t[1]) / free
	}
	f, err = f.Compare(ctx, gained, by(1, read), by(2, read), by(1, spin), by(2, spin))
	out := []measure.Figure{f}
	for _, of := range []func(context.Context, int) (measure.Figure, error){l.crowd, l.burst} {
		for _, readers := range []int{2, 8} {
			if err == nil {
				f, err = of(ctx, readers)
				out = append(out, f)
			}
		}
	}
	return out, err
}
