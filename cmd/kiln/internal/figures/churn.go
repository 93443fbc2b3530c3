package figures

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/internal/measure/reads"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// churn is a session that is one group too small for the shapes that are asked
// of it: whenever one of them is filled again, another one goes.
type churn struct {
	session *sessioncache.Session
	shapes  []shapegroups.Shape
	names   []string
	refills atomic.Uint64 // shapes registered so far

	random        *rand.Rand // this and the rest is the reader's
	lookups, hits int
}

// The shapes that are asked for, and the names of a group: few, so that evictions
// follow each other closely.
const churnGroups, churnNames = 32, 64

func openChurn(ctx context.Context) (*churn, error) {
	s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.LimitOf(churnGroups - 1)})
	if err != nil {
		return nil, err
	}
	c := &churn{session: s, random: rand.New(rand.NewPCG(1, 2))}
	for g := range churnGroups {
		c.shapes = append(c.shapes, reads.ShapeOf(g))
	}
	for i := range churnNames {
		c.names = append(c.names, reads.NameOf(i))
	}
	if err := c.refill(ctx); err != nil {
		return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// refill fills every shape that is not there, for which others go.
func (c *churn) refill(ctx context.Context) error {
	for _, shape := range c.shapes {
		if c.session.Has(shape) {
			continue
		}
		for i, name := range c.names {
			if err := c.session.Set(ctx, shape, name, sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
				return err
			}
			if i == 0 {
				c.refills.Add(1)
			}
		}
	}
	return nil
}

// batch is the time of 64 lookups of names of any of the shapes. It is
// measure.Disturbed if the operating system gave the core to another thread
// meanwhile; to wait for the session is no disturbance.
func (c *churn) batch() time.Duration {
	const lookups = 64
	before := measure.ThreadPreempted()
	began := time.Now()
	for range lookups {
		i := c.random.IntN(churnGroups * churnNames)
		if _, ok := c.session.Lookup(c.shapes[i/churnNames], c.names[i%churnNames], 0); ok {
			c.hits++
		}
	}
	took := time.Since(began)
	c.lookups += lookups
	if measure.ThreadPreempted() != before {
		return measure.Disturbed
	}
	return took
}

// sound is an error unless hits beside evictions were measured: all shapes but one
// fit, and each one that was filled evicted another.
func (c *churn) sound() error {
	const least = 0.9 // of the lookups: one shape of 32 is out, another being filled
	stats := c.session.Stats()
	if want := c.refills.Load() - (churnGroups - 1); stats.Evicted != want {
		return fmt.Errorf("%d groups were evicted in place of %d", stats.Evicted, want)
	}
	if float64(c.hits) < least*float64(c.lookups) {
		return fmt.Errorf("of %d lookups beside evictions only %d found their name", c.lookups, c.hits)
	}
	return nil
}

// tail is the 99th percentile of a batch's time over its median, beside this number
// of evictions. Of the batches from one eviction to the next the last ones count,
// among them the one during which it happened: however rare evictions are, more
// than one in a hundred batches that count had one. Where that one was disturbed the others
// tell nothing of evictions and do not count; where most were it is void, NaN.
func tail(evictions int, evicted func() uint64, batch func() time.Duration) (float64, error) {
	const counting = 40  // batches to an eviction
	const most = 1 << 17 // batches without one: seconds
	var times, since []time.Duration
	for tries := 2 * evictions; evictions > 0; tries-- {
		if tries < evictions {
			return math.NaN(), nil
		}
		since = since[:0]
		last := measure.Disturbed
		for n, seen := 0, evicted(); evicted() == seen; n++ {
			if n == most {
				return 0, fmt.Errorf("no eviction beside %d batches of lookups", most)
			}
			if last = batch(); last != measure.Disturbed {
				since = append(since, last)
			}
		}
		if last != measure.Disturbed {
			times = append(times, since[max(0, len(since)-counting):]...)
			evictions--
		}
	}
	slices.Sort(times)
	return float64(times[len(times)*99/100]) / float64(times[len(times)/2]), nil
}

// readersBesideEviction times batches of lookups while another goroutine fills
// again what was evicted, and so evicts: 99th percentile over median.
func readersBesideEviction(ctx context.Context) (measure.Figure, error) {
	f := measure.Figure{Bench: "reader p99 beside eviction", RatioTo: "its p50", Goroutines: 2, Gate: measure.AtMost(15)}
	if runtime.GOMAXPROCS(0) < 2 {
		return f.Unmeasured(measure.OneCore), nil
	}
	c, err := openChurn(ctx)
	if err != nil {
		return f, err
	}
	defer c.session.Close(context.WithoutCancel(ctx))
	var over atomic.Bool
	var failed error
	var writer sync.WaitGroup
	writer.Go(func() {
		for !over.Load() && failed == nil {
			failed = c.refill(ctx)
		}
	})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const evictions = 100
	f, err = f.Take(ctx, 9, func() (float64, error) { return tail(evictions, c.refills.Load, c.batch) })
	over.Store(true)
	writer.Wait()
	return f, errors.Join(err, failed, c.sound())
}
