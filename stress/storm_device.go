package stress

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// fake is a device with faults: compiles, loads, launches and calls that fail,
// panic, end their goroutine and take their time.
func (s *storm) fake(random *rand.Rand) *faulty {
	var mu sync.Mutex
	own := rand.New(rand.NewPCG(random.Uint64(), 0))
	fate := func(ctx context.Context) error {
		mu.Lock()
		odds := own.IntN(160)
		mu.Unlock()
		switch odds {
		case 3, 4, 5:
			return rest(ctx, time.Millisecond)
		case 6:
			return fault.ErrDeviceLost
		}
		return misbehave(odds)
	}
	bg := context.Background()
	f := &fakedevice.Backend{
		MostBytes: 8 << 10,
		OnOpen:    func() error { return fate(bg) },
		OnCompile: func(ctx context.Context, _ gpuexec.Source) error { return fate(ctx) },
		OnLoad:    func(ctx context.Context, _ gpuexec.Source, _ []byte) error { return fate(ctx) },
		OnBlob:    func(string) error { return fate(bg) },
		OnLaunch:  func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error { return fate(ctx) },
		OnCall:    func(string) error { return fate(bg) },
	}
	s.mu.Lock()
	s.mu.fakes = append(s.mu.fakes, f)
	s.mu.Unlock()
	return &faulty{f, s}
}

// faulty is that backend; its devices find two compiles of one key at a time. One
// that was lost may still compile beside the next one.
type faulty struct {
	*fakedevice.Backend
	storm *storm
}

func (f *faulty) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := f.Backend.Open(ctx, index)
	if err != nil {
		return nil, err
	}
	return &oneCompile{d, f.storm}, nil
}

type oneCompile struct {
	gpuexec.Device
	storm *storm
}

func (d *oneCompile) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	defer d.storm.making.enter(d.storm.run, fmt.Sprintf("%p %s", d, src.Key))()
	return d.Device.Compile(ctx, src)
}
