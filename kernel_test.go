package kiln_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

func source(key string) gpuexec.Source { return gpuexec.Source{Key: key} }

// counted is a fake device that counts compiles and loads.
type counted struct {
	fakedevice.Backend
	compiles, loads atomic.Int32
}

func newCounted() *counted {
	c := &counted{}
	c.OnCompile = func(context.Context, gpuexec.Source) error { c.compiles.Add(1); return nil }
	c.OnLoad = func(context.Context, gpuexec.Source, []byte) error { c.loads.Add(1); return nil }
	return c
}

func executor(t *testing.T, r *kiln.Runtime, b gpuexec.Backend) *gpuexec.Executor {
	t.Helper()
	e, err := r.Executor(ctx, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A name that was given a nil kernel is an error of those who ask for it, no panic.
func TestNilKernel(t *testing.T) {
	r := open(t, kiln.Config{})
	e := executor(t, r, &fakedevice.Backend{})
	g := group(t, session(t, r), 1)
	defer g.Close()
	if err := kiln.Set(ctx, g, "k", kiln.Made[*gpuexec.Kernel]{}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Kernel(ctx, "k", e, source("s")); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	if !g.Remove("k") {
		t.Fatal("it is not there")
	}
	if _, err := g.Kernel(ctx, "k", e, source("s")); err != nil {
		t.Errorf("after Remove: %v", err)
	}
}

// K4, E1: names, groups and sessions share a kernel of one executor. Executors
// never share a live kernel, not even of equal identity; stored blobs they do.
func TestKernelsOfTwoExecutors(t *testing.T) {
	first, other := newCounted(), newCounted()
	r := open(t, kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store")})
	a, b := executor(t, r, first), executor(t, r, other)
	s := session(t, r)
	g := group(t, s, 1)
	defer g.Close()
	on := func(g *kiln.Group, name string, e *gpuexec.Executor) *gpuexec.Kernel {
		t.Helper()
		k, err := g.Kernel(ctx, name, e, source("matmul"))
		if err != nil {
			t.Fatal(err)
		}
		if k.Executor() != e || k.Key() != "matmul" {
			t.Fatalf("%s has the kernel %q of another executor", name, k.Key())
		}
		return k
	}
	k := on(g, "a", a)
	h := group(t, session(t, r), 2)
	defer h.Close()
	if on(g, "a", a) != k || on(g, "a again", a) != k || on(h, "elsewhere", a) != k {
		t.Error("one executor, one source, another kernel")
	}
	if err := r.Artefacts().Settle(ctx); err != nil {
		t.Fatal(err)
	}
	l := on(g, "b", b)
	if l == k {
		t.Error("two executors share a live kernel")
	}
	if c, n := first.compiles.Load(), other.compiles.Load(); c != 1 || n != 0 || other.loads.Load() != 1 {
		t.Errorf("%d and %d compiles, %d loads: want one compile, and its blob on the other executor", c, n, other.loads.Load())
	}
	for at, e := range map[*gpuexec.Kernel]*gpuexec.Executor{k: a, l: b} {
		if err := e.Submit(ctx, gpuexec.Launch{Kernel: at, Grid: gpuexec.Size{1}}); err != nil {
			t.Errorf("launched where it belongs: %v", err)
		}
	}
}

// G13: a name that stands for a kernel of another executor or another source is
// refused, never answered with that kernel.
func TestKernelOfAnotherKey(t *testing.T) {
	r := open(t, kiln.Config{})
	a, b := executor(t, r, newCounted()), executor(t, r, newCounted())
	g := group(t, session(t, r), 1)
	defer g.Close()
	must(g.Kernel(ctx, "n", a, source("matmul 1")))
	must(kiln.Get(ctx, g, "number", of("k", 7)))
	for what, c := range map[string]struct {
		name string
		exec *gpuexec.Executor
		key  string
		says []string
	}{
		"another source":   {"n", a, "matmul 2", []string{"matmul 1", "matmul 2", `"n"`}},
		"another executor": {"n", b, "matmul 1", []string{"another executor", `"n"`}},
		"another type":     {"number", a, "matmul 1", []string{"a value of type int, not *gpuexec.Kernel"}},
		"no source":        {"m", a, "", []string{"no key"}},
		"no executor":      {"m", nil, "matmul 1", []string{"Runtime.Executor"}},
	} {
		k, err := g.Kernel(ctx, c.name, c.exec, source(c.key))
		if k != nil || !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, k, err)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; it does not say %q", what, err, want)
			}
		}
	}
	// Whoever asks for it with a recipe is told of the source's key, and not of the one by
	// which the kernel lives.
	if _, err := kiln.Get(ctx, g, "n", of("k", 7)); !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), `stands for "matmul 1"`) {
		t.Error(err)
	}
	// A lane each is as good as a name each.
	for lane, e := range map[kiln.Lane]*gpuexec.Executor{1: a, 2: b} {
		for range 2 {
			if k := must(g.Kernel(ctx, "n", e, source("matmul 1"), kiln.OnLane(lane))); k.Executor() != e {
				t.Errorf("lane %d has a kernel of another executor", lane)
			}
		}
	}
}

