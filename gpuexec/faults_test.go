package gpuexec_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// soon fails the test where fn takes so long that it hangs.
func soon(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: no answer within 10 s", what)
	}
}

// E1: compiles that end while the device is lost and opened again: each caller is
// told, no kernel is left behind, and no turn of the actor panics.
func TestCompileThatEndsDuringARestart(t *testing.T) {
	f := &fakedevice.Backend{}
	e := open(t, f, gpuexec.Config{Workers: 2, Compiles: 4})
	var users sync.WaitGroup
	var over atomic.Bool
	for i := range 4 {
		users.Go(func() {
			for n := 0; !over.Load(); n++ {
				k, err := e.Compile(bg, source(fmt.Sprint(i, n)))
				if err == nil {
					k.Release()
				} else if !errors.Is(err, fault.ErrDeviceLost) {
					t.Errorf("got %v, want ErrDeviceLost", err)
					return
				}
			}
		})
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		f.Lose()
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if k, err := e.Compile(bg, source("worked")); err == nil { // so that it is opened again without a pause
			k.Release()
		}
	}
	over.Store(true)
	soon(t, "compiles", users.Wait)
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return f.Programs() == 0 })
}

// E1: what was compiled for a device that has gone is nothing to the next one: its
// caller is told, and no kernel of it is kept or built again.
func TestStaleCompile(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	f := &fakedevice.Backend{OnCompile: func(_ context.Context, src gpuexec.Source) error {
		if src.Key == "stale" {
			close(entered)
			<-goOn
		}
		return nil
	}}
	patient := &lostButWorking{Backend: f}
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: patient, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(bg)
	got := make(chan error, 1)
	go func() {
		k, err := e.Compile(bg, source("stale"))
		if err == nil {
			k.Release()
		}
		got <- err
	}()
	<-entered
	patient.lose()
	eventually(t, func() bool { return e.Stats().Restarts == 1 })
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-got; !errors.Is(err, fault.ErrDeviceLost) {
		t.Errorf("got %v, want ErrDeviceLost", err)
	}
	eventually(t, func() bool { return f.Leaked() == 2 }) // the old device was closed, with what was compiled
	before := e.Stats()
	patient.lose()
	eventually(t, func() bool { return e.Stats().Restarts == 2 })
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	if s := e.Stats(); s.Compiles != before.Compiles || s.BlobLoads != before.BlobLoads {
		t.Errorf("%+v after %+v: the next device got a kernel that nobody has", s, before)
	}
}

// lostButWorking is a backend whose devices say that they are lost and go on
// compiling.
type lostButWorking struct {
	*fakedevice.Backend
	mu     sync.Mutex
	opened int
	lost   chan struct{}
}

func (b *lostButWorking) lose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.lost)
}

func (b *lostButWorking) openings() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened
}

func (b *lostButWorking) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := b.Backend.Open(ctx, index)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened++
	b.lost = make(chan struct{})
	return lostDevice{d, b.lost}, nil
}

type lostDevice struct {
	gpuexec.Device
	lost chan struct{}
}

func (d lostDevice) Lost() <-chan struct{} { return d.lost }

// E1: a device that is lost again while its kernels are loaded is opened once more,
// though nobody uses it and its driver says nothing.
func TestLostBeforeItIsUp(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		b := &lostButWorking{Backend: &fakedevice.Backend{}}
		b.OnLoad = func(context.Context, gpuexec.Source, []byte) error {
			if b.openings() < 4 {
				b.lose()
				time.Sleep(time.Second) // the executor has heard of it and does not run yet
			}
			return nil
		}
		e, err := gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close(bg)
		compile(t, e, source("k"))
		synctest.Wait() // its blob is kept
		b.lose()
		synctest.Wait()
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if n := b.openings(); n != 4 || e.Stats().Restarts != 3 {
			t.Errorf("opened %d times and restarted %d times when it is ready, want 4 and 3", n, e.Stats().Restarts)
		}
	})
}

