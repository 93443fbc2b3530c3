package forward_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/forward"
)

// losing is a device that can be lost, with the operations of cpu, whose outputs are zeros.
type losing struct {
	*fakedevice.Backend
	operations
}

type operations interface {
	Source(op ops.Op) (gpuexec.Source, error)
	Launch(op ops.Op) (gpuexec.Size, []gpuexec.Arg)
	Prepare(op ops.Op) (ops.Prepared, error)
}

// E1: once a device that was lost is back, in a request or between two, its models upload
// their weights again, each of them once, and nothing that was lost stays in the cache.
func TestModelsGoOnWhenTheDeviceIsBack(t *testing.T) {
	host, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	var lose atomic.Bool
	gone := func() error {
		if lose.CompareAndSwap(true, false) {
			return fault.ErrDeviceLost
		}
		return nil
	}
	device := &fakedevice.Backend{OnCall: func(string) error { return gone() },
		OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error { return gone() }}
	b := openOn(t, losing{device, host}, tinyList(asItIs))
	m, _ := b.model(kiln.SessionConfig{})
	beside, _ := b.model(kiln.SessionConfig{})
	ids := b.ids(0, 5)
	first := b.run(m, ids)
	b.run(beside, ids)
	weights, uploaded := b.config.Engine.Len(), m.Constants().Owners
	for restarts, while := range []func() error{
		func() error { _, err := m.Run(bg, [][]int32{ids}); return err },
		func() error { _, err := b.config.Executor.Alloc(bg, 64); return err },
	} {
		lose.Store(true)
		if err := while(); !errors.Is(err, fault.ErrDeviceLost) {
			t.Fatalf("%v, want ErrDeviceLost", err)
		}
		if err := b.config.Executor.Ready(bg); err != nil {
			t.Fatal(err)
		}
		fresh, _ := b.model(kiln.SessionConfig{})
		for _, model := range []*forward.Model{fresh, m, beside} {
			if got := b.run(model, ids).Output; len(got) != len(first.Output) {
				t.Errorf("%d values, want %d", len(got), len(first.Output))
			}
		}
		if n := fresh.Constants().Owners; n != uploaded {
			t.Errorf("restart %d: the first model uploads %d weights, want %d", restarts+1, n, uploaded)
		}
		if n := m.Constants().Owners + beside.Constants().Owners; n != uploaded {
			t.Errorf("restart %d: the others upload %d weights again", restarts+1, n-uploaded)
		}
		if n := b.config.Engine.Len(); n != weights {
			t.Errorf("restart %d: %d weights in the cache, want %d", restarts+1, n, weights)
		}
	}
	if n := device.Misuse(); n > 0 {
		t.Errorf("%d calls with what was lost", n)
	}
}
