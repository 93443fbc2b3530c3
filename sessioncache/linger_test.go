package sessioncache_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/sessioncache"
)

// F4: a creator goes on for the linger time of its session, or of a call, when all have
// left; who comes meanwhile waits for it, and what it makes is kept. After that time, and
// when the session closes, its context ends.
func TestLinger(t *testing.T) {
	for _, c := range []struct {
		what       string
		room, call time.Duration
		begun      int32 // in six tries of 20 ms at 50 ms
	}{
		{"none", 0, 0, 6},
		{"of the session", time.Minute, 0, 1},
		{"of the call", 0, time.Minute, 1},
		{"too short", time.Millisecond, 0, 6},
		{"none for this call", time.Minute, -1, 6},
	} {
		actorstest.Bubble(t, func(t *testing.T) {
			p := open(t, sessioncache.Config{Linger: c.room})
			var begun, ended atomic.Int32
			ask := func(within, lasts time.Duration) error {
				ctx, leave := context.WithTimeout(bg, within)
				defer leave()
				g, err := p.Group(bg, shape(t, 1))
				if err != nil {
					return err
				}
				defer g.Close()
				_, _, err = g.Get(ctx, "n", sessioncache.Options{Linger: c.call}, func(ctx context.Context) (sessioncache.Value, error) {
					begun.Add(1)
					select {
					case <-time.After(lasts):
						return p.value("v"), nil
					case <-ctx.Done():
						ended.Add(1)
						return sessioncache.Value{}, ctx.Err()
					}
				})
				time.Sleep(5 * time.Millisecond) // between two tries nobody waits
				return err
			}
			tries := int32(0)
			for err := context.DeadlineExceeded; errors.Is(err, context.DeadlineExceeded) && tries < 6; tries++ {
				err = ask(20*time.Millisecond, 50*time.Millisecond)
			}
			if want(t, c.what+": begun", begun.Load(), c.begun); c.begun == 1 {
				want(t, c.what+": tries", tries, int32(3))
				want(t, c.what+": value", p.get(1, "n"), "v")
				if err := p.ResetAll(bg); err != nil {
					t.Error(err)
				}
				_ = ask(time.Second, time.Hour)
				if err := ask(2*time.Hour, 0); err != nil { // it joins, and stays for longer than the linger time
					t.Errorf("%s: joined: %v", c.what, err)
				}
				if err := p.ResetAll(bg); err != nil {
					t.Error(err)
				}
				_ = ask(time.Second, time.Hour)
				time.Sleep(time.Minute - 10*time.Millisecond)
				want(t, c.what+": ended within it", ended.Load(), int32(0))
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				want(t, c.what+": ended after it", ended.Load(), int32(1))
			}
			before := ended.Load()
			_ = ask(time.Second, time.Hour)
			start := time.Now()
			if err := p.Close(bg); err != nil || time.Since(start) > time.Second {
				t.Errorf("%s: Close took %v, %v", c.what, time.Since(start), err)
			}
			want(t, c.what+": ended by Close", ended.Load(), before+1)
		})
	}
}

// F4: of several callers of a creator the longest linger time counts, also that of one who
// came later.
func TestLongestLinger(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		p := open(t, sessioncache.Config{})
		ctx, leave := context.WithCancel(bg)
		for _, linger := range []time.Duration{-1, time.Minute, time.Second} {
			g := p.hold(1)
			go func() {
				_, _, _ = g.Get(ctx, "n", sessioncache.Options{Linger: linger}, func(ctx context.Context) (sessioncache.Value, error) {
					select {
					case <-time.After(30 * time.Second):
						return p.value("v"), nil
					case <-ctx.Done():
						return sessioncache.Value{}, ctx.Err()
					}
				})
			}()
			synctest.Wait() // the first of them begins it
		}
		leave()
		time.Sleep(40 * time.Second)
		synctest.Wait()
		want(t, "value", p.get(1, "n"), "v")
	})
}

// G13: a caller without a key has a value made that says its key: one who waits for it
// with another key does not get it.
func TestKeyOfWhatWasWaitedFor(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		p := open(t, sessioncache.Config{})
		gate := make(chan struct{})
		first, second := p.hold(1), p.hold(1)
		go func() {
			_, _, err := first.Get(bg, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
				<-gate
				v := p.value("v")
				v.Key = "one"
				return v, nil
			})
			if err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		failed := make(chan error, 1)
		go func() {
			_, _, err := second.Get(bg, "n", sessioncache.Options{Key: "two"}, func(context.Context) (sessioncache.Value, error) {
				panic("unreachable")
			})
			failed <- err
		}()
		synctest.Wait()
		close(gate)
		wantError(t, "with another key", <-failed, fault.ErrInvalid)
	})
}
