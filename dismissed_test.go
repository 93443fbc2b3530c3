package kiln_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// F8: the callers of every session and of every executor are answered at once, whatever keeps
// the close of another.
func TestCloseOfOneWaitsForNoOther(t *testing.T) {
	const all = 4
	for what, begin := range map[string]func(r *kiln.Runtime, i int, stuck func(), answer func(error)){
		"session": func(r *kiln.Runtime, i int, stuck func(), answer func(error)) {
			s := session(t, r)
			g := group(t, s, 1)
			if err := kiln.Set(ctx, g, "stuck", kiln.Made[int]{Free: stuck}); err != nil {
				t.Fatal(err)
			}
			g.Close()
			g = group(t, s, 2)
			begun := make(chan struct{})
			go func() {
				defer g.Close()
				_, err := kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: strconv.Itoa(i), Make: func(ctx context.Context) (kiln.Made[int], error) {
					close(begun)
					stuck()
					return kiln.Made[int]{}, nil
				}})
				answer(err)
			}()
			<-begun
		},
		"executor": func(r *kiln.Runtime, _ int, stuck func(), answer func(error)) {
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
		for i := range all {
			begin(r, i, func() { <-goOn }, func(err error) { answers <- err })
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
