package kiln_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/sessioncache"
)

// G9: Close of a runtime waits for what closed sessions have still to free, with the
// device there, whether their groups were closed after them or nobody waited for them.
func TestCloseWaitsForClosedSessions(t *testing.T) {
	for _, late := range []bool{true, false} {
		actorstest.Bubble(t, func(t *testing.T) {
			r := open(t, kiln.Config{})
			e, err := r.Executor(ctx, &fakedevice.Backend{}, 0)
			if err != nil {
				t.Fatal(err)
			}
			s := session(t, r)
			g := group(t, s, 1)
			var freed atomic.Bool
			free := func() {
				time.Sleep(time.Minute)
				if err := errors.Join(e.Ready(ctx), r.Artefacts().Settle(ctx)); err != nil {
					t.Errorf("the device or the artefacts of a value that is freed: %v", err)
				}
				freed.Store(true)
			}
			if err := kiln.Set(ctx, g, "n", kiln.Made[int]{Free: free}); err != nil {
				t.Fatal(err)
			}
			if late {
				if err := s.Close(ctx); err != nil {
					t.Fatal(err)
				}
				g.Close()
			} else {
				g.Close()
				left, leave := context.WithCancel(ctx)
				leave()
				if err := s.Close(left); !errors.Is(err, context.Canceled) {
					t.Fatalf("close with an ended context: %v", err)
				}
			}
			if err := r.Close(ctx); err != nil {
				t.Fatal(err)
			}
			if !freed.Load() {
				t.Error("the runtime was closed before a value was freed")
			}
		})
	}
}

// silent is a context that has ended and does not say why.
type silent struct{ context.Context }

var ended = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (silent) Done() <-chan struct{} { return ended }
func (silent) Err() error            { return nil }

// F8: Close does not say that it is done where it is not, whatever its context
// says.
func TestCloseWithASilentContext(t *testing.T) {
	r := open(t, kiln.Config{})
	g := group(t, session(t, r), 1)
	entered, goOn := make(chan struct{}), make(chan struct{})
	go kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
		close(entered)
		<-goOn
		return kiln.Made[int]{}, nil
	}})
	<-entered
	if err := r.Close(silent{ctx}); !errors.Is(err, context.Canceled) {
		t.Errorf("Close of the runtime beside a creator: %v", err)
	}
	g.Close()
	close(goOn)
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
}

// telling is the handler of a log that calls a function for each warning.
type telling struct {
	slog.Handler
	do func()
}

func (h telling) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (h telling) Handle(context.Context, slog.Record) error    { h.do(); return nil }

