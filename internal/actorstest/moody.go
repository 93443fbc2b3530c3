package actorstest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/actors"
)

// Moody is a context of a user's own that does harm at one of its calls. Make one with
// NewMoody.
type Moody struct {
	context.Context
	calls atomic.Int64
	harm  func()
}

// NewMoody is around, but for its call of that number, from 1 on.
func NewMoody(around context.Context, call int64, harm func()) *Moody {
	m := &Moody{Context: around, harm: harm}
	m.calls.Store(call)
	return m
}

// Harmed reports whether the call has come.
func (m *Moody) Harmed() bool { return m.calls.Load() <= 0 }

func (m *Moody) ask() {
	if m.calls.Add(-1) == 0 {
		m.harm()
	}
}

// Done, Err, Value and Deadline are those of a context.Context.
func (m *Moody) Done() <-chan struct{}                   { m.ask(); return m.Context.Done() }
func (m *Moody) Err() error                              { m.ask(); return m.Context.Err() }
func (m *Moody) Value(key any) any                       { m.ask(); return m.Context.Value(key) }
func (m *Moody) Deadline() (deadline time.Time, ok bool) { m.ask(); return m.Context.Deadline() }

// Apart runs fn on a goroutine that it may end, and reports whether it returned.
func Apart(fn func()) (returned bool) {
	over := make(chan struct{})
	actors.Go(func() {
		defer close(over)
		defer func() { _ = recover() }()
		fn()
		returned = true
	})
	<-over
	return returned
}
