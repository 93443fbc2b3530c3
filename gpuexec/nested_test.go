package gpuexec_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// F5: a compile that asks for another kernel of its device waits for no slot that it has
// itself, whether it begins that kernel's compile or finds it waiting for the slot.
func TestNestedCompile(t *testing.T) {
	for _, waits := range []bool{false, true} {
		actorstest.Bubble(t, func(t *testing.T) {
			var e *gpuexec.Executor
			part := make(chan error, 1)
			entered, goOn := make(chan struct{}), make(chan struct{})
			f := &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
				if src.Key != "whole" {
					return nil
				}
				close(entered)
				<-goOn
				k, err := e.Compile(ctx, source("part"))
				if err == nil {
					k.Release()
				}
				return err
			}}
			e = open(t, f, gpuexec.Config{Workers: 1, Compiles: 1, Slow: time.Hour})
			whole := make(chan error, 1)
			go func() {
				k, err := e.Compile(bg, source("whole"))
				if err == nil {
					k.Release()
				}
				whole <- err
			}()
			<-entered
			if waits {
				go func() {
					k, err := e.Compile(bg, source("part"))
					if err == nil {
						k.Release()
					}
					part <- err
				}()
				synctest.Wait()
			}
			close(goOn)
			if err := <-whole; err != nil {
				t.Errorf("it waits %v: %v", waits, err)
			}
			if waits {
				if err := <-part; err != nil {
					t.Error(err)
				}
			}
		})
	}
}
