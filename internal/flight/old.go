package flight

import (
	"context"
	"sync"
)

// old is what rooms without a desk use. It goes with the last of them.
type old struct {
	sync.Mutex
	waiters  int  // who still wants the value
	deserted bool // all waiters left before the end
}

// Join makes the caller one who waits; it must call Wait next. It reports false
// if the flight was deserted, or has ended and let go of its value: then WaitEnd
// and ask again.
func (f *Flight[V]) Join() bool {
	f.old.Lock()
	defer f.old.Unlock()
	for n := f.aboard.Load(); n > 0 && !f.old.deserted; n = f.aboard.Load() {
		if f.aboard.CompareAndSwap(n, n+1) {
			f.old.waiters++
			return true
		}
	}
	return false
}

func (o *old) start() {
	o.Lock()
	o.waiters++
	o.Unlock()
}

// Wait waits for the value on behalf of one who joined. take is called with it
// before the flight lets go of it: that is the moment to pin it.
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

// Leave is for one who joined and will not wait after all.
func (f *Flight[V]) Leave() { f.leave(f.started(f.node.parent)) }

// leave takes a waiter away, and its edges with it: see Only.
func (f *Flight[V]) leave(edges []*node) {
	f.old.Lock()
	f.old.waiters--
	if f.old.waiters == 0 && !f.finished.Load() {
		f.old.deserted = true
		f.life.end()
	}
	exit(edges, &f.node)
	f.old.Unlock()
	f.getOff(nil)
}

// Deserted reports whether all waiters left before the end.
func (f *Flight[V]) Deserted() bool {
	f.old.Lock()
	defer f.old.Unlock()
	return f.old.deserted
}

// Waiters is the number of those who have joined and not left.
func (f *Flight[V]) Waiters() int {
	f.old.Lock()
	defer f.old.Unlock()
	return f.old.waiters
}

// Awaits lists the keys of the flights in scope that the creator of f waits for.
func (f *Flight[V]) Awaits(scope any) (keys []string) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	for to := range f.node.mu.waits {
		if to.scope == scope {
			keys = append(keys, to.key)
		}
	}
	return keys
}

// Only reports whether the creator of other is the only one who waits for f.
func (f *Flight[V]) Only(other *Flight[V]) bool {
	f.old.Lock()
	defer f.old.Unlock()
	other.node.mu.Lock()
	defer other.node.mu.Unlock()
	return f.old.waiters == 1 && other.node.mu.waits[&f.node] > 0
}
