package devicetest

import (
	"bytes"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// neighbours: a device that is open twice is two. Neither takes what is the other's, and
// one goes on with what it has when the other closes or is lost, launches of both on their way.
func neighbours(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	one := openDevice(t, backend, 2)
	mine := build(t, one, sources[0])
	defer mine.Release()
	l, held := launchOf(t, one, mine)
	defer releaseAll(held)
	mark := bytes.Repeat([]byte{0x5A}, 4097)
	kept := allocate(t, one, int64(len(mark)))
	defer kept.Release()
	if err := one.Write(background, kept, 0, mark); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		other, err := gpuexec.Open(background, gpuexec.Config{Backend: backend, Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		theirs := build(t, other, sources[0])
		far, away := launchOf(t, other, theirs)
		mixed := far
		mixed.Kernel = mine
		for what, err := range map[string]error{"a launch": other.Submit(background, l), "a kernel": other.Submit(background, mixed), "a buffer": other.Write(background, kept, 0, mark)} {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%s of another executor: %v, want ErrInvalid", what, err)
			}
		}
		here, there := start(t, one, nil, l, l), start(t, other, nil, far, far)
		if err := other.Close(background); err != nil {
			t.Error(err)
		}
		waited(t, there, fault.ErrClosed)
		waited(t, here)
		theirs.Release()
		releaseAll(away)
	}
	if err := one.Submit(background, l); err != nil {
		t.Errorf("after the other was closed: %v", err)
	}
	breaks := &fragile{Backend: backend}
	other := openDevice(t, breaks, 2)
	theirs := build(t, other, sources[0])
	defer theirs.Release()
	gone := allocate(t, other, 64)
	here := start(t, one, nil, l, l)
	breaks.fail(fault.ErrDeviceLost)
	if err := other.Write(background, gone, 0, mark[:64]); !errors.Is(err, fault.ErrDeviceLost) {
		t.Errorf("on the device that is lost: %v, want ErrDeviceLost", err)
	}
	waited(t, here)
	if err := one.Submit(background, l); err != nil {
		t.Errorf("after the other was lost: %v", err)
	}
	gone.Release()
	if err := other.Ready(background); err != nil {
		t.Error(err)
	}
	far, away := launchOf(t, other, theirs)
	defer releaseAll(away)
	if err := other.Submit(background, far); err != nil {
		t.Errorf("on the device that came back: %v", err)
	}
	if n := one.Stats().Restarts; n != 0 {
		t.Errorf("a device was opened again %d times for the loss of the other", n)
	}
	got := make([]byte, len(mark))
	if err := one.Read(background, kept, 0, got); err != nil || !bytes.Equal(got, mark) {
		t.Errorf("%v, or the memory was changed by another executor", err)
	}
}

// runtimes: Go has its signals after the driver's calls. A nil pointer is a panic that
// is recovered, and a goroutine that calls nothing does not hold up the collector.
func runtimes(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	e := openDevice(t, backend, 1)
	k := build(t, e, sources[0])
	defer k.Release()
	l, held := launchOf(t, e, k)
	defer releaseAll(held)
	if err := e.Submit(background, l); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a nil pointer was read")
			}
		}()
		var none *[1]byte
		t.Log(none[0])
	}()
	var over atomic.Bool
	spun := make(chan struct{})
	go func() {
		defer close(spun)
		for !over.Load() {
		}
	}()
	collected := make(chan struct{})
	go func() { runtime.GC(); close(collected) }()
	select {
	case <-collected:
	case <-time.After(time.Minute):
		t.Error("the collector waits for a goroutine that it cannot stop")
	}
	over.Store(true)
	<-spun
	<-collected
}
