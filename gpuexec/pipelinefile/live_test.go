//go:build unix

package pipelinefile_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// SPEC V7, F1: one build a request, and nobody else waits for it.
func TestOneBuild(t *testing.T) {
	v := open(t)
	v.shader("old", "a")
	v.shader("new", "b")
	v.built("old")
	gate, begun := make(chan struct{}), make(chan struct{})
	v.driver.during(func(_ context.Context, m pipelinefile.Module) error {
		if m.Shader == "new" {
			close(begun) // a second build of it panics here
			<-gate
		}
		return nil
	})
	var wg sync.WaitGroup
	var mu sync.Mutex
	origins := map[pipelinefile.Origin]int{}
	for range 16 {
		wg.Go(func() {
			l, origin, err := v.Get(t.Context(), pipelinefile.Request{Shader: "new"})
			if err != nil {
				t.Error(err)
				return
			}
			l.End()
			mu.Lock()
			origins[origin]++
			mu.Unlock()
		})
	}
	<-begun
	v.get(pipelinefile.Request{Shader: "old"}, pipelinefile.Hit)
	v.counts("live", int64(v.Len()), 1)
	v.shader("third", "c")
	v.built("third") // F6
	close(gate)
	wg.Wait()
	if origins[pipelinefile.Built] != 1 || origins[pipelinefile.Hit] != 15 {
		t.Errorf("%v, want one built and the rest hits", origins)
	}
	v.counts("pipelines", v.Stats().Pipelines, 3)
	v.counts("live", int64(v.Len()), 3)
}

// SPEC V7, F1: two requests that differ in what the front end does not see have
// one compilation between them.
func TestOneCompilation(t *testing.T) {
	v := open(t)
	v.shader("s", "a")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			l, _, err := v.Get(t.Context(), pipelinefile.Request{Shader: "s", Constants: []pipelinefile.Constant{{ID: 0, Value: uint64(i)}}})
			if err != nil {
				t.Error(err)
				return
			}
			l.End()
		})
	}
	wg.Wait()
	v.counts("frontend", v.front.compiled.Load(), 1)
	v.counts("pipelines", v.driver.built.Load(), 8)
	v.counts("spirv", int64(v.SPIRV()), 1)
}

func constants(values ...uint64) (list []pipelinefile.Constant) {
	for i, value := range values {
		list = append(list, pipelinefile.Constant{ID: uint32(i), Value: value})
	}
	return list
}

// SPEC V7, K1: everything that the driver sees is part of the request.
func TestRequests(t *testing.T) {
	v := open(t)
	v.shader("s", "a")
	v.shader("t", "a")
	different := []pipelinefile.Request{
		{Shader: "s"}, {Shader: "t"},
		{Shader: "s", Constants: constants(1, 2)}, {Shader: "s", Constants: constants(1, 3)}, {Shader: "s", Constants: constants(12)}, {Shader: "s", Constants: constants(1)},
		{Shader: "s", Constants: []pipelinefile.Constant{{ID: 1, Value: 12}}}, {Shader: "s", Constants: []pipelinefile.Constant{{ID: 0, Bytes: 8, Value: 12}}},
		{Shader: "s", Options: 1, Constants: constants(1, 2)}, {Shader: "s", Options: 1},
		{Shader: "s", LocalSize: [3]uint32{64}}, {Shader: "s", LocalSize: [3]uint32{0, 64}}, {Shader: "s", Subgroup: 64},
		{Words: []uint32{0x07230203, 'a'}}, {Words: []uint32{0x07230203, 0, 'a'}}, // the words that the shader becomes, given as they are
	}
	for _, want := range []pipelinefile.Origin{"", pipelinefile.Hit} {
		for _, r := range different {
			v.get(r, want)
		}
	}
	v.counts("live", int64(v.Len()), int64(len(different)))
	v.counts("pipelines", v.driver.built.Load(), int64(len(different)))
	v.get(pipelinefile.Request{Shader: "label", Words: []uint32{0x07230203, 'a'}}, pipelinefile.Hit) // with words the name is for messages

	for _, r := range []pipelinefile.Request{
		{}, {Shader: "s", Words: []uint32{}}, {Shader: "s", Constants: constants(1 << 32)},
		{Shader: "s", Constants: []pipelinefile.Constant{{ID: 1}, {ID: 1}}}, {Shader: "s", Constants: []pipelinefile.Constant{{ID: 2}, {ID: 1}}},
		{Shader: "s", Constants: []pipelinefile.Constant{{Bytes: 3}}}, {Shader: "s", Constants: []pipelinefile.Constant{{Bytes: 1, Value: 256}}},
	} {
		if _, _, err := v.Get(t.Context(), r); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v, want an invalid argument", r, err)
		}
	}
	if err := v.Register("", nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a shader without a name: %v", err)
	}
}

