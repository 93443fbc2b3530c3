package guard

import "context"

// Context is ctx, which may be user code, for the context package to watch: that
// calls Err and Value on goroutines of its own, where a panic would end the process,
// as would an Err of nil after Done. A context of the standard library behind it is
// still watched without a goroutine.
func Context(ctx context.Context) context.Context { return watched{ctx} }

type watched struct{ context.Context }

func (w watched) Done() (done <-chan struct{}) {
	defer func() { _ = recover() }()
	return w.Context.Done()
}

func (w watched) Value(key any) (v any) {
	defer func() { _ = recover() }()
	return w.Context.Value(key)
}

func (w watched) Err() (err error) {
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
