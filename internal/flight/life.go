package flight

import (
	"context"
	"sync"
	"time"
)

// life is the context of a creator: the values of the caller that caused the
// flight, an end of its own, and the flight's identity. It lies inside of the
// flight and makes its channel only for those who ask, so that a creator that
// computes at once costs nothing here.
type life struct {
	caller context.Context
	self   [1]*node
	id     identity // with self

	mu struct {
		sync.Mutex
		ended  bool
		inner  context.Context // once somebody asked for Done
		cancel context.CancelFunc
	}
}

func (l *life) begin(caller context.Context, n *node, up *identity) {
	l.caller = caller
	l.self[0] = n
	l.id.nodes = l.self[:]
	if up != nil {
		l.id.marks = up.marks
	}
}

func (l *life) end() {
	l.mu.Lock()
	cancel := l.mu.cancel
	l.mu.ended = true
	l.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Deadline is none: the caller's is its own.
func (l *life) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done is closed when nobody waits any more, or the flight has ended.
func (l *life) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.inner == nil {
		l.mu.inner, l.mu.cancel = context.WithCancel(context.WithoutCancel(l.caller))
		if l.mu.ended {
			l.mu.cancel()
		}
	}
	return l.mu.inner.Done()
}

// Err is context.Canceled after the end.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.ended {
		return context.Canceled
	}
	return nil
}

// Value gives the identity, else what the caller's context holds. Through inner
// the context package finds its own kind, so that contexts made from this one
// need no goroutine to learn of its end.
func (l *life) Value(key any) any {
	if key == (identityKey{}) {
		return &l.id
	}
	l.mu.Lock()
	inner := l.mu.inner
	l.mu.Unlock()
	if inner != nil {
		return inner.Value(key)
	}
	return context.WithoutCancel(l.caller).Value(key)
}