// SPEC K2, V7: one hash for all, and two modules of one length and one murmur3.
func TestFullKey(t *testing.T) {
	v := open(t, func(c *setup) { c.Hash = func(string) uint64 { return 1 } })
	v.shader("a", "1")
	v.shader("b", "2")
	v.built("a", "b")
	one := []uint32{0x07230203, 0x10000, 7, 11, 0, 0x11, 0x4, 0x22, 0x3f800000, 0x33, 0x40000000, 0x44}
	two := slices.Clone(one)
	two[8], two[9] = 0x3f800001, 0xa3a91e04
	v.get(pipelinefile.Request{Shader: "one", Words: one}, pipelinefile.Built)
	v.get(pipelinefile.Request{Shader: "two", Words: two}, pipelinefile.Built)
	v.get(pipelinefile.Request{Shader: "one", Words: one}, pipelinefile.Hit)
	v.counts("live", int64(v.Len()), 4)
	v.counts("spirv", int64(v.SPIRV()), 2) // modules given as words are not stored
}

// SPEC F3, F6: Hash is user code: it runs on the caller's goroutine, without a lock of the
// cache, and may panic.
func TestHashPanics(t *testing.T) {
	var clear func()
	v := open(t, func(c *setup) { c.Hash = func(string) uint64 { clear(); return 1 } })
	clear = v.Clear // hangs under the lock
	v.shader("s", "a")
	v.built("s")
	clear = func() { panic("made to panic") }
	func() {
		defer func() { _ = recover() }()
		l, _, err := v.Get(t.Context(), pipelinefile.Request{Shader: "s"})
		t.Errorf("%v, %v: want the panic", l, err)
	}()
	clear = func() {}
	v.get(pipelinefile.Request{Shader: "s"}, pipelinefile.Hit)
}

// SPEC V7, C5, F7: clearing waits for nobody and harms nobody.
func TestClear(t *testing.T) {
	v := open(t)
	v.shader("s", "a")
	l, _, err := v.Get(t.Context(), pipelinefile.Request{Shader: "s"})
	if err != nil {
		t.Fatal(err)
	}
	v.Clear()
	v.counts("live", int64(v.Len()), 0)
	v.counts("alive", v.driver.alive.Load(), 1)
	l.End()
	l.End()
	eventually(t, func() bool { return v.driver.alive.Load() == 0 }, "what was cleared is destroyed with its lease")

	gate, begun := make(chan struct{}), make(chan struct{}, 1)
	v.driver.during(func(context.Context, pipelinefile.Module) error { begun <- struct{}{}; <-gate; return nil })
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.get(pipelinefile.Request{Shader: "s"}, pipelinefile.SPIRV)
	}()
	<-begun
	v.Clear()
	close(gate)
	<-done
	v.counts("live", int64(v.Len()), 0)
	v.driver.during(nil)
	v.get(pipelinefile.Request{Shader: "s"}, pipelinefile.SPIRV)
	v.counts("live", int64(v.Len()), 1)
	v.Clear()
	eventually(t, func() bool { return v.driver.alive.Load() == 0 }, "what nobody uses is destroyed")
}

