package devicetest_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// number is a source by a Spec that is an int, which a backend may choose.
func number(n int, key string) gpuexec.Source {
	return gpuexec.Source{Key: key, Spec: n, Params: []gpuexec.Param{{Kind: gpuexec.ParamBuffer, Bytes: 8}}}
}

// What the doc of package gpuexec allows passes: a Spec of any type, and a program
// that does not say what it requires (SPEC K7).
func TestContractTakesWhatTheDocAllows(t *testing.T) {
	devicetest.Contract(t, &terse{Backend: &fakedevice.Backend{
		Limits:    gpuexec.Limits{Alignment: 1},
		MostBytes: 1 << 30,
		OnCompile: func(_ context.Context, src gpuexec.Source) error {
			if _, ok := src.Spec.(int); !ok {
				return fault.ErrInvalid
			}
			return nil
		},
	}}, number(1, "one"), number(2, "two"))
}

// terse is the fake backend with programs that say nothing of what they require.
type terse struct{ *fakedevice.Backend }

func (b *terse) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := b.Backend.Open(ctx, index)
	if err != nil {
		return nil, err
	}
	return device{d}, nil
}

type device struct{ gpuexec.Device }

func (d device) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	return wrap(d.Device.Compile(ctx, src))
}

func (d device) Load(ctx context.Context, src gpuexec.Source, blob []byte) (gpuexec.Program, error) {
	return wrap(d.Device.Load(ctx, src, blob))
}

func wrap(p gpuexec.Program, err error) (gpuexec.Program, error) {
	if err != nil {
		return nil, err
	}
	return program{p}, nil
}

func (d device) OpenQueue() (gpuexec.Queue, error) {
	q, err := d.Device.OpenQueue()
	return queue{q}, err
}

type program struct{ gpuexec.Program }

func (program) Requires() []string { return nil }

type queue struct{ gpuexec.Queue }

func (q queue) Launch(ctx context.Context, p gpuexec.Program, args []gpuexec.DeviceArg, grid, block gpuexec.Size) error {
	return q.Queue.Launch(ctx, p.(program).Program, args, grid, block)
}
