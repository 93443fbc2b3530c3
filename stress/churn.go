package stress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/sessioncache"
)

// The scenario churn has ever new things come and go: shapes and names, artefacts,
// sessions, tenants with floors, and references to a constant. The heap must not grow
// with what there was (see growth); the times of a step are shown by quarters of the
// run, and not judged: they are the machine's, too. Ten thousand operations of workers,
// in some minutes, are what it is for: 10 M references, 10 M shapes and names, 5 M
// artefacts, 0.3 M sessions of 16,000 tenants.
const (
	churnHolds     = 1000
	churnShapes    = 1000
	churnArtefacts = 500
	churnSessions  = 30
	churnTenants   = 16_000
)

// churn is the scenario at work.
type churn struct {
	*run
	rt    *kiln.Runtime
	s     *kiln.Session
	held  *constants.Lease
	begun time.Time
	next  atomic.Int64
	steps [4]steps
}

// steps are those of one kind, by quarters of the run.
type steps struct{ n, took [4]atomic.Int64 }

func openChurn(r *run) (func(context.Context, *rand.Rand) error, func(context.Context) error, error) {
	ctx := context.Background()
	rt, err := kiln.Open(kiln.Config{Lookup: func(string) (string, bool) { return "", false }, SessionBytes: kiln.LimitOf(1 << 30)})
	if err != nil {
		return nil, nil, err
	}
	c := &churn{run: r, rt: rt, begun: time.Now()}
	e, err := rt.Constants().Engine(constants.CPU, 0, "")
	if err == nil {
		c.held, _, err = e.Get(ctx, constants.Key{ID: constants.Versioned("held", 0)}, 1, constants.Options{}, func(context.Context) (constants.Value, error) {
			return constants.Value{Bytes: 1}, nil
		})
	}
	if err == nil {
		c.s, err = rt.Session(kiln.SessionConfig{})
	}
	if err != nil {
		return nil, nil, errors.Join(err, rt.Close(ctx))
	}
	return c.act, c.end, nil
}

// act is one operation of each kind, many times.
func (c *churn) act(ctx context.Context, _ *rand.Rand) error {
	ctx = context.WithoutCancel(ctx) // what leaves early is for other scenarios
	for kind, step := range []struct {
		times int
		do    func(context.Context, int64) error
	}{{churnHolds, c.hold}, {churnShapes, c.shape}, {churnArtefacts, c.artefact}, {churnSessions, c.session}} {
		begun := time.Now()
		for range step.times {
			if err := step.do(ctx, c.next.Add(1)); err != nil {
				return err
			}
		}
		quarter := min(4*time.Since(c.begun)/c.duration, 3)
		c.steps[kind].n[quarter].Add(int64(step.times))
		c.steps[kind].took[quarter].Add(int64(time.Since(begun)))
	}
	return nil
}

func (c *churn) hold(context.Context, int64) error {
	h, ok := c.held.Hold(func(constants.Removal) {})
	if !ok {
		return errors.New("a resident tensor cannot be held")
	}
	h.Drop()
	return nil
}

func (c *churn) shape(ctx context.Context, n int64) error {
	shape, err := kiln.ShapeOf([]int64{n})
	if err != nil {
		return err
	}
	name := fmt.Sprint("name ", n)
	return c.s.Cache().Set(ctx, shape, name, sessioncache.Value{Any: n, Bytes: 8}, sessioncache.Options{Owner: name})
}

func (c *churn) artefact(ctx context.Context, n int64) error {
	l, _, err := c.rt.Artefacts().Get(ctx, artefacts.Request{Key: fmt.Sprint("key ", n), Create: func(context.Context) (artefacts.Built, error) {
		return artefacts.Built{Value: n, Bytes: 8}, nil
	}})
	if err == nil {
		l.End()
	}
	return err
}

func (c *churn) session(ctx context.Context, n int64) error {
	s, err := c.rt.Session(kiln.SessionConfig{Name: fmt.Sprint("tenant ", n%churnTenants), Floor: kiln.Floor{Bytes: 1 << 10}})
	if err != nil {
		return err
	}
	g, err := s.Group(ctx, []int64{1})
	if err == nil {
		_, err = kiln.Get(ctx, g, "name", kiln.Recipe[int64]{Key: fmt.Sprint("tenant's ", n), Make: func(context.Context) (kiln.Made[int64], error) {
			return kiln.Made[int64]{Value: n, Bytes: 8}, nil
		}})
		g.Close()
	}
	return errors.Join(err, s.Close(ctx))
}

// end says how long steps took, and closes.
func (c *churn) end(ctx context.Context) error {
	for kind, what := range []string{"references held and dropped", "shapes and names", "artefacts", "sessions of tenants with floors"} {
		s, said, all := &c.steps[kind], "", int64(0)
		for q := range s.n {
			n := s.n[q].Load()
			if all += n; n > 0 {
				said += fmt.Sprintf(" %v", (time.Duration(s.took[q].Load()) / time.Duration(n)).Round(10*time.Nanosecond))
			}
		}
		c.noted("%d %s, a step by quarters:%s", all, what, said)
	}
	c.turns(c.s.Cache().Stats().Touched, c.rt.Artefacts().Stats().Touched, c.rt.Constants().Stats().Touched)
	c.held.End()
	return c.rt.Close(ctx)
}
