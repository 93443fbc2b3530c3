package pipelinefile

import (
	"context"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
)

// role is what a caller turned out to be.
type role int

const (
	none    role = iota
	found        // it was there
	started      // this caller's creator made it
	joined       // another's did
)

// flying is a flight and the generation that it began in.
type flying[V any] struct {
	*flight.Flight[V]
	generation uint64
}

// ridden is one thing that is computed at most once at a time. The functions
// marked so are called with the cache's mutex held.
type ridden[K comparable, V any] struct {
	key    K
	name   string // for errors
	flying map[K]*flying[V]

	found   func() bool // locked: takes what is there already
	create  func(context.Context) (V, error)
	keep    func(v V, generation uint64) // locked: enters v, if it may stay
	release func(V)                      // gives back the flight's own hold on v; may be nil
	take    func(V)                      // before release
}

// ride brings the caller to the value: one that is there, that of the flight of
// its key, or of a new flight. INVARIANT: a key's flight is in the map from
// before its creator starts until what it made was kept, under one hold of the
// mutex; so two creators of a key never run at once.
func ride[K comparable, V any](ctx context.Context, c *Cache, r ridden[K, V]) (role, error) {
	if err := ctx.Err(); err != nil {
		return none, err
	}
	for {
		c.mu.Lock()
		if c.mu.closed {
			c.mu.Unlock()
			return none, ErrClosed
		}
		if r.found() {
			c.mu.Unlock()
			return found, nil
		}
		role, f := joined, r.flying[r.key]
		switch {
		case f == nil:
			role, f = started, &flying[V]{flight.New[V](ctx, c, r.name), c.mu.generation}
			f.Start()
			r.flying[r.key] = f
			c.mu.running++
			c.mu.Unlock()
			actors.Go(func() { run(c, r, f) })
		case f.Join():
			c.mu.Unlock()
		default: // everybody left it and it has not ended yet
			c.mu.Unlock()
			if err := f.WaitEnd(ctx); err != nil {
				return none, err
			}
			continue
		}
		return role, f.Wait(ctx, r.take)
	}
}

// run is the life of a creator, on its own goroutine.
func run[K comparable, V any](c *Cache, r ridden[K, V], f *flying[V]) {
	var v V
	guard.Guard(func() (err error) {
		v, err = r.create(f.Context())
		return err
	}, func(err error) {
		c.mu.Lock()
		if err == nil {
			r.keep(v, f.generation)
		}
		delete(r.flying, r.key)
		c.mu.Unlock()
		if !f.Finish(v, err, r.release) && err == nil && r.release != nil { // closed meanwhile
			r.release(v)
		}
		c.jobEnded()
	})
}

// begin notes the start of something that Close waits for, since it calls the
// driver: ErrClosed and the context's error if it must not. The caller owes a
// jobEnded.
func (c *Cache) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return ErrClosed
	}
	c.mu.running++
	return nil
}

// jobEnded notes the end of something that Close waits for.
func (c *Cache) jobEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.running--
	c.drainedLocked()
}

func (c *Cache) drainedLocked() {
	if c.mu.closed && c.mu.running == 0 {
		close(c.drained)
	}
}

// strand ends every flight for those who wait, and asks the creators to end.
func strand[V any](flights []*flying[V]) {
	var nothing V
	for _, f := range flights {
		f.Finish(nothing, ErrClosed, nil)
		f.Cancel()
	}
}