// SPEC F2, F3: a build that fails, panics or leaves its goroutine is told to all
// who wait, and nothing is kept.
// SPEC V7: an evicted pipeline is destroyed with its last lease, and built anew for the
// next request.
func TestEvict(t *testing.T) {
	v := open(t)
	v.shader("s", "a")
	r := pipelinefile.Request{Shader: "s"}
	take := func(want pipelinefile.Origin) *pipelinefile.Lease {
		t.Helper()
		l, origin, err := v.Get(t.Context(), r)
		if err != nil || origin != want {
			t.Fatalf("%q, %v, want %q", origin, err, want)
		}
		return l
	}
	first, second := take(pipelinefile.Built), take(pipelinefile.Hit)
	first.Evict()
	first.Evict() // does nothing more
	if v.Len() != 0 {
		t.Errorf("%d live objects after the eviction", v.Len())
	}
	if second.Pipeline().(*fakePipeline).gone.Load() {
		t.Error("a pipeline in use was destroyed")
	}
	other := take(pipelinefile.SPIRV)
	second.Evict() // of the one that the cache has forgotten: the other stays
	if v.Len() != 1 {
		t.Errorf("%d live objects, want the second one", v.Len())
	}
	eventually(t, func() bool { return v.driver.alive.Load() == 1 }, "the evicted pipeline is destroyed")
	other.End()
}

func TestFailures(t *testing.T) {
	own := errors.New("no such instruction")
	for name, c := range map[string]struct {
		fail func() error
		is   error
	}{
		"error":  {func() error { return own }, own},
		"panic":  {func() error { panic(own) }, own},
		"goexit": {func() error { runtime.Goexit(); return nil }, fault.ErrGoexit},
	} {
		for _, where := range []string{"front end", "driver"} {
			v := open(t)
			v.shader("s", "a")
			if where == "driver" {
				v.driver.during(func(context.Context, pipelinefile.Module) error { return c.fail() })
			} else {
				v.front.onCompile = func(context.Context, string) error { return c.fail() }
			}
			for range 2 {
				_, _, err := v.Get(t.Context(), pipelinefile.Request{Shader: "s"})
				var p *fault.PanicError
				if !errors.Is(err, c.is) || errors.As(err, &p) != (name == "panic") {
					t.Errorf("%s in the %s: %v", name, where, err)
				}
			}
			v.counts("live", int64(v.Len()), 0)
			v.driver.during(nil)
			v.front.onCompile = nil
			v.get(pipelinefile.Request{Shader: "s"}, "")
		}
	}
}

// SPEC F5: a front end that asks for the pipeline that it is compiling for.
func TestCycle(t *testing.T) {
	v := open(t)
	v.shader("a", "1")
	v.shader("b", "2")
	v.front.onCompile = func(ctx context.Context, name string) error {
		_, _, err := v.Get(ctx, pipelinefile.Request{Shader: map[string]string{"a": "b", "b": "a"}[name]})
		return err
	}
	if _, _, err := v.Get(t.Context(), pipelinefile.Request{Shader: "a"}); !errors.Is(err, fault.ErrCycle) {
		t.Errorf("%v", err)
	}
}

