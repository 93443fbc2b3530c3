package kiln_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/sessioncache"
)

// E6: what takes longer than a second to make or load is announced, with its start,
// its going on and its end, whichever compiler makes it; what does not is not. A
// panic or a Goexit of Make is told as what it becomes for its callers.
func TestSlowMakeIsAnnounced(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		r := open(t, kiln.Config{Compiling: func(e gpuexec.CompileEvent) {
			mu.Lock()
			told = append(told, fmt.Sprint(e.Key, " ", e.Phase, " ", e.Elapsed, " ", e.Err != nil))
			mu.Unlock()
			if e.Phase == gpuexec.PhaseRunning {
				runtime.Goexit()
			}
		}})
		g := group(t, session(t, r), 1)
		defer g.Close()
		make := func(key string, lasts time.Duration, after func()) error {
			_, err := kiln.Get(ctx, g, key, kiln.Recipe[int]{Key: key, Make: func(context.Context) (kiln.Made[int], error) {
				time.Sleep(lasts)
				after()
				return kiln.Made[int]{}, nil
			}})
			return err
		}
		if err := make("fast", time.Second-1, func() {}); err != nil {
			t.Error(err)
		}
		if err := make("slow", 2500*time.Millisecond, func() {}); err != nil {
			t.Error(err)
		}
		if _, panicked := errors.AsType[*kiln.PanicError](make("bad", 1500*time.Millisecond, func() { panic("of the test") })); !panicked {
			t.Error("the panic is no PanicError")
		}
		if err := make("gone", 1500*time.Millisecond, runtime.Goexit); !errors.Is(err, kiln.ErrGoexit) {
			t.Errorf("Goexit: %v", err)
		}
		must(kiln.Get(ctx, g, "alone", kiln.Recipe[int]{Key: "alone", Unhashable: "include", Make: func(context.Context) (kiln.Made[int], error) {
			time.Sleep(1500 * time.Millisecond)
			return kiln.Made[int]{}, nil
		}}))
		engine := must(r.Constants().Engine(constants.CPU, 0, ""))
		lease, _, err := engine.Get(ctx, constants.Key{ID: "tensor"}, 1, constants.Options{}, func(context.Context) (constants.Value, error) {
			time.Sleep(1500 * time.Millisecond)
			return constants.Value{Bytes: 1}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		lease.End()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		want := []string{"slow start 1s false", "slow running 2s false", "slow end 2.5s false",
			"bad start 1s false", "bad end 1.5s true", "gone start 1s false", "gone end 1.5s true",
			"alone start 1s false", "alone end 1.5s false", "tensor start 1s false", "tensor end 1.5s false"}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// E6: a compile of a device is announced once, by its executor.
func TestSlowCompileIsAnnounced(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		r := open(t, kiln.Config{Compiling: func(e gpuexec.CompileEvent) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(e.Key, " ", e.Phase, " ", e.Elapsed))
		}})
		slow := &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error { time.Sleep(1500 * time.Millisecond); return nil }}
		g := group(t, session(t, r), 1)
		defer g.Close()
		must(g.Kernel(ctx, "n", executor(t, r, slow), source("slow")))
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"slow start 1s", "slow end 1.5s"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// C8, T7, E1: what the rooms below have to log goes to the runtime's logger.
func TestRoomsLogToTheRuntime(t *testing.T) {
	log := new(lines)
	r := must(kiln.Open(kiln.Config{Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))}))
	g := group(t, session(t, r), 1)
	must(g.Kernel(ctx, "n", executor(t, r, newCounted()), source("matmul")))
	g.Close()
	engine := must(r.Constants().Engine(constants.CPU, 0, ""))
	owner := must(engine.GetOrAdd(ctx, constants.Key{ID: "c"}, 8, constants.Options{})).Owner
	must(owner.Fulfil(7, 8, func() { panic("of the test") })).End()
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"artefacts: opened", "artefacts: made", "artefacts: evicted", "executor: opened", "executor: compiled", "session: evicted", "constants: "} {
		if log.count(`msg="`+want) != 1 {
			t.Errorf("not once %q in\n%s", want, log.b.String())
		}
	}
}

