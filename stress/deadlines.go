package stress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/race"
	"github.com/kiln-cache/kiln/limit"
)

// The scenario deadlines asks what must be answered in bounded time (SPEC F6) while
// the workers look up in a loop, flying misses fly and tenants come and go. An
// answer may take as long as the gate says, or three times as long as that of an
// idle actor asked beside the same load: how long a wake-up takes is the machine's.
const (
	flying    = 1000
	gateP99   = 50 * time.Millisecond
	gateWorst = 250 * time.Millisecond
	pause     = 5 * time.Millisecond // between two questions of a kind
	enough    = 100                  // answers, for a hundredth of them to mean something
)

// times counts answers by their duration.
type times struct {
	what    string
	buckets [4000]int64 // of a millisecond; the last one is for all that took longer
	n       int64
	worst   time.Duration
}

func (t *times) add(d time.Duration) {
	t.buckets[min(int(d/time.Millisecond), len(t.buckets)-1)]++
	t.n++
	t.worst = max(t.worst, d)
}

// p99 is rounded up to a millisecond.
func (t *times) p99() time.Duration {
	slower := t.n / 100
	i := len(t.buckets) - 1
	for ; i > 0 && slower >= t.buckets[i]; i-- {
		slower -= t.buckets[i]
	}
	return time.Duration(i+1) * time.Millisecond
}

// deadlines is the scenario at work.
type deadlines struct {
	*run
	rt     *kiln.Runtime
	idle   *actors.Ref[ping]
	load   sync.WaitGroup
	asked  []*times
	random atomic.Uint64
	groups []*kiln.Group
	s      *kiln.Session
	warm   *constants.Engine
}

type ping struct{ actors.Reply[struct{}] }

// names of a group that are looked up; each group is held open.
const (
	heldGroups = 8
	heldNames  = 64
)

