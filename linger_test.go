package kiln_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// F4: callers whose deadline is shorter than a compile get further with each
// try, and the value is made once: the making lingers, a minute by default. Without
// lingering none of them gets anywhere.
func TestDeadlineShorterThanTheCompile(t *testing.T) {
	for _, c := range []struct {
		what    string
		room    time.Duration
		options []kiln.Option
		made    int32
	}{
		{"by default", 0, nil, 1},
		{"none in the runtime", -1, nil, 0},
		{"none for the call", 0, []kiln.Option{kiln.Linger(0)}, 0},
		{"for the call", -1, []kiln.Option{kiln.Linger(time.Second)}, 1},
	} {
		actorstest.Bubble(t, func(t *testing.T) {
			s := session(t, open(t, kiln.Config{Linger: c.room}))
			var begun, made atomic.Int32
			recipe := kiln.Recipe[int]{Key: "k", Make: func(ctx context.Context) (kiln.Made[int], error) {
				begun.Add(1)
				select {
				case <-time.After(150 * time.Millisecond):
					made.Add(1)
					return kiln.Made[int]{Value: 7}, nil
				case <-ctx.Done():
					return kiln.Made[int]{}, ctx.Err()
				}
			}}
			var v int
			for range 20 {
				request, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				g := group(t, s, 1)
				got, err := kiln.Get(request, g, "n", recipe, c.options...)
				if err == nil {
					v = got
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", c.what, err)
				}
				g.Close()
				cancel()
				time.Sleep(time.Millisecond)
			}
			if made.Load() != c.made || v != int(7*c.made) || c.made == 1 && begun.Load() != 1 {
				t.Errorf("%s: %d begun, %d made, got %d; want it made %d times", c.what, begun.Load(), made.Load(), v, c.made)
			}
		})
	}
}

// F4: what the runtime says of lingering holds with a cache that is brought, too.
func TestLingerWithArtefactsBrought(t *testing.T) {
	for _, c := range []struct {
		cache, room time.Duration
		options     []kiln.Option
		ends        bool // at once
	}{{0, 0, nil, true}, {time.Hour, 0, nil, false}, {0, time.Hour, nil, false}, {time.Hour, -1, nil, true}, {time.Hour, 0, []kiln.Option{kiln.Linger(0)}, true}} {
		actorstest.Bubble(t, func(t *testing.T) {
			cache := must(artefacts.Open(artefacts.Config{Linger: c.cache}))
			defer cache.Close(ctx)
			g := group(t, session(t, open(t, kiln.Config{Artefacts: cache, Linger: c.room})), 1)
			defer g.Close()
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			var ended atomic.Bool
			_, err := kiln.Get(short, g, "n", kiln.Recipe[int]{Key: "k", Make: func(ctx context.Context) (kiln.Made[int], error) {
				<-ctx.Done()
				ended.Store(true)
				return kiln.Made[int]{}, ctx.Err()
			}}, c.options...)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			synctest.Wait()
			if ended.Load() != c.ends {
				t.Errorf("%v, %v, %v: ended %v", c.cache, c.room, c.options, ended.Load())
			}
		})
	}
}

// F4, K6: what is made for one call alone lingers as any other.
func TestLingerOfWhatIsMadeAlone(t *testing.T) {
	for _, c := range []struct {
		room    time.Duration
		options []kiln.Option
		ends    bool // at once
	}{
		{0, nil, false},
		{-1, nil, true},
		{0, []kiln.Option{kiln.Linger(0)}, true},
		{-1, []kiln.Option{kiln.Linger(time.Hour)}, false},
	} {
		actorstest.Bubble(t, func(t *testing.T) {
			g := group(t, session(t, open(t, kiln.Config{Linger: c.room})), 1)
			defer g.Close()
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			var ended atomic.Bool
			_, err := kiln.Get(short, g, "n", kiln.Recipe[int]{Key: "k", Unhashable: "include", Make: func(ctx context.Context) (kiln.Made[int], error) {
				<-ctx.Done()
				ended.Store(true)
				return kiln.Made[int]{}, ctx.Err()
			}}, c.options...)
			synctest.Wait()
			if !errors.Is(err, context.DeadlineExceeded) || ended.Load() != c.ends {
				t.Errorf("%v, %v: ended %v, %v", c.room, c.options, ended.Load(), err)
			}
		})
	}
}