// F6, F8: a Free or listener of any room that closes its runtime would wait for itself: it
// is told so, and the runtime closes.
func TestRuntimeClosedFromWithin(t *testing.T) {
	var r *kiln.Runtime
	answers := make(chan error, 1)
	closes := func() {
		select {
		case answers <- closed(r):
		default:
		}
	}
	one := func(free func()) kiln.Recipe[int] {
		return kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) { return kiln.Made[int]{Free: free}, nil }}
	}
	get := func(t *testing.T, s *kiln.Session, dim int64, free func()) {
		t.Helper()
		g := group(t, s, dim)
		defer g.Close()
		if _, err := kiln.Get(ctx, g, "n", one(free)); err != nil {
			t.Fatal(err)
		}
	}
	for what, closing := range map[string]func(t *testing.T){
		"the Free of an artefact": func(t *testing.T) {
			r = open(t, kiln.Config{})
			s := session(t, r)
			get(t, s, 1, closes)
			if err := r.Artefacts().SetCapacity(kiln.LimitOf(0), kiln.Limit{}); err != nil {
				t.Fatal(err)
			}
			_ = s.Close(ctx) // ends the name's lease
		},
		"the Free of a kernel whose artefact failed": func(t *testing.T) {
			r = open(t, kiln.Config{})
			g := group(t, session(t, r), 1)
			defer g.Close()
			_, _ = kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(ctx context.Context) (kiln.Made[int], error) {
				_, err := r.Artefacts().Kernel(ctx, artefacts.Request{Key: "kernel", Create: func(context.Context) (artefacts.Built, error) {
					return artefacts.Built{Free: closes}, nil
				}})
				if err == nil {
					err = r.Artefacts().SetCapacity(kiln.LimitOf(0), kiln.Limit{}) // the layer lets go of it
				}
				return kiln.Made[int]{}, cmp.Or(err, errors.New("made to fail"))
			}})
		},
		"the Free of what Load gave and nobody can use": func(t *testing.T) {
			cfg := kiln.Config{Store: blobstore.Config{Dir: t.TempDir(), Identity: driver("1")}}
			recipe := one(closes)
			recipe.Load = func(context.Context, []byte) (kiln.Made[int], error) {
				return kiln.Made[int]{Bytes: -1, Free: closes}, nil
			}
			recipe.Make = func(context.Context) (kiln.Made[int], error) {
				return kiln.Made[int]{Blob: func(context.Context) ([]byte, error) { return []byte("b"), nil }}, nil
			}
			for range 2 { // the second loads
				r = open(t, cfg)
				g := group(t, session(t, r), 1)
				_, _ = kiln.Get(ctx, g, "n", recipe)
				g.Close()
				if len(answers) == 0 {
					_ = r.Close(ctx)
				}
			}
		},
		"the Free of a name": func(t *testing.T) {
			r = open(t, kiln.Config{})
			s := session(t, r)
			g := group(t, s, 1)
			if err := kiln.Set(ctx, g, "n", kiln.Made[int]{Free: closes}); err != nil {
				t.Fatal(err)
			}
			g.Close()
			_ = s.Close(ctx)
		},
		"a session's Evicted": func(t *testing.T) {
			r = open(t, kiln.Config{})
			s, err := r.Session(kiln.SessionConfig{Groups: kiln.LimitOf(1), Evicted: func(kiln.Shape, sessioncache.Cause) { closes() }})
			if err != nil {
				t.Fatal(err)
			}
			get(t, s, 1, nil)
			group(t, s, 2).Close() // evicts it
		},
		"the store's Listen": func(t *testing.T) {
			cfg := kiln.Config{Store: blobstore.Config{Dir: t.TempDir(), Identity: driver("1"), Listen: func(blobstore.Event) { closes() }}}
			r = open(t, cfg)
			g := group(t, session(t, r), 1)
			defer g.Close()
			recipe := one(nil)
			recipe.Make = func(context.Context) (kiln.Made[int], error) {
				return kiln.Made[int]{Blob: func(context.Context) ([]byte, error) { return []byte("b"), nil }}, nil
			}
			recipe.Load = func(context.Context, []byte) (kiln.Made[int], error) { return kiln.Made[int]{}, nil }
			if _, err := kiln.Get(ctx, g, "n", recipe); err != nil && !errors.Is(err, kiln.ErrClosed) { // as it is by then, or not yet
				t.Fatal(err)
			}
		},
		"the handler of a log": func(t *testing.T) {
			r = open(t, kiln.Config{Logger: slog.New(telling{slog.DiscardHandler, func() {
				if r != nil {
					closes()
				}
			}})})
			g := group(t, session(t, r), 1)
			defer g.Close()
			_, _ = kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
				return kiln.Made[int]{Bytes: -1, Free: func() { panic("which is logged") }}, nil
			}})
		},
		"the handler of a log that the memory limit tells": func(t *testing.T) {
			r = open(t, kiln.Config{MemoryLimit: "1GiB", Logger: slog.New(telling{slog.DiscardHandler, func() { closes() }})})
			g := group(t, session(t, r), 1)
			defer g.Close()
			if err := kiln.Set(ctx, g, "n", kiln.Made[int]{Bytes: 2 << 30}); err != nil { // in use: it cannot go
				t.Fatal(err)
			}
			eventually(t, func() bool { return len(answers) == 1 })
		},
		"the artefacts' Evicted": func(t *testing.T) {
			r = open(t, kiln.Config{Evicted: func(string, artefacts.Cause) { closes() }})
			get(t, session(t, r), 1, nil)
			if err := r.Artefacts().SetCapacity(kiln.LimitOf(0), kiln.Limit{}); err != nil {
				t.Fatal(err)
			}
		},
		"a constant's callback": func(t *testing.T) {
			r = open(t, kiln.Config{})
			e, err := r.Constants().Engine(constants.CPU, 0, "")
			if err != nil {
				t.Fatal(err)
			}
			k := constants.Key{ID: constants.Versioned("c", 0)}
			out, err := e.GetOrAdd(ctx, k, 1, constants.Options{Removed: func(constants.Removal) { closes() }})
			if err != nil {
				t.Fatal(err)
			}
			l, err := out.Owner.Fulfil(1, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			l.End()
			if _, err := e.Remove(ctx, k); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			closing(t)
			if err := <-answers; !errors.Is(err, kiln.ErrCycle) {
				t.Errorf("close: %v", err)
			}
			if err := r.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// F6, F8: so would the Free of what a creator of a session's Cache was given and left behind: its
// context panics when the artefact has been made. The creator does not wait for it.
func TestRuntimeClosedByTheFreeOfWhatACreatorLeft(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		r := open(t, kiln.Config{ArtefactEntries: kiln.LimitOf(0)})
		g, err := session(t, r).Cache().Group(ctx, must(kiln.ShapeOf([]int64{1})))
		if err != nil {
			t.Fatal(err)
		}
		l := leaves{ctx, new(atomic.Bool), make(chan struct{}), make(chan struct{}), make(chan struct{})}
		answers, told := make(chan error, 1), make(chan struct{})
		go g.Get(ctx, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
			defer close(told)
			_, _, err := r.Artefacts().Get(l, artefacts.Request{Key: "k", Create: func(context.Context) (artefacts.Built, error) {
				close(l.began)
				<-l.here
				return artefacts.Built{Value: 1, Free: func() { answers <- closed(r); <-told }}, nil
			}})
			return sessioncache.Value{}, err
		})
		synctest.Wait() // it has been made
		close(l.end)
		if err := <-answers; !errors.Is(err, kiln.ErrCycle) {
			t.Errorf("close: %v", err)
		}
		g.Close()
		if err := closed(r); err != nil {
			t.Error(err)
		}
	})
}

