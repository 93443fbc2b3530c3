package pipelinefile

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/kiln-cache/kiln/internal/fault"
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
// cache destroys it. Ending it again does nothing.
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
		o.cell.Init(func() { c.destroy("pipeline", p.Destroy) })
		return o, nil
	}
}

// destroy runs a driver's release, which may be on any caller's goroutine: its
// panic is not theirs.
func (c *Cache) destroy(what string, release func()) {
	if err := guarded(func() error { release(); return nil }); err != nil {
		c.log.Error("pipelinefile: destroying panicked", "what", what, "error", err)
	}
}

// guarded calls a driver on a caller's own goroutine and makes an error of its
// panic.
func guarded(call func() error) (err error) {
	fault.Guard(call, func(e error) { err = e })
	return err
}

var errNothing = errors.New("the driver returned nothing and no error")