// What a runtime has open can be listed.
func TestWhatIsOpen(t *testing.T) {
	r := open(t, kiln.Config{})
	b, a := must(r.Session(kiln.SessionConfig{Name: "b"})), must(r.Session(kiln.SessionConfig{Name: "a"}))
	first, second := executor(t, r, newCounted()), executor(t, r, newCounted())
	if !slices.Equal(r.Sessions(), []*kiln.Session{a, b}) || !slices.Equal(r.Executors(), []*gpuexec.Executor{first, second}) {
		t.Errorf("%v, %v", r.Sessions(), r.Executors())
	}
	engine := must(r.Constants().Engine(constants.CPU, 0, "c"))
	if !slices.Equal(r.Constants().Engines(), []*constants.Engine{engine}) {
		t.Errorf("%v", r.Constants().Engines())
	}
	if err := a.Close(ctx); err != nil || !slices.Equal(r.Sessions(), []*kiln.Session{b}) {
		t.Errorf("%v after a was closed, %v", r.Sessions(), err)
	}
}

// C8, T3, T7: the door tells how each request for a constant was answered, once, and
// which constants stopped being resident, and why.
func TestConstantsAreTold(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		cfg := kiln.Config{CPUConstantsMiB: kiln.LimitOf(1), Listen: func(e kiln.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, strings.Join(strings.Fields(fmt.Sprintln(e.Engine, e.Key, e.Kind, e.Bypass, e.Removal, e.Duration, e.Cost, e.Err)), " "))
		}}
		engine := must(open(t, cfg).Constants().Engine(constants.CPU, 0, ""))
		made := func(err error) func(context.Context) (constants.Value, error) {
			return func(context.Context) (constants.Value, error) {
				time.Sleep(time.Second)
				return constants.Value{Any: 7, Bytes: 8}, err
			}
		}
		key := func(id string) constants.Key { return constants.Key{ID: id} }
		cost := constants.Options{Cost: time.Minute}
		get := func(id string, bytes int64, err error) {
			if l, _, err := engine.Get(ctx, key(id), bytes, cost, made(err)); err == nil {
				l.End()
			}
		}
		get("a", 8, nil)
		l, _ := engine.Lookup(key("a"))
		l.End()
		get("a", 8, nil)
		get("b", 8, errors.New("no"))
		get("large", 2<<20, nil)
		engine.Lookup(key("absent"))
		owner := must(engine.GetOrAdd(ctx, key("c"), 8, cost)).Owner
		go func() { must(engine.GetOrAdd(ctx, key("c"), 8, constants.Options{})).Lease.End() }()
		synctest.Wait() // it waits for the owner
		must(owner.Fulfil(7, 8, nil)).End()
		synctest.Wait()
		must(engine.Remove(ctx, key("a")))
		synctest.Wait()
		want := []string{"cpu:0 a miss 1s 1m0s <nil>", "cpu:0 a hit 0s 1m0s <nil>", "cpu:0 a hit 0s 1m0s <nil>",
			`cpu:0 b failed 1s 1m0s constants: compute b: no`, "cpu:0 large miss full 1s 1m0s <nil>",
			"cpu:0 c miss 0s 1m0s <nil>", "cpu:0 c joined 0s 1m0s <nil>", "cpu:0 a removed removed 0s 1m0s <nil>"}
		if !slices.Equal(told, want) {
			t.Errorf("told\n%q, want\n%q", told, want)
		}
	})
}