// G13: a kernel that Set gave, and that a Group from before a reset finds in the group that
// took the place of its own, is checked like a hit.
func TestKernelOfTheNextGroup(t *testing.T) {
	r := open(t, kiln.Config{})
	a, b := executor(t, r, newCounted()), executor(t, r, newCounted())
	for _, c := range []struct {
		what string
		gave bool // a kernel, and not a nil one
		exec *gpuexec.Executor
		key  string
	}{
		{"nil", false, a, "s"},
		{"of another executor", true, b, "s"},
		{"of another key", true, a, "other"},
	} {
		s := session(t, r)
		old := group(t, s, 1)
		if err := s.ResetAll(ctx); err != nil {
			t.Fatal(err)
		}
		next := group(t, s, 1)
		var k *gpuexec.Kernel
		if c.gave {
			k = must(next.Kernel(ctx, "first", a, source("s")))
		}
		if err := kiln.Set(ctx, next, "k", kiln.Made[*gpuexec.Kernel]{Value: k}); err != nil {
			t.Fatal(err)
		}
		for _, g := range []*kiln.Group{old, next} {
			defer g.Close()
			if k, err := g.Kernel(ctx, "k", c.exec, source(c.key)); k != nil || !errors.Is(err, kiln.ErrInvalid) {
				t.Errorf("%s: %v, %v; want ErrInvalid", c.what, k, err)
			}
		}
	}
}

// G12: an executor of another runtime is refused: nobody would close it after the
// kernels.
func TestExecutorOfAnotherRuntime(t *testing.T) {
	fake := newCounted()
	foreign := executor(t, open(t, kiln.Config{}), fake)
	var told []kiln.Event
	r := open(t, kiln.Config{Listen: func(e kiln.Event) { told = append(told, e) }})
	g := group(t, session(t, r), 1)
	defer g.Close()
	_, err := g.Kernel(ctx, "n", foreign, source("a"))
	if !errors.Is(err, kiln.ErrInvalid) || fake.compiles.Load() != 0 {
		t.Errorf("%v after %d compiles", err, fake.compiles.Load())
	}
	if len(told) != 1 || told[0].Kind != kiln.Failed || told[0].Err != err || told[0].Key != "a" {
		t.Errorf("the listener was told %+v, want the failure", told) // C8
	}
}

