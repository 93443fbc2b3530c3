package guard

import (
	"context"
	"sync"
	"sync/atomic"
)

// Context is ctx, which may be user code, for the context package to watch: that
// calls Err and Value on goroutines of its own, where a panic would end the process,
// as would an Err of nil after Done. A context of the standard library behind it is
// still watched without a goroutine.
func Context(ctx context.Context) context.Context { return &watched{Context: ctx} }

// watched keeps what the context package finds its parents by: it asks again when it
// stops watching, and goes on for as long as they live where it finds none.
type watched struct {
	context.Context
	asked sync.Once
	done  <-chan struct{}
	found atomic.Pointer[found]
}

type found struct{ key, value any }

func (w *watched) Done() <-chan struct{} {
	w.asked.Do(func() {
		defer func() { _ = recover() }()
		w.done = w.Context.Done()
	})
	return w.done
}

func (w *watched) Value(key any) (v any) {
	defer func() { _ = recover() }()
	if f := w.found.Load(); f != nil && f.key == key {
		return f.value
	}
	if v = w.Context.Value(key); v != nil {
		w.found.CompareAndSwap(nil, &found{key, v})
	}
	return v
}

func (w *watched) Err() (err error) {
	defer func() {
		if recover() != nil {
			err = context.Canceled
		}
	}()
	select {
	case <-w.Done():
		return Ended(w.Context)
	default:
		return w.Context.Err()
	}
}

// Ended is the error of a context whose Done is closed: never nil, whatever ctx says.
func Ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Canceled
}
