package pipelinefile

import (
	"context"
	"errors"

	"github.com/kiln-cache/kiln/internal/lease"
)

// object is one pipeline and who uses it. Immutable but for its pins.
type object struct {
	cell     lease.Cell
	pipeline Pipeline
	origin   Origin
	forget   func() // takes it out of the cache, unless it is not there any more
}

func (o *object) unpin() { o.cell.Unpin() }

// Lease is the right to use a pipeline, until End. Safe for concurrent use.
type Lease struct{ lease lease.Lease[*object] }

// newLease takes a pin of the object over.
func newLease(o *object) *Lease {
	l := new(Lease)
	l.lease.Init(o, (*object).unpin)
	return l
}

// Pipeline is what the lease is on; it must not be used after End.
func (l *Lease) Pipeline() Pipeline { return l.lease.Value().pipeline }

// End gives the lease back; the last one of a pipeline that is no longer in the
// cache destroys it, on another goroutine where the driver sees one call at a
// time. Ending it again does nothing.
func (l *Lease) End() { l.lease.End() }

// Evict is End, and takes the pipeline out of the cache: it is destroyed with its
// last lease, and the next request builds another.
func (l *Lease) Evict() {
	l.lease.Value().forget()
	l.End()
}

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

// retired is something that the driver is to destroy.
type retired struct {
	what    string
	release func()
}

// retire destroys what has lost its last user, who may be any caller. Where that
// has to wait for the driver's other calls, it is the bin that waits. After Close
// nobody waits for the bin, and there is nothing but other destroying to wait for.
func (c *Cache) retire(what string, release func()) {
	r := retired{what, release}
	if c.driver.serial != nil && !c.ended() {
		c.bin.Throw(r)
		return
	}
	c.destroy(r)
}

// ended reports whether Close has nothing to wait for any more.
func (c *Cache) ended() bool {
	select {
	case <-c.drained:
		return true
	default:
		return false
	}
}

// destroy runs a driver's release.
func (c *Cache) destroy(r retired) {
	if err := c.driver.calling(context.Background(), func() error { r.release(); return nil }); err != nil {
		c.log.Error("pipelinefile: destroying panicked", "what", r.what, "error", err)
	}
}

func (c *Cache) destroyPanicked(err error) {
	c.log.Error("pipelinefile: destroying panicked", "error", err)
}

var errNothing = errors.New("the driver returned nothing and no error")
