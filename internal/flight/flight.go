package flight

import (
	"context"
	"sync"

	"github.com/kiln-cache/kiln/internal/fault"
)

// Flight is one computation of a V. Safe for concurrent use.
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
		finished bool
		released bool // the value was given back
	}
}

// New makes a flight on behalf of ctx: its values are kept, its cancellation and
// deadline are not, since others may wait when that caller has gone. Nobody has
// joined yet. scope and key name what is computed, for Within and for errors.
func New[V any](ctx context.Context, scope any, key string) *Flight[V] {
	f := &Flight[V]{done: make(chan struct{})}
	f.node = node{scope: scope, key: key}
	if parent := identityOf(ctx); parent != nil {
		f.node.parent = *parent
	}
	f.life.begin(ctx, &f.node)
	f.mu.holders = 1
	return f
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

// Wait waits for the value on behalf of one who joined. take is called with it
// before the flight lets go of it: that is the moment to pin it. The error is
// the creator's, the context's, or ErrCycle.
func (f *Flight[V]) Wait(ctx context.Context, take func(V)) error {
	defer f.leave()
	if err := f.wait(ctx); err != nil {
		return err
	}
	if f.err != nil {
		return f.err
	}
	take(f.value)
	return nil
}

// WaitEnd waits until the flight has finished, without wanting its value.
func (f *Flight[V]) WaitEnd(ctx context.Context) error { return f.wait(ctx) }

func (f *Flight[V]) wait(ctx context.Context) error {
	select {
	case <-f.done: // an ended flight is no edge
		return nil
	default:
	}
	if from := identityOf(ctx); from != nil {
		if !enter(*from, &f.node) {
			return &fault.Error{Op: "wait", Key: f.node.key, Err: fault.ErrCycle}
		}
		defer exit(*from, &f.node)
	}
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave is for one who joined and will not wait after all.
func (f *Flight[V]) Leave() { f.leave() }

func (f *Flight[V]) leave() {
	f.mu.Lock()
	f.mu.waiters--
	if f.mu.waiters == 0 && !f.mu.finished {
		f.mu.deserted = true
		f.life.end()
	}
	f.letGoLocked()
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
	oblige(&f.node, owner)
	both := append(owner[:len(owner):len(owner)], &f.node)
	return context.WithValue(ctx, identityKey{}, &both)
}
