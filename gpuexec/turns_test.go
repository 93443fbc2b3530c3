package gpuexec_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/touched"
)

// leaving is the context of a caller that leaves once it waits for its compile.
type leaving struct {
	context.Context
	asked int
}

var left = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (c *leaving) Done() <-chan struct{} {
	if c.asked++; c.asked > 1 { // the first is for the actor's answer
		return left
	}
	return nil
}

func (c *leaving) Err() error {
	if c.asked > 1 {
		return context.Canceled
	}
	return nil
}

// F6: however many compiles are under way when a device is lost, or an executor closes, a
// turn gives up a bounded number of them, and in the end all are.
func TestGivesUpInShortTurns(t *testing.T) {
	const compiles = touched.Most + 500
	for what, ends := range map[string]func(*fakedevice.Backend, *gpuexec.Executor) error{
		"loss": func(f *fakedevice.Backend, e *gpuexec.Executor) error {
			f.Lose()
			err := fault.ErrDeviceLost
			for errors.Is(err, fault.ErrDeviceLost) { // it needs a slot
				var k *gpuexec.Kernel
				if err = e.Ready(bg); err != nil {
					break
				}
				if k, err = e.Compile(bg, source("new")); err == nil {
					k.Release()
				}
			}
			return errors.Join(err, e.Close(bg))
		},
		"Close": func(_ *fakedevice.Backend, e *gpuexec.Executor) error { return e.Close(bg) },
	} {
		f := &fakedevice.Backend{OnCompile: func(ctx context.Context, s gpuexec.Source) error {
			if s.Key == "new" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		e := open(t, f, gpuexec.Config{Workers: 1})
		for i := range compiles {
			if _, err := e.Compile(&leaving{Context: bg}, source(fmt.Sprint(i))); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: compile %d: %v", what, i, err)
			}
		}
		if err := ends(f, e); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if n := gpuexec.Touched(e); n == 0 || n > touched.Most {
			t.Errorf("%s: a turn gave up %d compiles, want 1 to %d", what, n, touched.Most)
		}
	}
}