// A driver may unload what its device had: neither a restart nor a user's call
// reaches a program or memory of a device that was closed.
func TestNothingOfAClosedDeviceIsCalled(t *testing.T) {
	for _, noBlobs := range []bool{true, false} {
		open1st, goOn := true, make(chan struct{})
		f := &fakedevice.Backend{NoBlobs: noBlobs, OnBlob: func(string) error { return errors.New("not now") }}
		f.OnOpen = func() error {
			if !open1st {
				<-goOn
			}
			open1st = false
			return nil
		}
		e := open(t, f, gpuexec.Config{Workers: 1})
		k := compile(t, e, source("key"))
		b := alloc(t, e, 8)
		for n := range 5 {
			f.Lose()
			eventually(t, func() bool { return e.Stats().Restarts == int64(n+1) && f.Leaked() == 0 })
			if _, err := k.Blob(bg); !errors.Is(err, fault.ErrDeviceLost) {
				t.Errorf("blob while there is no device: %v, want ErrDeviceLost", err)
			}
			if k.Bytes() != 3 {
				t.Errorf("the kernel has %d bytes, want 3", k.Bytes())
			}
			b.Mapped()
			goOn <- struct{}{}
			if err := e.Ready(bg); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Close(bg); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Blob(bg); !errors.Is(err, fault.ErrClosed) {
			t.Errorf("blob after Close: %v, want ErrClosed", err)
		}
		if k.Bytes() != 3 {
			t.Errorf("the kernel has %d bytes after Close, want 3", k.Bytes())
		}
		b.Mapped()
		if n := f.Misuse(); n != 0 {
			t.Errorf("%d calls to what belonged to a closed device", n)
		}
	}
}

// E1, F3: what was launched before a launch that panics, or ends its goroutine, keeps its
// memory until the driver has finished it. An error of that is not lost.
func TestPanicAmidLaunches(t *testing.T) {
	for what, end := range map[string]func() error{
		"panics": func() error { panic("broken") },
		"exits":  func() error { runtime.Goexit(); return nil },
		"fails":  func() error { return errors.New("broken") },
	} {
		launches, running, early := 0, 0, 0
		var finish error
		f := &fakedevice.Backend{
			OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error {
				if launches++; launches%2 == 0 {
					return end()
				}
				running++
				return nil
			},
			OnCall: func(call string) error {
				if call == "finish" {
					running = 0
					return finish
				}
				return nil
			},
			OnRelease: func() { early += running },
		}
		e := open(t, f, gpuexec.Config{Workers: 1})
		for _, finish = range []error{nil, fault.ErrDeviceLost} {
			k := compile(t, e, source("k", gpuexec.Param{Kind: gpuexec.ParamBuffer}))
			b, err := e.Alloc(bg, 8)
			if err != nil {
				t.Fatal(err)
			}
			l := gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(b)}}
			run, err := e.Start(bg, l, l)
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
			if err := run.Wait(bg); err == nil {
				t.Errorf("a launch that %s is no error", what)
			}
			if finish == nil {
				eventually(t, func() bool { return f.Memories() == 0 })
			}
		}
		eventually(t, func() bool { return e.Stats().Restarts == 1 })
		if early > 0 {
			t.Errorf("a launch %s: memory was given back while %d launches ran", what, early)
		}
	}
}

// B2: a blob that the driver gave stays, also after Close.
func TestBlobIsKept(t *testing.T) {
	f := &fakedevice.Backend{}
	e := open(t, f, gpuexec.Config{Workers: 1})
	k := compile(t, e, source("k"))
	if _, err := k.Blob(bg); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(bg); err != nil {
		t.Fatal(err)
	}
	if blob, err := k.Blob(bg); err != nil || string(blob) != "k" {
		t.Errorf("blob after Close: %q, %v", blob, err)
	}
}

// B2: a blob that the driver gave goes with the last hold on its kernel.
func TestBlobOfAReleasedKernel(t *testing.T) {
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{})
	k, err := e.Compile(bg, source("k"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Blob(bg); err != nil {
		t.Fatal(err)
	}
	k.Release()
	if err := e.Close(bg); err != nil { // waits for a turn that may still hold it
		t.Fatal(err)
	}
	if blob, err := k.Blob(bg); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%q, %v: want ErrInvalid", blob, err)
	}
}