// leaves is a context that panics, after end, where somebody waits for what began: the first
// time that it is asked, that is for the turn.
type leaves struct {
	context.Context
	asked            *atomic.Bool
	began, here, end chan struct{}
}

func (l leaves) Done() <-chan struct{} {
	if l.asked.CompareAndSwap(false, true) {
		return l.end
	}
	<-l.began
	close(l.here)
	<-l.end
	panic("left")
}

// held is a context that holds up the first that asks when it ends.
type held struct {
	context.Context
	once      *sync.Once
	here, end chan struct{}
}

func (h held) Done() <-chan struct{} {
	h.once.Do(func() { close(h.here); <-h.end })
	return h.Context.Done()
}

// F8: Close waits for a Warm under way, between two entries, too: once it has returned
// nothing is asked.
func TestCloseWaitsForWarm(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		manifest := recorded(t, new(atomic.Int64))
		r := open(t, kiln.Config{Workers: 1})
		between := held{ctx, new(sync.Once), make(chan struct{}), make(chan struct{})}
		var warmed, closed atomic.Bool
		go func() {
			_, err := r.Warm(between, strings.NewReader(manifest), func(context.Context, *kiln.Group, kiln.Entry) error { return nil })
			if !errors.Is(err, kiln.ErrClosed) {
				t.Errorf("warm: %v", err)
			}
			warmed.Store(true)
		}()
		<-between.here
		go func() {
			if err := r.Close(ctx); err != nil {
				t.Error(err)
			}
			closed.Store(true)
		}()
		synctest.Wait()
		if closed.Load() {
			t.Error("Close has returned while Warm goes on")
		}
		close(between.end)
		synctest.Wait()
		if !warmed.Load() || !closed.Load() {
			t.Errorf("warmed: %v, closed: %v", warmed.Load(), closed.Load())
		}
	})
}