// F1, C5: callers at once get one kernel from one compile, and it is released
// before its executor is closed.
func TestKernelsAtOnce(t *testing.T) {
	fake := newCounted()
	r := open(t, kiln.Config{})
	e := executor(t, r, fake)
	s := session(t, r)
	var wg sync.WaitGroup
	var all [16]*gpuexec.Kernel
	for i := range all {
		wg.Go(func() {
			g := group(t, s, 1)
			defer g.Close()
			all[i] = must(g.Kernel(ctx, "n", e, source("a")))
		})
	}
	wg.Wait()
	for _, k := range all {
		if k != all[0] {
			t.Fatal("two kernels")
		}
	}
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if fake.compiles.Load() != 1 || fake.Programs() != 0 || fake.Misuse() != 0 || fake.Leaked() != 0 {
		t.Errorf("%d compiles; %d programs, %d misuses and %d devices are left", fake.compiles.Load(), fake.Programs(), fake.Misuse(), fake.Leaked())
	}
}

// P3, P6, B2: with a store directory, a second runtime finds what the first one
// compiled on the cpu device, and it computes the same bits.
func TestKernelsSurviveOnTheCPU(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	lib := ops.Find(cpu.Name)
	op := ops.New(ops.Tanh, 1, 3)
	src := must(lib.Source(op))
	grid, _ := lib.Launch(op)
	x := []float32{-1, 0, 1}
	var outputs [2][]float32
	for i, want := range []kiln.Kind{kiln.Miss, kiln.PersistentHit} {
		var told []kiln.Event
		r := open(t, kiln.Config{StoreDir: dir, StoreRequired: true, Listen: func(e kiln.Event) { told = append(told, e) }})
		e := executor(t, r, lib)
		g := group(t, session(t, r), 1, 3)
		kernel := must(g.Kernel(ctx, "tanh", e, src))
		if len(told) != 1 || told[0].Artefact != want {
			t.Errorf("run %d: %+v, want %s", i, told, want)
		}
		if s := e.Stats(); s.Compiles != int64(1-i) || s.BlobLoads != int64(i) {
			t.Errorf("run %d: %+v", i, s)
		}
		outputs[i] = must(run(ctx, e, gpuexec.Launch{Kernel: kernel, Grid: grid}, x))
		g.Close()
		if err := r.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for i := range x {
		if outputs[0][i] != outputs[1][i] {
			t.Errorf("compiled it gives %v, loaded %v", outputs[0], outputs[1])
		}
	}
}

// edition is one of two backends of the same name whose devices differ.
type edition struct {
	counted
	driver string
}

func (e *edition) Devices(ctx context.Context) []gpuexec.DeviceInfo {
	return []gpuexec.DeviceInfo{e.info(e.counted.Devices(ctx)[0])}
}

func (e *edition) info(i gpuexec.DeviceInfo) gpuexec.DeviceInfo {
	i.Identity.Driver = e.driver
	return i
}

func (e *edition) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := e.counted.Open(ctx, index)
	return editionDevice{d, e}, err
}

type editionDevice struct {
	gpuexec.Device
	of *edition
}

func (d editionDevice) Info() gpuexec.DeviceInfo { return d.of.info(d.Device.Info()) }