// F4: an artefact that is asked of the cache itself lingers for as long as the runtime says,
// a minute by default.
func TestLingerOfAnArtefactOfTheCache(t *testing.T) {
	for room, kept := range map[time.Duration]bool{0: true, time.Second: true, 10 * time.Millisecond: false, -1: false} {
		actorstest.Bubble(t, func(t *testing.T) {
			cache := open(t, kiln.Config{Linger: room}).Artefacts()
			var ended error
			request := artefacts.Request{Key: "k", Create: func(ctx context.Context) (artefacts.Built, error) {
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
				}
				ended = ctx.Err()
				return artefacts.Built{Value: 7}, ended
			}}
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if _, _, err := cache.Get(short, request); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v: %v", room, err)
			}
			time.Sleep(time.Second)
			synctest.Wait() // the creator has written how it ended
			if kept != (ended == nil) {
				t.Errorf("%v: the creator ended with %v", room, ended)
			}
		})
	}
}

// F4: the computing of a constant lingers for as long as the runtime says, a minute by
// default.
func TestLingerOfAConstant(t *testing.T) {
	for room, kept := range map[time.Duration]bool{0: true, time.Second: true, 10 * time.Millisecond: false, -1: false} {
		actorstest.Bubble(t, func(t *testing.T) {
			engine := must(open(t, kiln.Config{Linger: room}).Constants().Engine(constants.CPU, 0, ""))
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			l, _, err := engine.Get(short, constants.Key{ID: "k"}, 8, constants.Options{}, func(ctx context.Context) (constants.Value, error) {
				select {
				case <-time.After(50 * time.Millisecond):
					return constants.Value{Any: 7, Bytes: 8}, nil
				case <-ctx.Done():
					return constants.Value{}, ctx.Err()
				}
			})
			if err == nil {
				l.End()
			}
			if kept != (err == nil) || !kept && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v: %v", room, err)
			}
		})
	}
}

// F4: of those who wait for one name the longest linger time counts, whoever of them began,
// and it counts once.
func TestLongestLingerOfAName(t *testing.T) {
	const none = -1
	for _, c := range []struct{ first, second, want time.Duration }{
		{none, 5 * time.Second, 5 * time.Second},
		{5 * time.Second, none, 5 * time.Second},
		{3 * time.Second, 5 * time.Second, 5 * time.Second},
		{5 * time.Second, 3 * time.Second, 5 * time.Second},
		{none, 0, time.Minute}, // 0: by default
		{0, none, time.Minute},
		{0, time.Hour, time.Hour},
		{none, none, 0},
	} {
		actorstest.Bubble(t, func(t *testing.T) {
			s := session(t, open(t, kiln.Config{}))
			var ended time.Time
			recipe := kiln.Recipe[int]{Key: "k", Make: func(ctx context.Context) (kiln.Made[int], error) {
				<-ctx.Done()
				ended = time.Now()
				return kiln.Made[int]{}, ctx.Err()
			}}
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			var callers sync.WaitGroup
			for _, linger := range []time.Duration{c.first, c.second} {
				var options []kiln.Option
				if linger != 0 {
					options = append(options, kiln.Linger(linger))
				}
				callers.Go(func() {
					g := group(t, s, 1)
					defer g.Close()
					if _, err := kiln.Get(short, g, "n", recipe, options...); !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			callers.Wait()
			left := time.Now()
			time.Sleep(2 * time.Hour)
			synctest.Wait() // the creator has written when it ended
			if got := ended.Sub(left); got != c.want {
				t.Errorf("after %v and %v it went on for %v, want %v", c.first, c.second, got, c.want)
			}
		})
	}
}