// F8: a listener that is told that a Make takes long and closes the runtime would wait
// for itself: the Make waits for it. It is told so, and the runtime closes.
func TestRuntimeClosedByAListenerOfProgress(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var r *kiln.Runtime
		answers := make(chan error, 1)
		r = open(t, kiln.Config{Compiling: func(e gpuexec.CompileEvent) {
			if e.Phase == gpuexec.PhaseStart {
				answers <- closed(r)
			}
		}})
		g := group(t, session(t, r), 1)
		defer g.Close()
		if _, err := kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
			time.Sleep(1500 * time.Millisecond)
			return kiln.Made[int]{}, nil
		}}); err != nil && !errors.Is(err, kiln.ErrClosed) {
			t.Error(err)
		}
		if err := <-answers; !errors.Is(err, kiln.ErrCycle) {
			t.Errorf("close: %v", err)
		}
		if err := closed(r); err != nil {
			t.Error(err)
		}
	})
}

// closed is the error of closing, or of waiting for it for ever.
func closed(c interface{ Close(context.Context) error }) error {
	waiting, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	return c.Close(waiting)
}

// F8: so would a driver that an executor of the runtime calls.
func TestRuntimeClosedByABackend(t *testing.T) {
	for _, what := range []string{"open", "compile", "blob", "release"} {
		var r *kiln.Runtime
		answers := make(chan error, 1)
		at := func(call string) error {
			if call == what {
				select {
				case answers <- closed(r):
				default:
				}
			}
			return nil
		}
		b := &fakedevice.Backend{
			OnOpen:    func() error { return at("open") },
			OnCompile: func(context.Context, gpuexec.Source) error { return at("compile") },
			OnBlob:    func(string) error { return at("blob") },
			OnRelease: func() { _ = at("release") },
		}
		r = open(t, kiln.Config{StoreDir: t.TempDir()})
		g := group(t, session(t, r), 1)
		if e, err := r.Executor(ctx, b, 0); err == nil {
			_, _ = g.Kernel(ctx, "k", e, source("s"))
			if m, err := e.Alloc(ctx, 16); err == nil {
				m.Release()
			}
		}
		g.Close()
		if err := <-answers; !errors.Is(err, kiln.ErrCycle) {
			t.Errorf("closed by %s: %v", what, err)
		}
		if err := closed(r); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// F5: a Make that closes the artefacts with its context would wait for itself, too, be it on
// another goroutine.
func TestArtefactsClosedByACreator(t *testing.T) {
	r := open(t, kiln.Config{})
	g := group(t, session(t, r), 1)
	defer g.Close()
	var answer error
	_, _ = kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(ctx context.Context) (kiln.Made[int], error) {
		answers := make(chan error)
		go func() { answers <- r.Artefacts().Close(ctx) }() // which ends with the cache
		answer = <-answers
		return kiln.Made[int]{}, nil
	}})
	if err := closed(r); err != nil {
		t.Error(err)
	}
	if !errors.Is(answer, kiln.ErrCycle) {
		t.Error(answer)
	}
}

// F8: so would a creator of a session's Cache, with any context, or with its own on another
// goroutine.
func TestRuntimeClosedByACreatorOfACache(t *testing.T) {
	for _, own := range []bool{true, false} {
		r := open(t, kiln.Config{})
		g, err := session(t, r).Cache().Group(ctx, must(kiln.ShapeOf([]int64{1})))
		if err != nil {
			t.Fatal(err)
		}
		var answer error
		_, _, _ = g.Get(ctx, "n", sessioncache.Options{}, func(ctx context.Context) (sessioncache.Value, error) {
			if !own {
				answer = closed(r)
				return sessioncache.Value{}, nil
			}
			answers := make(chan error)
			go func() { answers <- r.Close(ctx) }()
			answer = <-answers
			return sessioncache.Value{}, nil
		})
		g.Close()
		if err := closed(r); err != nil || !errors.Is(answer, kiln.ErrCycle) {
			t.Errorf("closed by the creator, own context %v: %v; and then: %v", own, answer, err)
		}
	}
}