// K7, P4: what is stored must fit the device that asks, which says so itself: two
// backends of one name, each with a driver of its own, load nothing of the other's.
func TestStoredKernelsFitTheDevice(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	edition := func(driver string) *edition {
		e := &edition{driver: driver}
		e.OnCompile = func(context.Context, gpuexec.Source) error { e.compiles.Add(1); return nil }
		e.OnLoad = func(context.Context, gpuexec.Source, []byte) error { e.loads.Add(1); return nil }
		return e
	}
	for _, c := range []struct {
		driver         string
		compiles       int32
		reason         kiln.Reason
		field          string
		answered       kiln.Kind
		inOneProcessOf string // a device that the same runtime used before
	}{
		{"1", 1, fault.Absent, "", kiln.Miss, ""},
		{"1", 0, "", "", kiln.PersistentHit, ""},
		{"2", 1, fault.Outdated, "driver", kiln.Miss, "1"},
		{"2", 0, "", "", kiln.PersistentHit, "1"},
	} {
		var told []kiln.Event
		r := open(t, kiln.Config{StoreDir: dir, Listen: func(e kiln.Event) { told = append(told, e) }})
		g := group(t, session(t, r), 1)
		if c.inOneProcessOf != "" {
			must(g.Kernel(ctx, "before", executor(t, r, edition(c.inOneProcessOf)), source("a")))
		}
		fake := edition(c.driver)
		must(g.Kernel(ctx, "n", executor(t, r, fake), source("a")))
		e := told[len(told)-1]
		if fake.compiles.Load() != c.compiles || e.Artefact != c.answered || e.Reason != c.reason || e.Field != c.field {
			t.Errorf("driver %s: %d compiles, %+v", c.driver, fake.compiles.Load(), e)
		}
		g.Close()
		if err := r.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// R3, F3: what a driver did wrong is told with the key of the source, and not with the
// one by which the kernel lives.
func TestDriversFaultHasItsKey(t *testing.T) {
	r := open(t, kiln.Config{})
	g := group(t, session(t, r), 1)
	defer g.Close()
	for what, compile := range map[string]func(context.Context, gpuexec.Source) error{
		"error": func(context.Context, gpuexec.Source) error { return errors.New("of the driver") },
		"panic": func(context.Context, gpuexec.Source) error { panic("of the driver") },
	} {
		_, err := g.Kernel(ctx, "n", executor(t, r, &fakedevice.Backend{OnCompile: compile}), source("matmul"))
		var typed *kiln.Error
		if !errors.As(err, &typed) || typed.Key != "matmul" || !strings.Contains(err.Error(), "matmul") || strings.Contains(err.Error(), "#") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// F4: what a call, a source or the runtime says of lingering holds for the compile on the
// device, too: the first of them that says something.
func TestLingerOfADeviceCompile(t *testing.T) {
	for _, c := range []struct {
		room, source time.Duration
		options      []kiln.Option
		ends         bool // at once
	}{
		{0, 0, nil, false},
		{-1, 0, nil, true},
		{0, -1, nil, true},
		{-1, time.Hour, nil, false},
		{0, 0, []kiln.Option{kiln.Linger(0)}, true},
		{0, time.Hour, []kiln.Option{kiln.Linger(0)}, true},
	} {
		actorstest.Bubble(t, func(t *testing.T) {
			f := &fakedevice.Backend{}
			var ended atomic.Bool
			f.OnCompile = func(ctx context.Context, _ gpuexec.Source) error {
				<-ctx.Done()
				ended.Store(true)
				return ctx.Err()
			}
			r := open(t, kiln.Config{Linger: c.room})
			e := executor(t, r, f)
			g := group(t, session(t, r), 1)
			defer g.Close()
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			src := source("k")
			src.Linger = c.source
			if _, err := g.Kernel(short, "k", e, src, c.options...); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			synctest.Wait()
			if ended.Load() != c.ends {
				t.Errorf("%v, %v, %v: ended %v", c.room, c.source, c.options, ended.Load())
			}
		})
	}
}

// K7, P3: a kernel is stored for the instruction sets that it needs, not for all of
// the device that compiled it, so that a device with fewer of them loads it.
func TestKernelStoredForWhatItRequires(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	first, other := newCounted(), newCounted()
	first.ISA = []string{"wide"}
	for _, device := range []*counted{first, other} {
		r := open(t, kiln.Config{StoreDir: dir})
		g := group(t, session(t, r), 1)
		must(g.Kernel(ctx, "n", executor(t, r, device), source("matmul")))
		g.Close()
		if err := r.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if first.compiles.Load() != 1 || other.compiles.Load() != 0 || other.loads.Load() != 1 {
		t.Errorf("%d and %d compiles, %d loads: want one compile and one load", first.compiles.Load(), other.compiles.Load(), other.loads.Load())
	}
}
