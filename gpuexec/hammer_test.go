package gpuexec_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// expected are the errors that a storm may meet.
func expected(err error) bool {
	for _, want := range []error{context.Canceled, fault.ErrClosed, fault.ErrDeviceLost, fault.ErrOverloaded} {
		if errors.Is(err, want) {
			return true
		}
	}
	return err == nil
}

// user compiles, allocates, launches, reads and releases, cancelling at random.
func user(t *testing.T, e *gpuexec.Executor, seed uint64, rounds int) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	check := func(what string, err error) bool {
		if !expected(err) {
			t.Errorf("%s: %v", what, err)
		}
		return err == nil
	}
	for range rounds {
		ctx, cancel := context.WithCancel(context.Background())
		if rnd.IntN(3) == 0 {
			go cancel()
		}
		k, err := e.Compile(ctx, source(fmt.Sprint("k", rnd.IntN(5)), gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 8}))
		if check("compile", err) {
			if b, err := e.Alloc(ctx, 64); check("alloc", err) {
				launch := gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b)}, Grid: gpuexec.Size{1}}
				check("submit", e.Submit(ctx, launch, launch))
				into := make([]byte, 8)
				check("read", e.Read(ctx, b, 0, into))
				b.Release()
			}
			k.Release()
		}
		cancel()
	}
}