// F8: what a Make closes of the rooms around it waits for no Make: the artefacts say so, and a
// session, an engine of constants and an executor close.
func TestRoomsClosedByACreator(t *testing.T) {
	for what, want := range map[string]error{"artefacts": kiln.ErrCycle, "session": nil, "constants": nil, "executor": nil} {
		r := open(t, kiln.Config{})
		s := session(t, r)
		x, err := r.Executor(ctx, &fakedevice.Backend{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		e, err := r.Constants().Engine(constants.CPU, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		room := map[string]interface{ Close(context.Context) error }{"artefacts": r.Artefacts(), "session": s, "constants": e, "executor": x}[what]
		g := group(t, s, 1)
		var answer error
		_, _ = kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(ctx context.Context) (kiln.Made[int], error) {
			l, _, err := e.Get(ctx, constants.Key{ID: constants.Versioned("c", 0)}, 1, constants.Options{}, func(context.Context) (constants.Value, error) {
				answer = closed(room)
				return constants.Value{Bytes: 1}, nil
			})
			if err == nil {
				l.End()
			}
			return kiln.Made[int]{}, nil
		}})
		g.Close()
		if err := closed(r); err != nil || !errors.Is(answer, want) {
			t.Errorf("%s: %v, want %v; and then: %v", what, answer, want, err)
		}
	}
}

// F8: a Make, or a Load, that closes its runtime would wait for itself: it is told so at
// once, whatever its context, and the runtime closes.
func TestRuntimeClosedByACreator(t *testing.T) {
	cfg := kiln.Config{Store: blobstore.Config{Dir: t.TempDir(), Identity: driver("1")}}
	for _, by := range []string{"nobody", "Load", "Make"} {
		key := "k"
		if by == "Make" {
			key = "other" // which is not stored
		}
		r, err := kiln.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		g := group(t, session(t, r), 1)
		ran, answer := "nobody", kiln.ErrCycle
		made := func(who string) (kiln.Made[int], error) {
			if by != "nobody" {
				ran, answer = who, closed(r)
			}
			return kiln.Made[int]{Cost: time.Second, Blob: func(context.Context) ([]byte, error) { return []byte("b"), nil }}, nil
		}
		_, _ = kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: key,
			Make: func(context.Context) (kiln.Made[int], error) { return made("Make") },
			Load: func(context.Context, []byte) (kiln.Made[int], error) { return made("Load") }})
		g.Close()
		if err := closed(r); err != nil {
			t.Error(err)
		}
		if ran != by || !errors.Is(answer, kiln.ErrCycle) {
			t.Errorf("closed by %s, want %s: %v", ran, by, answer)
		}
	}
}

// asked is a context that runs something where it is asked for a value.
type asked struct {
	context.Context
	runs func()
}

func (a asked) Value(any) any { a.runs(); return nil }

// F6, F8: a context is users' code, too. One that panics does not keep the runtime open, and
// one that asks the runtime waits for nothing.
func TestRuntimeClosedWithAContextThatMisbehaves(t *testing.T) {
	for what, runs := range map[string]func(*kiln.Runtime){
		"panics": func(*kiln.Runtime) { panic("made to") },
		"asks":   func(r *kiln.Runtime) { r.Sessions() },
	} {
		r := open(t, kiln.Config{})
		session(t, r)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { _ = recover() }()
			_ = r.Close(asked{ctx, func() { runs(r) }})
		}()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatalf("a context that %s: Close has not returned", what)
		}
		if _, err := r.Session(kiln.SessionConfig{}); !errors.Is(err, kiln.ErrClosed) {
			t.Errorf("a context that %s: %v, want ErrClosed", what, err)
		}
		if err := closed(r); err != nil {
			t.Error(err)
		}
	}
}
