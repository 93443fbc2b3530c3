package flight

import (
	"context"
	"sync"

	"github.com/kiln-cache/kiln/fault"
)

// Flight is one computation of a V. Make it with New, or Begin a zero one that is
// part of something larger. Safe for concurrent use from then on.
type Flight[V any] struct {
	node node
	life life          // the creator's context
	done chan struct{} // closed by Finish, after value and err are set

	value   V
	err     error
	release func(V)

	mu struct {
		sync.Mutex
		holders  int  // waiters, and the creator until Finish
		waiters  int  // who still wants the value
		deserted bool // all waiters left before the end
		starting bool // who started it has an edge to it and does not wait yet
		finished bool
		released bool // the value was given back
	}
}

// New makes a flight on behalf of ctx: its values are kept, its cancellation and
// deadline are not, since others may wait when that caller has gone. Nobody has
// joined yet. scope and key name what is computed, for Within and for errors.
func New[V any](ctx context.Context, scope any, key string) *Flight[V] {
	f := new(Flight[V])
	f.Begin(ctx, scope, key)
	return f
}

// Begin is New in place.
func (f *Flight[V]) Begin(ctx context.Context, scope any, key string) {
	f.done = make(chan struct{})
	f.node = node{scope: scope, key: key}
	if parent := identityOf(ctx); parent != nil {
		f.node.parent = *parent
	}
	f.life.begin(ctx, &f.node)
	f.mu.holders = 1
}

// Context is for the creator. It carries the flight's identity and ends when
// nobody waits any more or Cancel is called.
func (f *Flight[V]) Context() context.Context { return &f.life }

// Join makes the caller one who waits; it must call Wait next. It reports false
// if the flight was deserted, or has ended and let go of its value: then WaitEnd
// and ask again.
func (f *Flight[V]) Join() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.deserted || f.mu.released {
		return false
	}
	f.mu.holders++
	f.mu.waiters++
	return true
}

// Start is the Join of the one on whose behalf the flight was made, before
// anybody else sees it. A creator counts as waiting from here on, so that of a
// circle it is always the wait for an older flight that is answered with
// ErrCycle, and nobody in it deserts a flight of its own.
func (f *Flight[V]) Start() {
	f.mu.Lock()
	f.mu.holders++
	f.mu.waiters++
	f.mu.starting = f.node.parent != nil
	f.mu.Unlock()
	if f.node.parent != nil {
		oblige(f.node.parent, f.life.id)
	}
}

// Wait waits for the value on behalf of one who joined. take is called with it
// before the flight lets go of it: that is the moment to pin it. The error is
// the creator's, the context's, or ErrCycle.
func (f *Flight[V]) Wait(ctx context.Context, take func(V)) error {
	edges, err := f.await(ctx)
	defer f.leave(edges)
	if err != nil {
		return err
	}
	if f.err != nil {
		return f.err
	}
	take(f.value)
	return nil
}

// WaitEnd waits until the flight has finished, without wanting its value.
func (f *Flight[V]) WaitEnd(ctx context.Context) error {
	edges, err := f.await(ctx)
	exit(edges, &f.node)
	return err
}

// await waits, and gives the nodes that have an edge to the flight for that.
func (f *Flight[V]) await(ctx context.Context) (edges []*node, err error) {
	select {
	case <-f.done: // an ended flight is no edge
		return f.started(f.node.parent), nil
	default:
	}
	if from := identityOf(ctx); from != nil {
		if edges = f.started(*from); edges == nil {
			if !enter(*from, &f.node) {
				return nil, &fault.Error{Op: "wait", Key: f.node.key, Err: fault.ErrCycle}
			}
			edges = *from
		}
	}
	if ctx.Done() == nil { // a receive costs half of a select
		<-f.done
		return edges, nil
	}
	select {
	case <-f.done:
		return edges, nil
	case <-ctx.Done():
		return edges, ctx.Err()
	}
}

// started gives from if the edges of Start are its and nobody waits by them yet:
// they are the caller's then.
func (f *Flight[V]) started(from []*node) []*node {
	if len(from) == 0 || len(from) != len(f.node.parent) || &from[0] != &f.node.parent[0] {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mu.starting {
		return nil
	}
	f.mu.starting = false
	return from
}

// Leave is for one who joined and will not wait after all.
func (f *Flight[V]) Leave() { f.leave(f.started(f.node.parent)) }

// leave takes a waiter away, and its edges with it: see Only.
func (f *Flight[V]) leave(edges []*node) {
	f.mu.Lock()
	exit(edges, &f.node)
	f.mu.waiters--
	if f.mu.waiters == 0 && !f.mu.finished {
		f.mu.deserted = true
		f.life.end()
	}
	f.letGoLocked()
}

// Awaits lists the keys of the flights in scope that the creator of f waits for.
func (f *Flight[V]) Awaits(scope any) []string { return f.node.awaits(scope) }

// Only reports whether the creator of other is the only one who waits for f.
func (f *Flight[V]) Only(other *Flight[V]) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.waiters == 1 && other.node.awaitsNode(&f.node)
}

// letGoLocked gives up one hold on the value, unlocks, and releases the value
// if it was the last.
func (f *Flight[V]) letGoLocked() {
	f.mu.holders--
	last := f.mu.holders == 0 && f.err == nil && f.release != nil
	f.mu.released = f.mu.released || last
	f.mu.Unlock()
	if last {
		f.release(f.value)
	}
}

// Finish ends the flight with the creator's result and wakes all who wait.
// release, if not nil, is called once with the value when the last of them has
// taken it. Later calls do nothing and report false.
func (f *Flight[V]) Finish(value V, err error, release func(V)) bool {
	f.mu.Lock()
	if f.mu.finished {
		f.mu.Unlock()
		return false
	}
	f.mu.finished = true
	f.value, f.err, f.release = value, err, release
	settle(&f.node)
	close(f.done)
	f.life.end()
	f.letGoLocked()
	return true
}

// Cancel ends the creator's context; who waits goes on waiting for Finish.
func (f *Flight[V]) Cancel() { f.life.end() }

// Deserted reports whether all waiters left before the end.
func (f *Flight[V]) Deserted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.deserted
}

// Waiters is the number of those who have joined and not left.
func (f *Flight[V]) Waiters() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.waiters
}

// Done is closed at the end.
func (f *Flight[V]) Done() <-chan struct{} { return f.done }

// Finished reports whether the flight has ended.
func (f *Flight[V]) Finished() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// Own ties the flight to the code that runs under ctx and has promised to finish
// it (an owner of a constant, SPEC T3): who waits for the flight waits for the
// flights of ctx, too. The context returned is ctx with the flight's identity
// added; what the owner asks for under it counts for both.
func (f *Flight[V]) Own(ctx context.Context) context.Context {
	var owner []*node
	if id := identityOf(ctx); id != nil {
		owner = *id
	}
	oblige(f.life.id, owner)
	both := append(owner[:len(owner):len(owner)], &f.node)
	return context.WithValue(ctx, identityKey{}, &both)
}
