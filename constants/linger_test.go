package constants

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// lingers are ways to ask for a linger time, and what comes of them.
var lingers = []struct {
	what       string
	room, call time.Duration
	wait       time.Duration // that it is
}{
	{"none", 0, 0, 0},
	{"of the room", time.Minute, 0, time.Minute},
	{"of the call", 0, time.Minute, time.Minute},
	{"none for this call", time.Minute, -1, 0},
}

// F4: what Get computes goes on for the linger time after its caller's context, and is
// kept: callers whose deadlines are shorter than it get further.
func TestComputationLingers(t *testing.T) {
	for _, c := range lingers {
		actorstest.Bubble(t, func(t *testing.T) {
			_, e := open(t, Config{Linger: c.room})
			for _, lasts := range []time.Duration{50 * time.Millisecond, time.Hour} {
				ctx, leave := context.WithTimeout(context.Background(), 20*time.Millisecond)
				start, runs := time.Now(), 0
				l, _, err := e.Get(ctx, key(lasts.String()), 1, Options{Linger: c.call}, func(own context.Context) (Value, error) {
					runs++
					select {
					case <-time.After(lasts):
						return Value{Any: 7, Bytes: 1}, nil
					case <-own.Done():
						return Value{}, own.Err()
					}
				})
				leave()
				took, kept := time.Since(start), c.wait > lasts
				if l != nil {
					l.End()
				}
				if want := min(lasts, 20*time.Millisecond+c.wait); took != want || kept != (err == nil) || !kept && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s, %v: %v after %v, want %v", c.what, lasts, err, took, want)
				}
				if l, ok := e.Lookup(key(lasts.String())); ok != kept {
					t.Errorf("%s, %v: kept %v", c.what, lasts, ok)
				} else if ok {
					l.End()
				}
			}
		})
	}
}

// T6: the end of the context that an owner asked with counts as Abandon, whatever the
// linger time: its waiters are told, and one that can compute becomes the owner.
func TestOwnerDoesNotLinger(t *testing.T) {
	for _, c := range lingers {
		actorstest.Bubble(t, func(t *testing.T) {
			_, e := open(t, Config{Linger: c.room})
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			out, err := e.GetOrAdd(ctx, key("k"), 1, Options{Linger: c.call})
			if err != nil {
				t.Fatal(err)
			}
			heirs, told := make(chan *Promise, 1), make(chan error, 1)
			for _, can := range []bool{true, false} {
				go func() {
					out, err := e.GetOrAdd(context.Background(), key("k"), 1, Options{CanOwn: can})
					if can {
						heirs <- out.Owner
					} else {
						told <- err
					}
				}()
			}
			synctest.Wait()
			start := time.Now()
			leave()
			heir := <-heirs
			if err := <-told; !errors.Is(err, fault.ErrAbandoned) || heir == nil || time.Since(start) != 0 {
				t.Errorf("%s: after %v its waiters have %v, %v", c.what, time.Since(start), heir, err)
			}
			if _, err := out.Owner.Fulfil(7, 1, nil); !errors.Is(err, fault.ErrInvalid) || out.Owner.Context().Err() == nil {
				t.Errorf("%s: it delivers: %v", c.what, err)
			}
			if heir != nil {
				heir.Abandon()
			}
		})
	}
}