// SPEC F4: one who leaves leaves alone; when nobody is left the context of the
// build ends, and the next caller waits for its end.
func TestCancel(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		front := &fakeFront{}
		driver := &fakeDriver{t: t, id: machine()}
		c, err := pipelinefile.Open(t.Context(), pipelinefile.Config{Driver: driver, FrontEnd: front, Identity: machine()})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Register("s", []byte("a")); err != nil {
			t.Fatal(err)
		}
		gate := make(chan struct{})
		driver.during(func(ctx context.Context, _ pipelinefile.Module) error { <-ctx.Done(); <-gate; return ctx.Err() })
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				_, _, err := c.Get(ctx, pipelinefile.Request{Shader: "s"})
				errs <- err
			}()
		}
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		driver.during(nil)
		go func() {
			l, _, err := c.Get(t.Context(), pipelinefile.Request{Shader: "s"})
			if err == nil {
				l.End()
			}
			errs <- err
		}()
		synctest.Wait()
		if n := driver.built.Load(); n != 0 {
			t.Error("a second build began beside the first")
		}
		close(gate)
		if err := <-errs; err != nil {
			t.Error(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// SPEC F4: a build goes on for the linger time when its callers have left, the
// longest that one of them asked for; what it makes then is kept.
func TestLinger(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		driver := &fakeDriver{t: t, id: machine()}
		c, err := pipelinefile.Open(t.Context(), pipelinefile.Config{Driver: driver, FrontEnd: &fakeFront{}, Identity: machine(), Linger: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Register("s", []byte("a")); err != nil {
			t.Fatal(err)
		}
		takes := func(d time.Duration) {
			driver.during(func(ctx context.Context, _ pipelinefile.Module) error {
				select {
				case <-time.After(d):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}
		leave := func(options uint64, linger time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, _, err := c.Get(ctx, pipelinefile.Request{Shader: "s", Options: options, Linger: linger})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		want := func(what string, options uint64, origin pipelinefile.Origin, took time.Duration) {
			t.Helper()
			began := time.Now()
			l, got, err := c.Get(t.Context(), pipelinefile.Request{Shader: "s", Options: options})
			if err != nil || got != origin || time.Since(began) != took {
				t.Errorf("%s: %s after %v, %v; want %s after %v", what, got, time.Since(began), err, origin, took)
				return
			}
			l.End()
		}
		takes(500 * time.Millisecond)
		leave(1, 0)
		want("joined meanwhile", 1, pipelinefile.Hit, 499*time.Millisecond)
		leave(2, 0)
		time.Sleep(time.Second)
		want("made meanwhile", 2, pipelinefile.Hit, 0)
		takes(1500 * time.Millisecond)
		leave(3, 0)
		time.Sleep(2 * time.Second)
		want("cancelled meanwhile", 3, pipelinefile.SPIRV, 1500*time.Millisecond)
		leave(4, 2*time.Second)
		time.Sleep(2 * time.Second)
		want("lingered as long as asked", 4, pipelinefile.Hit, 0)
		leave(5, time.Hour)
		began := time.Now()
		if err := c.Close(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("close waited %v: %v", time.Since(began), err)
		}
	})
}

// SPEC F8: closing answers everybody at once and waits for the creators; a lease
// outlives it.
func TestClose(t *testing.T) {
	front := &fakeFront{}
	driver := &fakeDriver{t: t, id: machine()}
	c, err := pipelinefile.Open(t.Context(), pipelinefile.Config{Driver: driver, FrontEnd: front, Identity: machine()})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"s", "t"} {
		if err := c.Register(n, []byte(n)); err != nil {
			t.Fatal(err)
		}
	}
	l, _, err := c.Get(t.Context(), pipelinefile.Request{Shader: "t"})
	if err != nil {
		t.Fatal(err)
	}
	gate, begun := make(chan struct{}), make(chan struct{})
	driver.during(func(ctx context.Context, _ pipelinefile.Module) error { close(begun); <-ctx.Done(); <-gate; return nil })
	waiting := make(chan error)
	go func() {
		_, _, err := c.Get(t.Context(), pipelinefile.Request{Shader: "s"})
		waiting <- err
	}()
	<-begun
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(short); !errors.Is(err, context.Canceled) {
		t.Errorf("close with an ended context: %v", err)
	}
	if err := <-waiting; !errors.Is(err, fault.ErrClosed) {
		t.Errorf("who waited: %v", err)
	}
	close(gate)
	for range 2 {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if driver.alive.Load() != 1 || driver.caches.Load() != 0 {
		t.Errorf("%d pipelines and %d driver caches are left, want the leased pipeline", driver.alive.Load(), driver.caches.Load())
	}
	l.End()
	if driver.alive.Load() != 0 {
		t.Error("the last lease destroyed nothing")
	}
	c.Clear()
	for what, err := range map[string]error{
		"get": third(c.Get(t.Context(), pipelinefile.Request{Shader: "s"})), "register": c.Register("x", nil),
		"load": second(c.LoadBytes(t.Context(), nil)), "save": second(c.Save(t.Context(), "f")), "encode": third(c.SaveBytes(t.Context())),
	} {
		if !errors.Is(err, fault.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

func third[A, B any](_ A, _ B, err error) error { return err }

// SPEC V3: a source that changes while it is compiled: who waits is served, and
// nothing of the old source is stored.
func TestChangedWhileCompiling(t *testing.T) {
	v := open(t)
	v.shader("s", "old")
	v.front.onCompile = func(context.Context, string) error { return v.Register("s", []byte("new")) }
	v.built("s")
	v.counts("spirv", int64(v.SPIRV()), 0)
	v.built("s")
	v.counts("spirv", int64(v.SPIRV()), 1)
	v.get(pipelinefile.Request{Shader: "s"}, pipelinefile.Hit)
}