// G9: the door tells which groups of a session had to go; Close waits for the last.
func TestEvictedGroupsAreTold(t *testing.T) {
	var told []string
	s := must(open(t, kiln.Config{}).Session(kiln.SessionConfig{Groups: kiln.LimitOf(1), Evicted: func(shape kiln.Shape, why sessioncache.Cause) {
		told = append(told, fmt.Sprint(shape, " ", why))
	}}))
	for n := range int64(2) {
		g := group(t, s, n+1)
		must(kiln.Get(ctx, g, "n", of("k", 7)))
		g.Close()
	}
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if want := []string{fmt.Sprint(shape(t, 1), " groups"), fmt.Sprint(shape(t, 2), " cleared")}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// C8: a listener that panics is logged, and harms no call.
func TestListenerThatPanics(t *testing.T) {
	var log bytes.Buffer // written by the calls of this goroutine
	r := open(t, kiln.Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Listen: func(kiln.Event) { panic("listener") }})
	g := group(t, session(t, r), 1)
	defer g.Close()
	if v, err := kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) { return kiln.Made[int]{Value: 7}, nil }}); v != 7 || err != nil {
		t.Errorf("Get: %v, %v", v, err)
	}
	if v, ok := kiln.Lookup[int](g, "n"); v != 7 || !ok {
		t.Errorf("Lookup: %v, %v", v, ok)
	}
	if n := strings.Count(log.String(), "kiln: listener"); n != 2 {
		t.Errorf("%d lines of log: %s", n, log.String())
	}
}

// F6, E6: a Compiling that does not return keeps nobody waiting but Close: neither who waits for
// what took long, nor who waits for anything else.
func TestStuckCompilingHoldsNobodyUp(t *testing.T) {
	slow := func() { time.Sleep(1500 * time.Millisecond) }
	for what, asks := range map[string]func(*testing.T, *kiln.Runtime, *kiln.Group) func() error{
		"artefact": func(_ *testing.T, _ *kiln.Runtime, g *kiln.Group) func() error {
			return func() error {
				_, err := kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
					slow()
					return kiln.Made[int]{}, nil
				}})
				return err
			}
		},
		"constant": func(_ *testing.T, r *kiln.Runtime, _ *kiln.Group) func() error {
			e := must(r.Constants().Engine(constants.CPU, 0, ""))
			return func() error {
				l, _, err := e.Get(ctx, constants.Key{ID: constants.Versioned("c", 0)}, 1, constants.Options{}, func(context.Context) (constants.Value, error) {
					slow()
					return constants.Value{Bytes: 1}, nil
				})
				if err == nil {
					l.End()
				}
				return err
			}
		},
		"compile": func(t *testing.T, r *kiln.Runtime, _ *kiln.Group) func() error {
			x := executor(t, r, &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error { slow(); return nil }})
			return func() error {
				k, err := x.Compile(ctx, source("s"))
				if err == nil {
					k.Release()
				}
				return err
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			actorstest.Bubble(t, func(t *testing.T) {
				goOn := make(chan struct{})
				r := open(t, kiln.Config{Compiling: func(gpuexec.CompileEvent) { <-goOn }})
				g := group(t, session(t, r), 1)
				ask := asks(t, r, g)
				began := time.Now()
				for range 2 { // two callers of one key
					go func() {
						if err := ask(); err != nil || time.Since(began) > 2*time.Second {
							t.Errorf("%v after %v", err, time.Since(began))
						}
					}()
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				g.Close()
				ended := make(chan error, 1)
				go func() { ended <- r.Close(ctx) }()
				synctest.Wait()
				if len(ended) > 0 {
					t.Error("Close has not waited for a listener")
				}
				close(goOn)
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// F8, E6: Compiling is told nothing after Close, though a constant is computed still by a function
// that does not heed its context.
func TestNothingIsToldAfterClose(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var closed atomic.Bool
		var told atomic.Int64
		r := open(t, kiln.Config{Compiling: func(e gpuexec.CompileEvent) {
			if told.Add(1); closed.Load() {
				t.Errorf("told of %s after Close: %s", e.Key, e.Phase)
			}
		}})
		e := must(r.Constants().Engine(constants.CPU, 0, ""))
		goOn, left := make(chan struct{}), make(chan error)
		go func() {
			l, _, err := e.Get(ctx, constants.Key{ID: constants.Versioned("c", 0)}, 1, constants.Options{}, func(context.Context) (constants.Value, error) {
				<-goOn
				return constants.Value{Bytes: 1}, nil
			})
			if err == nil {
				l.End()
			}
			left <- err
		}()
		time.Sleep(2500 * time.Millisecond)
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
		closed.Store(true)
		time.Sleep(5 * time.Second)
		close(goOn)
		if err := <-left; err != nil || told.Load() != 2 {
			t.Errorf("%v, told %d times", err, told.Load())
		}
		synctest.Wait()
	})
}
