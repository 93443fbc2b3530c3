package gpuexec_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// harmful is users' code and a driver that do at random what they must not.
type harmful struct {
	*fakedevice.Backend
	e    *gpuexec.Executor
	over atomic.Bool // it does no harm any more

	mu     sync.Mutex
	random *rand.Rand
}

func (h *harmful) draw(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.random.IntN(n)
}

// act panics, ends the goroutine or waits, each one time in n.
func (h *harmful) act(n int) {
	if h.over.Load() {
		return
	}
	switch h.draw(n) {
	case 0:
		panic("harmful")
	case 1:
		runtime.Goexit()
	case 2:
		time.Sleep(time.Duration(h.draw(2000)) * time.Microsecond)
	}
}

func (h *harmful) compile(ctx context.Context, _ gpuexec.Source) error {
	h.act(15)
	if h.over.Load() {
		return nil
	}
	switch h.draw(8) {
	case 0:
		select {
		case <-ctx.Done():
		case <-time.After(3 * time.Millisecond):
		}
	case 1:
		return errors.New("no")
	case 2, 3: // circles among them
		k, err := h.e.Compile(harmfulContext{ctx, h}, source(fmt.Sprint("k", h.draw(6))))
		if err == nil {
			k.Release()
		}
		return err
	case 4:
		return fault.ErrDeviceLost
	}
	return nil
}

// harmfulContext is a request's context.
type harmfulContext struct {
	context.Context
	h *harmful
}

func (c harmfulContext) Done() <-chan struct{} { c.h.act(60); return c.Context.Done() }
func (c harmfulContext) Err() error            { c.h.act(60); return c.Context.Err() }
func (c harmfulContext) Value(key any) any     { c.h.act(60); return c.Context.Value(key) }

// use is one request, which may panic and end its goroutine.
func (h *harmful) use() {
	within, cancel := context.WithCancel(bg)
	defer cancel()
	if h.draw(3) == 0 {
		defer time.AfterFunc(time.Duration(h.draw(3000))*time.Microsecond, cancel).Stop()
	}
	ctx, src := harmfulContext{within, h}, source(fmt.Sprint("k", h.draw(6)), gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 8})
	k, err := h.e.Compile(ctx, src)
	if err != nil {
		return
	}
	defer k.Release()
	if blob, err := k.Blob(ctx); err == nil && h.draw(3) == 0 {
		if l, err := h.e.Load(ctx, src, blob); err == nil {
			defer l.Release()
		}
	}
	b, err := h.e.Alloc(ctx, 64)
	if err != nil {
		return
	}
	defer b.Release()
	launch := gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b)}, Grid: gpuexec.Size{1}}
	if h.draw(2) == 0 {
		_ = h.e.Submit(ctx, launch, gpuexec.CopyTo(b, 0, make([]byte, 8)))
		return
	}
	one, err := h.e.Start(ctx, launch)
	if err != nil {
		return
	}
	two, err := h.e.StartAfter(ctx, []*gpuexec.Run{one}, launch, launch)
	if h.draw(3) == 0 {
		one.Cancel()
	}
	if err == nil {
		_ = two.Wait(ctx)
	}
}

// F3, F4, E1: whatever callers, their contexts, listeners and the driver do, and whenever the
// device goes or is closed: every call returns, nothing is used after its release or the close
// of its device, and nothing is left.
func TestStormOfHarmfulCode(t *testing.T) {
	for round := range 6 {
		h := &harmful{Backend: &fakedevice.Backend{}, random: rand.New(rand.NewPCG(uint64(round), 7))}
		f, opened := h.Backend, false
		f.OnCompile = h.compile
		f.OnLoad = func(ctx context.Context, src gpuexec.Source, _ []byte) error { return h.compile(ctx, src) }
		f.OnBlob = func(string) error { h.act(10); return nil }
		f.OnCall = func(string) error { h.act(15); return nil }
		f.OnLaunch = func(context.Context, string, []gpuexec.DeviceArg, int) error {
			if !h.over.Load() && h.draw(40) == 0 {
				f.Lose()
			}
			h.act(10)
			return nil
		}
		f.OnOpen = func() error {
			if opened {
				h.act(6)
			}
			return nil
		}
		var err error
		h.e, err = gpuexec.Open(bg, gpuexec.Config{Backend: f, Workers: 3, Queue: 4, Compiles: 2, Linger: time.Millisecond,
			Slow: time.Millisecond, Listen: func(gpuexec.CompileEvent) { h.act(5) }})
		if err != nil {
			t.Fatal(err)
		}
		opened = true
		var users sync.WaitGroup
		for range 8 {
			users.Go(func() {
				for range 60 {
					actorstest.Apart(h.use)
				}
			})
		}
		if round%3 == 2 {
			time.Sleep(20 * time.Millisecond)
			_ = h.e.Close(bg)
		}
		users.Wait()
		h.over.Store(true)
		if round%3 != 2 {
			if err := h.e.Ready(bg); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { return f.Programs() == 0 && f.Memories() == 0 })
		}
		if err := h.e.Close(bg); err != nil || f.Leaked() != 0 || f.Misuse() != 0 {
			t.Errorf("round %d: %v, %d left open, %d misuses", round, err, f.Leaked(), f.Misuse())
		}
	}
}