// E1, F8: submits, cancellations, losses and Close at once: every call returns,
// nothing is released twice or used after it, and nothing is left.
func TestHammer(t *testing.T) {
	for _, losses := range []int{0, 20} {
		f := &fakedevice.Backend{}
		e, err := gpuexec.Open(context.Background(), gpuexec.Config{Backend: f, Workers: 3, Queue: 4, Linger: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		var users, loser sync.WaitGroup
		for i := range 6 {
			users.Go(func() { user(t, e, uint64(i), 400) })
		}
		loser.Go(func() {
			for range losses {
				f.Lose()
				if err := e.Ready(context.Background()); err != nil {
					t.Error(err)
				}
				if k, err := e.Compile(context.Background(), source("worked")); err == nil { // so that it is opened again without a pause
					k.Release()
				}
			}
		})
		users.Wait()
		loser.Wait()
		if err := e.Ready(context.Background()); err != nil {
			t.Fatal(err)
		}
		// Everything was released: the pins are balanced while the device is up.
		eventually(t, func() bool { return f.Programs() == 0 && f.Memories() == 0 })
		if err := e.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if f.Leaked() != 0 || f.Misuse() != 0 {
			t.Errorf("%d losses: %d devices and queues are open, %d misuses", losses, f.Leaked(), f.Misuse())
		}
	}
}

// E1: Close, by several, at any moment of a storm.
func TestCloseInAStorm(t *testing.T) {
	for round := range 40 {
		f := &fakedevice.Backend{}
		e, err := gpuexec.Open(context.Background(), gpuexec.Config{Backend: f, Workers: 2, Queue: 3})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() { user(t, e, uint64(round*4+i), 20) })
		}
		wg.Go(func() { f.Lose() })
		for range 2 {
			wg.Go(func() {
				if err := e.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if f.Leaked() != 0 || f.Misuse() != 0 || f.Programs() != 0 || f.Memories() != 0 {
			t.Fatalf("round %d: open %d, misuses %d, programs %d, memories %d", round, f.Leaked(), f.Misuse(), f.Programs(), f.Memories())
		}
	}
}

// The device is not closed under a compile, neither by Close nor by its loss.
func TestDeviceOutlivesItsCompiles(t *testing.T) {
	for _, end := range []string{"close", "loss"} {
		entered, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var open atomic.Int32 // devices and queues, when the compile ends
		var f *fakedevice.Backend
		f = &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
			close(entered)
			<-goOn // a driver that does not heed its context
			open.Store(int32(f.Leaked()))
			close(ended)
			return nil
		}}
		e, err := gpuexec.Open(context.Background(), gpuexec.Config{Backend: f, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			_, err := e.Compile(context.Background(), source("k"))
			got <- err
		}()
		<-entered
		closed := make(chan error, 1)
		before := 1 // the device; its worker's queue may be closed
		if end == "close" {
			go func() { closed <- e.Close(context.Background()) }()
			if err := <-got; !errors.Is(err, fault.ErrClosed) { // at once, though the compile runs on
				t.Errorf("compile over Close: %v", err)
			}
			eventually(t, func() bool { return f.Leaked() <= before })
		} else {
			f.Lose()
			eventually(t, func() bool { return e.Stats().Restarts == 1 })
			if err := e.Ready(context.Background()); err != nil {
				t.Fatal(err)
			}
			before += 2 // the fresh device with its queue
			eventually(t, func() bool { return f.Leaked() <= before })
		}
		if end == "loss" {
			if err := <-got; !errors.Is(err, fault.ErrDeviceLost) { // at once, too
				t.Errorf("compile over a loss: %v", err)
			}
		}
		close(goOn)
		<-ended
		if end == "loss" {
			go func() { closed <- e.Close(context.Background()) }()
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		if int(open.Load()) != before {
			t.Errorf("%s: %d devices and queues were open when the compile ended, want %d", end, open.Load(), before)
		}
		if f.Leaked() != 0 {
			t.Errorf("%s: %d are left open", end, f.Leaked())
		}
	}
}

// A device that is lost again while it is being opened is opened once more,
// though nobody uses it in between.
func TestLostWhileOpening(t *testing.T) {
	var f *fakedevice.Backend
	loads := 0
	f = &fakedevice.Backend{OnLoad: func(context.Context, gpuexec.Source, []byte) error {
		if loads++; loads == 2 { // the first of two kernels is rebuilt already
			f.Lose()
			return nil
		}
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1})
	for _, key := range []string{"a", "b"} {
		if _, err := compile(t, e, source(key)).Blob(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	f.Lose()
	eventually(t, func() bool {
		k, err := e.Compile(context.Background(), source("c"))
		if err == nil {
			k.Release()
		}
		return err == nil
	})
	eventually(t, func() bool { return f.Leaked() == 2 }) // one device with one queue
}

// A call under a context that has ended already pins nothing for good.
func TestEndedContextPinsNothing(t *testing.T) {
	f := &fakedevice.Backend{}
	e := open(t, f, gpuexec.Config{Workers: 1})
	k, err := e.Compile(context.Background(), source("k", gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 8}))
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Alloc(context.Background(), 8)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	launched := e.Submit(ended, gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b)}, Grid: gpuexec.Size{1}})
	for what, err := range map[string]error{"submit": launched, "read": e.Read(ended, b, 0, make([]byte, 8)), "write": e.Write(ended, b, 0, make([]byte, 8))} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	k.Release()
	b.Release()
	eventually(t, func() bool { return f.Programs() == 0 && f.Memories() == 0 })
}

// A kernel whose last user leaves while the device is opened again leaves no
// program on the new one.
func TestReleasedDuringRestart(t *testing.T) {
	rebuilding, goOn := make(chan struct{}), make(chan struct{})
	f := &fakedevice.Backend{OnLoad: func(context.Context, gpuexec.Source, []byte) error {
		close(rebuilding)
		<-goOn
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1})
	k, err := e.Compile(context.Background(), source("k"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Blob(context.Background()); err != nil {
		t.Fatal(err)
	}
	f.Lose()
	<-rebuilding
	k.Release()
	close(goOn)
	if err := e.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return f.Programs() == 0 })
}

// F3, E6: neither a driver that panics in a long compile nor a listener that
// panics ends the process or leaves a goroutine (see TestMain).
func TestPanicsInALongCompile(t *testing.T) {
	told := make(chan struct{})
	var once sync.Once
	e := open(t, &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
		<-told
		panic("driver")
	}}, gpuexec.Config{Slow: 1, Listen: func(gpuexec.CompileEvent) {
		once.Do(func() { close(told) })
		panic("listener")
	}})
	if _, err := e.Compile(context.Background(), source("k")); err == nil {
		t.Error("a compile that panicked gave a kernel")
	}
}
