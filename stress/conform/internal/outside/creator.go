package outside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// Load is what the driver does with a stored blob.
type Load string

// The values of load=.
const (
	LoadOK     Load = "ok"
	LoadRefuse Load = "refuse"
	LoadAbort  Load = "abort"
)

// Creator describes a fake creator. It is a value; World.Create runs it.
type Creator struct {
	Value  string        // of what it makes
	Bytes  int64         // its size
	Cost   time.Duration // compile time it reports
	After  time.Duration // takes so long
	Wait   string        // takes until this gate opens
	Fail   *string       // ends in an error of this text
	Panic  *string
	Goexit bool
	Deaf   bool     // After and Wait do not end early with its context
	Nest   []string // keys it asks for first
	Kernel string   // of the kernel layer
	Log    string   // file that gets a line at each beginning
	Load   Load
}

// Default is the creator of a key of which the script says nothing.
func Default(key string) Creator {
	return Creator{Value: key, Bytes: 1, Cost: time.Second, Load: LoadOK}
}

// CreatorError is a creator's own error.
type CreatorError struct{ Text string }

func (e *CreatorError) Error() string { return e.Text }

// Hooks join a creator to the cache that runs it. Each may be nil.
type Hooks struct {
	Begun  func()                                         // it has begun
	Nest   func(ctx context.Context, key string) error    // gets a key from the same cache
	Kernel func(ctx context.Context, kernel string) error // gets a kernel from the layer below
}

// Tally counts by key what creators and drivers did. The zero value is empty.
// Safe for concurrent use.
type Tally struct {
	Creations Counts // creators that have run
	Aborted   Counts // creators that ended early because their context did
	Loads     Counts // blobs that were given to the driver
}

// Create runs the creator of key as user code would run: it may fail, panic,
// leave its goroutine, or take until ctx ends. Each tally counts it.
func (w *World) Create(ctx context.Context, c Creator, key string, h Hooks, tallies ...*Tally) (*Value, error) {
	for _, t := range tallies {
		t.Creations.Add(key)
	}
	if c.Log != "" {
		if err := w.log(c.Log, key); err != nil {
			return nil, err
		}
	}
	if h.Begun != nil {
		h.Begun()
	}
	for _, part := range c.Nest {
		if h.Nest == nil {
			return nil, errors.New("nest= has no meaning here")
		}
		if err := h.Nest(ctx, part); err != nil {
			return nil, err
		}
	}
	if c.Kernel != "" {
		if h.Kernel == nil {
			return nil, errors.New("kernel= has no meaning here")
		}
		if err := h.Kernel(ctx, c.Kernel); err != nil {
			return nil, err
		}
	}
	if err := w.Pass(ctx, c); err != nil {
		for _, t := range tallies {
			t.Aborted.Add(key)
		}
		return nil, err
	}
	switch {
	case c.Panic != nil:
		panic(*c.Panic)
	case c.Goexit:
		runtime.Goexit()
	case c.Fail != nil:
		return nil, &CreatorError{*c.Fail}
	}
	return w.Value(c.Value, c.Bytes, c.Cost), nil
}

// Pass takes the time that after= and wait= say, or ends early with ctx
// or with the case.
func (w *World) Pass(ctx context.Context, c Creator) error {
	if c.Deaf {
		ctx = context.WithoutCancel(ctx)
	}
	if c.After > 0 {
		timer := time.NewTimer(c.After)
		defer timer.Stop()
		if err := await(ctx, w.base, timer.C); err != nil {
			return err
		}
	}
	if c.Wait != "" {
		return await(ctx, w.base, w.Gate(c.Wait))
	}
	return nil
}

// await returns when something comes over c, or with the error of the context
// that ends before.
func await[T any](ctx, base context.Context, c <-chan T) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-base.Done():
		return base.Err()
	}
}

// log appends a line in one write, so that lines of several processes stay whole.
func (w *World) log(name, key string) error {
	if !filepath.IsLocal(name) {
		return invalid("log", "%s is not inside the case's directory", name)
	}
	f, err := os.OpenFile(filepath.Join(w.Dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s\n", key)
	return errors.Join(err, f.Close())
}
