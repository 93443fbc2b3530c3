package pipelinefile

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/lease"
)

// object is one pipeline and who uses it. Immutable but for its pins.
type object struct {
	cell     lease.Cell
	pipeline Pipeline
	origin   Origin
}

// Lease is the right to use a pipeline, until End. Safe for concurrent use.
type Lease struct {
	object *object
	ended  atomic.Bool
}

// Pipeline is what the lease is on; it must not be used after End.
func (l *Lease) Pipeline() Pipeline { return l.object.pipeline }

// End gives the lease back; the last one of a pipeline that is no longer in the
// cache destroys it, on another goroutine where the driver sees one call at a
// time. Ending it again does nothing.
func (l *Lease) End() {
	if l.ended.CompareAndSwap(false, true) {
		l.object.cell.Unpin()
	}
}

func (c *Cache) unpin(o *object) { o.cell.Unpin() }

// creator gives what builds the pipeline of a module; s is its shader, or nil
// where the words came with the request.
func (c *Cache) creator(m Module, s *shader) func(context.Context) (*object, error) {
	return func(ctx context.Context) (*object, error) {
		origin := Built
		if s != nil {
			var err error
			if m.Words, origin, err = c.compiled(ctx, m.Shader, s, m.Options); err != nil {
				return nil, err
			}
		}
		p, err := c.driver.build(ctx, m)
		if err != nil {
			return nil, err
		}
		c.counters.pipelines.Add(1)
		o := &object{pipeline: p, origin: origin}
		o.cell.Init(func() { c.retire("pipeline", p.Destroy) })
		return o, nil
	}
}

// retire destroys what has lost its last user, who may be any caller. Where that
// has to wait for the driver's other calls it is not the caller who waits, but a
// lent goroutine, for which Close waits. Once nobody builds any more only other
// destroying is left to wait for.
func (c *Cache) retire(what string, release func()) {
	if c.driver.serial == nil || !c.beginRetiring() {
		c.destroy(what, release)
		return
	}
	actors.Go(func() {
		defer c.jobEnded()
		c.destroy(what, release)
	})
}

// beginRetiring notes the start of a job, unless Close has nothing to wait for
// any more.
func (c *Cache) beginRetiring() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed && c.mu.running == 0 {
		return false
	}
	c.mu.running++
	return true
}

// destroy runs a driver's release: its panic is not the caller's.
func (c *Cache) destroy(what string, release func()) {
	if err := c.driver.calling(context.Background(), func() error { release(); return nil }); err != nil {
		c.log.Error("pipelinefile: destroying panicked", "what", what, "error", err)
	}
}

var errNothing = errors.New("the driver returned nothing and no error")