// E1, F1: a compile that never returns from the driver of a lost device blocks
// neither its callers nor its key on the next device, with one compile at a time.
func TestStuckCompileOfALostDevice(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	var compiles atomic.Int32
	f := &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
		if compiles.Add(1) == 1 {
			close(entered)
			<-goOn // whatever its context says
		}
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1, Compiles: 1})
	first := make(chan error, 1)
	go func() {
		_, err := e.Compile(bg, source("k"))
		first <- err
	}()
	<-entered
	f.Lose()
	soon(t, "who waited for the stuck compile", func() {
		if err := <-first; !errors.Is(err, fault.ErrDeviceLost) {
			t.Errorf("got %v, want ErrDeviceLost", err)
		}
	})
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	soon(t, "its key on the new device", func() { compile(t, e, source("k")) })
	close(goOn)
}

// E1: a driver that never gives the blob of a program on a lost device does not keep
// the next one from running: the kernel is compiled again.
func TestStuckBlobOfALostDevice(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var asked atomic.Int32
		f := &fakedevice.Backend{OnBlob: func(string) error {
			if asked.Add(1) == 1 {
				<-goOn
			}
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		k := compile(t, e, source("k"))
		synctest.Wait() // its driver is asked for the blob
		began := time.Now()
		f.Lose()
		synctest.Wait()
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second || e.Stats().Compiles != 2 {
			t.Errorf("ready after %v and %d compiles, want a second at most and 2", took, e.Stats().Compiles)
		}
		if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); err != nil {
			t.Error(err)
		}
		close(goOn)
	})
}

// F3: a driver that ends its goroutine fails what called it and nothing else.
func TestGoexitInTheDriver(t *testing.T) {
	for _, call := range []string{"open", "compile", "load", "blob", "alloc", "write", "read", "launch", "finish"} {
		var armed atomic.Bool
		exit := func(what string) error {
			if what == call && armed.Load() {
				runtime.Goexit()
			}
			return nil
		}
		f := &fakedevice.Backend{
			OnOpen:    func() error { return exit("open") },
			OnCompile: func(context.Context, gpuexec.Source) error { return exit("compile") },
			OnLoad:    func(context.Context, gpuexec.Source, []byte) error { return exit("load") },
			OnLaunch:  func(context.Context, string, []gpuexec.DeviceArg, int) error { return exit("launch") },
			OnBlob: func(key string) error {
				if key == "fresh" {
					return exit("blob")
				}
				return errors.New("not kept") // so that each call asks the driver
			},
			OnCall: exit,
		}
		e := open(t, f, gpuexec.Config{Workers: 1})
		k, b := compile(t, e, source("k")), alloc(t, e, 8)
		fails := map[string]func() error{
			"open": func() error {
				_, err := gpuexec.Open(bg, gpuexec.Config{Backend: f, Workers: 1})
				return err
			},
			"compile": func() error { _, err := e.Compile(bg, source("other")); return err },
			"load":    func() error { _, err := e.Load(bg, source("other"), []byte("other")); return err },
			"blob": func() error {
				fresh, err := e.Compile(bg, source("fresh"))
				if err != nil {
					return err
				}
				defer fresh.Release()
				_, err = fresh.Blob(bg)
				return err
			},
			"alloc":  func() error { _, err := e.Alloc(bg, 8); return err },
			"write":  func() error { return e.Write(bg, b, 0, make([]byte, 8)) },
			"read":   func() error { return e.Read(bg, b, 0, make([]byte, 8)) },
			"launch": func() error { return e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}) },
			"finish": func() error { // the device was lost the last time
				return cmp.Or(e.Ready(bg), e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}))
			},
		}[call]
		armed.Store(true)
		for range 3 {
			soon(t, call, func() {
				if err := fails(); !errors.Is(err, fault.ErrGoexit) {
					t.Errorf("%s: %v, want ErrGoexit", call, err)
				}
			})
		}
		armed.Store(false)
		soon(t, call+" again", func() {
			if err := cmp.Or(e.Ready(bg), e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}})); err != nil {
				t.Errorf("a launch after that: %v", err)
			}
		})
		soon(t, "Close after "+call, func() { e.Close(bg) })
	}
}

