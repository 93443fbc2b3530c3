package kiln_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/sessioncache"
)

// F8: the callers of every session and of every executor are answered at once, whatever keeps
// the close of another.
func TestCloseOfOneWaitsForNoOther(t *testing.T) {
	const all = 4
	for what, begin := range map[string]func(r *kiln.Runtime, stuck func(), answer func(error)){
		"session": func(r *kiln.Runtime, stuck func(), answer func(error)) {
			s := session(t, r)
			g := group(t, s, 1)
			if err := kiln.Set(ctx, g, "stuck", kiln.Made[int]{Free: stuck}); err != nil {
				t.Fatal(err)
			}
			g.Close()
			begun := make(chan struct{})
			go func() {
				g, err := s.Cache().Group(ctx, must(kiln.ShapeOf([]int64{2})))
				if err != nil {
					t.Error(err)
				}
				defer g.Close()
				_, _, err = g.Get(ctx, "n", sessioncache.Options{}, func(ctx context.Context) (sessioncache.Value, error) {
					close(begun)
					stuck()
					return sessioncache.Value{}, nil
				})
				answer(err)
			}()
			<-begun
		},
		"executor": func(r *kiln.Runtime, stuck func(), answer func(error)) {
			begun := make(chan struct{})
			e := executor(t, r, &fakedevice.Backend{OnCall: func(call string) error {
				if call == "alloc" {
					close(begun)
					stuck()
				}
				return nil
			}})
			go func() {
				_, err := e.Alloc(ctx, 1)
				answer(err)
			}()
			<-begun
		},
	} {
		r := open(t, kiln.Config{})
		goOn, answers := make(chan struct{}), make(chan error, all)
		for range all {
			begin(r, func() { <-goOn }, func(err error) { answers <- err })
		}
		left, leave := context.WithCancel(ctx)
		leave()
		if err := r.Close(left); !errors.Is(err, context.Canceled) {
			t.Errorf("Close beside what is stuck: %v", err)
		}
		late := time.After(10 * time.Second)
		for i := 0; i < all; i++ {
			select {
			case err := <-answers:
				if !errors.Is(err, kiln.ErrClosed) {
					t.Errorf("a caller of a %s is told %v", what, err)
				}
			case <-late:
				t.Errorf("%d callers of a %s wait for the close of another", all-i, what)
				i = all
			}
		}
		close(goOn)
		if err := closed(r); err != nil {
			t.Error(err)
		}
	}
}
