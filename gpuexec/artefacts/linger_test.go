package artefacts_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// F4: a creator goes on for the linger time when all have left, and what it makes
// is kept, so that callers with deadlines shorter than it get further with each try.
// After that time its context ends, and its place is free.
func TestLinger(t *testing.T) {
	for _, c := range []struct {
		what        string
		room, call  time.Duration
		made, tries int32
	}{
		{"none", 0, 0, 0, 6},
		{"of the room", time.Minute, 0, 1, 6},
		{"of the request", 0, time.Minute, 1, 6},
		{"too short", time.Millisecond, 0, 0, 6},
		{"none for this request", time.Minute, -1, 0, 6},
	} {
		actorstest.Bubble(t, func(t *testing.T) {
			cache, err := artefacts.Open(artefacts.Config{Linger: c.room})
			if err != nil {
				t.Fatal(err)
			}
			defer cache.Close(context.Background())
			var begun, made atomic.Int32
			get := func() error {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				defer cancel()
				l, _, err := cache.Get(ctx, artefacts.Request{Key: "k", Linger: c.call, Create: func(ctx context.Context) (artefacts.Built, error) {
					begun.Add(1)
					select {
					case <-time.After(50 * time.Millisecond):
						made.Add(1)
						return artefacts.Built{Value: 7}, nil
					case <-ctx.Done():
						return artefacts.Built{}, ctx.Err()
					}
				}})
				if err == nil {
					l.End()
				}
				return err
			}
			for try := int32(1); ; try++ {
				err := get()
				time.Sleep(5 * time.Millisecond) // between two tries nobody waits
				if err == nil || try == c.tries {
					break
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", c.what, err)
				}
			}
			if made.Load() != c.made || c.made == 1 && begun.Load() != 1 {
				t.Errorf("%s: %d begun, %d made; want %d made, at once", c.what, begun.Load(), made.Load(), c.made)
			}
			if cache.Has("k") != (c.made == 1) {
				t.Errorf("%s: kept %v", c.what, cache.Has("k"))
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if n := cache.Len(); n != int(c.made) {
				t.Errorf("%s: %d places are taken in the end", c.what, n)
			}
		})
	}
}

// F4: of several callers of a creator the longest linger time counts, also that of one who
// came later.
func TestLongestLinger(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		cache, err := artefacts.Open(artefacts.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close(context.Background())
		ctx, leave := context.WithCancel(context.Background())
		for _, linger := range []time.Duration{-1, time.Minute, time.Second} {
			go func() {
				_, _, _ = cache.Get(ctx, artefacts.Request{Key: "k", Linger: linger, Create: func(ctx context.Context) (artefacts.Built, error) {
					select {
					case <-time.After(30 * time.Second):
						return artefacts.Built{Value: 7}, nil
					case <-ctx.Done():
						return artefacts.Built{}, ctx.Err()
					}
				}})
			}()
			synctest.Wait() // the first of them begins it
		}
		leave()
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if !cache.Has("k") {
			t.Error("what it made is not kept")
		}
	})
}