// F3, E1: a driver that ends its goroutine while the device is opened again, or a
// kernel rebuilt on it, is tried again.
func TestGoexitInARestart(t *testing.T) {
	var opens, loads atomic.Int32
	f := &fakedevice.Backend{
		OnOpen: func() error {
			if opens.Add(1) == 2 {
				runtime.Goexit()
			}
			return nil
		},
		OnLoad: func(context.Context, gpuexec.Source, []byte) error {
			if loads.Add(1) == 1 {
				runtime.Goexit()
			}
			return nil
		},
	}
	e := open(t, f, gpuexec.Config{Workers: 1})
	k := compile(t, e, source("k"))
	if _, err := k.Blob(bg); err != nil {
		t.Fatal(err)
	}
	f.Lose()
	eventually(t, func() bool { return e.Stats().Restarts == 1 })
	soon(t, "ready", func() {
		if err := e.Ready(bg); err != nil {
			t.Error(err)
		}
	})
	if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); err != nil {
		t.Error(err)
	}
}

// F3, E6: a listener that ends its goroutine harms neither the compile nor what it
// is told later.
func TestGoexitInAListener(t *testing.T) {
	var mu sync.Mutex
	var last string // phase told of
	started := make(chan struct{})
	var once sync.Once
	e := open(t, &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
		<-started
		return nil
	}}, gpuexec.Config{Slow: time.Millisecond, Listen: func(ev gpuexec.CompileEvent) {
		mu.Lock()
		last = ev.Phase
		mu.Unlock()
		if ev.Phase == gpuexec.PhaseRunning {
			once.Do(func() { close(started) })
		}
		runtime.Goexit()
	}})
	soon(t, "a long compile", func() { compile(t, e, source("k")) })
	soon(t, "Close", func() { e.Close(bg) })
	mu.Lock()
	if last != gpuexec.PhaseEnd {
		t.Errorf("told of %q last, want %q", last, gpuexec.PhaseEnd)
	}
	mu.Unlock()
}

// P3: a device that comes back as another one is not taken: what is stored of this
// executor carries the identity of the first.
func TestReopenedAsAnother(t *testing.T) {
	b := &changing{Backend: &fakedevice.Backend{}}
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(bg)
	b.other.Store(true)
	b.Lose()
	eventually(t, func() bool { return b.opened.Load() >= 4 })
	ctx, cancel := context.WithTimeout(bg, time.Millisecond)
	defer cancel()
	if err := e.Ready(ctx); err == nil {
		t.Error("another device was taken for the one that was lost")
	}
	b.other.Store(false)
	b.empty.Store(true) // it has no instruction sets, as before
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return b.Leaked() == 2 })
}

// changing is a backend whose device may come back with another driver.
type changing struct {
	*fakedevice.Backend
	other  atomic.Bool
	empty  atomic.Bool // the list of instruction sets is not nil
	opened atomic.Int32
}

func (b *changing) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	b.opened.Add(1)
	d, err := b.Backend.Open(ctx, index)
	return changed{d, b.other.Load(), b.empty.Load()}, err
}

type changed struct {
	gpuexec.Device
	other, empty bool
}

func (d changed) Info() gpuexec.DeviceInfo {
	info := d.Device.Info()
	if d.other {
		info.Identity.Driver = "another"
	}
	if d.empty {
		info.Identity.ISA = []string{}
	}
	return info
}

// E1, P3: a device that comes back with other instruction sets is not taken.
func TestReopenedWithOtherInstructionSets(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &fakedevice.Backend{ISA: []string{"a", "b"}}
		openings := 0
		f.OnOpen = func() error {
			if openings++; openings == 2 {
				f.ISA = []string{"a"}
			} else {
				f.ISA = []string{"a", "b"}
			}
			return nil
		}
		e := open(t, f, gpuexec.Config{Workers: 1})
		f.Lose()
		synctest.Wait()
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if openings != 3 {
			t.Errorf("opened %d times, want 3", openings)
		}
	})
}