func openDeadlines(r *run) (func(context.Context, *rand.Rand) error, func(context.Context) error, error) {
	rt, err := kiln.Open(kiln.Config{Lookup: func(string) (string, bool) { return "", false },
		ArtefactEntries: kiln.LimitOf(2 * flying), SessionBytes: kiln.LimitOf(1 << 20), Linger: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	d := &deadlines{run: r, rt: rt, idle: actors.Spawn(actors.Config{}, func(p ping) { p.Send(struct{}{}) })}
	ctx, stop := context.WithCancel(context.Background())
	end := func(closing context.Context) error {
		stop()
		d.load.Wait()
		for _, g := range d.groups {
			g.Close()
		}
		d.judge()
		d.turns(d.s.Cache().Stats().Touched, rt.Artefacts().Stats().Touched, rt.Constants().Stats().Touched)
		return errors.Join(d.idle.Stop(closing), rt.Close(closing))
	}
	if err := d.fill(ctx); err != nil {
		return nil, nil, err
	}
	for range flying {
		d.load.Go(func() { d.miss(ctx) })
	}
	for range 2 {
		d.load.Go(func() { d.comeAndGo(ctx) })
	}
	d.questions(ctx)
	return d.lookUp, end, nil
}

func (d *deadlines) recipe(key string, after time.Duration) kiln.Recipe[*value] {
	return kiln.Recipe[*value]{Key: key, Make: func(ctx context.Context) (kiln.Made[*value], error) {
		if after > 0 {
			if err := rest(ctx, after); err != nil {
				return kiln.Made[*value]{}, err
			}
		}
		v := d.values.make(key)
		return kiln.Made[*value]{Value: v, Bytes: 64, Free: d.free(v)}, nil
	}}
}

// fill makes what is looked up.
func (d *deadlines) fill(ctx context.Context) (err error) {
	if d.s, err = d.rt.Session(kiln.SessionConfig{Groups: kiln.LimitOf(2 * flying)}); err != nil {
		return err
	}
	if d.warm, err = d.rt.Constants().Engine(constants.CPU, 0, ""); err != nil {
		return err
	}
	for n := range heldGroups {
		g, err := d.s.Group(ctx, []int64{int64(n)})
		if err != nil {
			return err
		}
		d.groups = append(d.groups, g)
		for i := range heldNames {
			if _, err := kiln.Get(ctx, g, nameOf(i), d.recipe(fmt.Sprint("held ", n, i), 0)); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookUp is one operation of a worker: some thousand hits of all kinds.
func (d *deadlines) lookUp(_ context.Context, random *rand.Rand) error {
	n, i := random.IntN(heldGroups), random.IntN(heldNames)
	name, key := nameOf(i), fmt.Sprint("held ", n, i)
	shape, err := kiln.ShapeOf([]int64{int64(n)})
	if err != nil {
		return err
	}
	for range 1000 {
		if v, ok := kiln.Lookup[*value](d.groups[n], name); ok {
			d.check(v, key)
		}
		d.s.Cache().Lookup(shape, name, 0)
		d.rt.Artefacts().Lookup(key)
	}
	return nil
}

// miss makes something new, again and again.
func (d *deadlines) miss(ctx context.Context) {
	for ctx.Err() == nil {
		n := d.random.Add(1)
		g, err := d.s.Group(ctx, []int64{int64(heldGroups + n%flying)})
		if err != nil {
			continue // ctx has ended
		}
		if _, err := kiln.Get(ctx, g, "miss", d.recipe(fmt.Sprint("miss ", n), 500*time.Millisecond)); !told(err) && !errors.Is(err, fault.ErrInvalid) {
			d.violated("a miss: %v", err)
		}
		g.Remove("miss")
		g.Close()
	}
}

// comeAndGo opens tenants with floors, and closes them.
func (d *deadlines) comeAndGo(ctx context.Context) {
	for ctx.Err() == nil {
		s, err := d.rt.Session(kiln.SessionConfig{Name: fmt.Sprint("tenant ", d.random.Add(1)%16), Floor: kiln.Floor{Bytes: 1 << 10}})
		if err != nil {
			continue // others hold what its floor needs
		}
		if g, err := s.Group(ctx, []int64{1}); err == nil {
			_, _ = kiln.Get(ctx, g, "name", d.recipe(fmt.Sprint("tenant's ", d.random.Add(1)), 0))
			g.Close()
		}
		if err := s.Close(context.WithoutCancel(ctx)); err != nil {
			d.violated("closing a tenant: %v", err)
		}
	}
}

// ask asks again and again, on a goroutine of its own, until ctx ends. A question
// gives the time of its answer.
func (d *deadlines) ask(ctx context.Context, what string, question func(context.Context) (time.Duration, error)) {
	t := &times{what: what}
	d.asked = append(d.asked, t)
	d.load.Go(func() {
		for ctx.Err() == nil {
			took, err := question(ctx)
			if !told(err) {
				d.violated("%s: %v", what, err)
			}
			t.add(took)
			_ = rest(ctx, pause)
		}
	})
}

// questions are the idle actor's and all that must be answered in bounded time.
func (d *deadlines) questions(ctx context.Context) {
	a, c := d.rt.Artefacts(), d.rt.Constants()
	for what, question := range map[string]func(context.Context) error{
		"artefacts: SetCapacity": func(context.Context) error { return a.SetCapacity(limit.Of(2*flying), limit.Limit{}) },
		"artefacts: Peek":        func(ctx context.Context) error { _, _, err := a.Peek(ctx, "absent"); return err },
		"artefacts: Reset":       func(context.Context) error { return a.Reset("nobody") },
		"session: SetGroups":     func(ctx context.Context) error { return d.s.SetGroups(ctx, kiln.LimitOf(2*flying)) },
		"session: SetBytes":      func(ctx context.Context) error { return d.s.SetBytes(ctx, kiln.Unlimited) },
		"session: Reset":         func(ctx context.Context) error { return d.s.Reset(ctx, "nobody") },
		"constants: SetCapacity": func(ctx context.Context) error { return c.SetCapacity(ctx, constants.CPU, limit.Of(64)) },
		"statistics": func(context.Context) error {
			_, _, _, _ = d.rt.Stats(), a.Stats(), d.s.Stats(), c.Stats()
			_, _, _ = a.Len(), d.s.Cache().Groups(), d.warm.Size()
			return nil
		},
		"idle": func(ctx context.Context) error {
			_, err := actors.Ask(ctx, d.idle, func(r actors.Reply[struct{}]) ping { return ping{r} })
			return err
		},
	} {
		d.ask(ctx, what, func(ctx context.Context) (time.Duration, error) {
			begun := time.Now()
			err := question(ctx)
			return time.Since(begun), err
		})
	}
	d.ask(ctx, "runtime: Session", func(ctx context.Context) (time.Duration, error) {
		begun := time.Now()
		s, err := d.rt.Session(kiln.SessionConfig{})
		took := time.Since(begun)
		if err == nil {
			err = s.Close(context.WithoutCancel(ctx))
		}
		return took, err
	})
	d.ask(ctx, "session: Close, from the end of its context", func(ctx context.Context) (time.Duration, error) {
		s, err := d.rt.Session(kiln.SessionConfig{})
		if err != nil {
			return 0, err
		}
		held := make(chan struct{})
		g, err := s.Group(ctx, []int64{1})
		if err == nil { // the value's Free is what Close waits for
			err = kiln.Set(ctx, g, "name", kiln.Made[int]{Free: func() { <-held }})
			g.Close()
		}
		ended, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancel()
		begun := time.Now()
		_ = s.Close(ended)
		took := time.Since(begun)
		close(held)
		return took, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	})
}

// judge compares all answers with the gate and with those of the idle actor.
func (d *deadlines) judge() {
	slices.SortFunc(d.asked, func(a, b *times) int { return cmp.Compare(a.what, b.what) })
	idle := d.asked[slices.IndexFunc(d.asked, func(t *times) bool { return t.what == "idle" })]
	p99, worst := max(gateP99, 3*idle.p99()), max(gateWorst, 3*idle.worst)
	for _, t := range d.asked {
		answers := "answers"
		if t.n == 1 {
			answers = "answer"
		}
		said := fmt.Sprintf("%s: %d %s, 99 %% within %v, all within %v", t.what, t.n, answers, t.p99(), t.worst.Truncate(time.Millisecond)+time.Millisecond)
		d.noted("%s", said)
		if race.Enabled || idle.n < enough { // too short a run to tell
			continue
		}
		if t != idle && (t.worst > worst || t.n >= enough && t.p99() > p99) {
			d.violated("%s; want %v and %v", said, p99, worst.Round(time.Millisecond))
		}
	}
}
