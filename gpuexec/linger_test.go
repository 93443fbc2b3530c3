package gpuexec_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// F4: a compile goes on for the linger time when all have left, and its kernel waits
// as long, so that callers with deadlines shorter than it get further with each try.
func TestDeadlineShorterThanACompile(t *testing.T) {
	const between = 7 * time.Millisecond // when nobody waits: the compile ends then
	for _, c := range []struct {
		what                string
		room, source, pause time.Duration
		made, given         int32
	}{
		{"by default", 0, 0, between, 1, 1},
		{"none", -1, 0, between, 0, 0},
		{"of the source", -1, time.Minute, between, 1, 1},
		{"none for this source", time.Minute, -1, between, 0, 0},
		{"the next try comes too late", 35 * time.Millisecond, 0, time.Second, 6, 0},
	} {
		actorstest.Bubble(t, func(t *testing.T) {
			var begun, made, given atomic.Int32
			f := &fakedevice.Backend{OnCompile: func(ctx context.Context, _ gpuexec.Source) error {
				begun.Add(1)
				select {
				case <-time.After(50 * time.Millisecond):
					made.Add(1)
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
			e := open(t, f, gpuexec.Config{Linger: c.room})
			src := source("k")
			src.Linger = c.source
			for try := 0; try < 6 && given.Load() == 0; try++ {
				ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
				k, err := e.Compile(ctx, src)
				cancel()
				switch {
				case err == nil:
					given.Add(1)
					k.Release()
				case !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("%s: %v", c.what, err)
				}
				time.Sleep(c.pause)
			}
			if made.Load() != c.made || given.Load() != c.given || c.given == 1 && begun.Load() != 1 {
				t.Errorf("%s: %d begun, %d made, %d given; want %d made and %d given", c.what, begun.Load(), made.Load(), given.Load(), c.made, c.given)
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if n := f.Programs(); n != 0 {
				t.Errorf("%s: %d programs are left in the end", c.what, n)
			}
		})
	}
}

// F4: of several callers of a compile the longest linger time counts, for the kernel
// that nobody took, too.
func TestLongestLingerOfAKernel(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var begun atomic.Int32
		f := &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
			begun.Add(1)
			time.Sleep(time.Second)
			return nil
		}}
		e := open(t, f, gpuexec.Config{})
		ctx, leave := context.WithCancel(bg)
		for _, linger := range []time.Duration{-1, time.Minute, time.Second} {
			src := source("k")
			src.Linger = linger
			go func() { _, _ = e.Compile(ctx, src) }()
			synctest.Wait() // the first of them begins it
		}
		leave()
		time.Sleep(time.Minute)
		compile(t, e, source("k"))
		if n := begun.Load(); n != 1 {
			t.Errorf("%d compiles, want 1", n)
		}
	})
}

// F4: a kernel that nobody took is given to the caller that asks next, be it that all
// left while it was made or in the moment in which it was there; a caller that has
// left again by then leaves it where it is.
func TestKernelThatNobodyTook(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
			time.Sleep(time.Second)
			return nil
		}}
		e := open(t, f, gpuexec.Config{})
		var given int64
		for range 20 { // the compile ends at the deadline
			ctx, cancel := context.WithTimeout(bg, time.Second)
			if k, err := e.Compile(ctx, source("k")); err == nil {
				given++
				k.Release()
			}
			cancel()
			synctest.Wait()
		}
		before := e.Stats().Compiles
		if before < given || before > given+1 {
			t.Errorf("%d compiles for %d kernels given", before, given)
		}
		ctx, cancel := context.WithTimeout(bg, time.Millisecond)
		defer cancel()
		if _, err := e.Compile(ctx, source("other")); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		k, err := e.Load(bg, source("other"), []byte("other"))
		if err != nil {
			t.Fatal(err)
		}
		again := compile(t, e, source("other")) // it is taken: nothing is kept for anybody
		if n := e.Stats(); n.Compiles != before+2 || n.BlobLoads != 0 || again == k {
			t.Errorf("%+v: want one compile before it was taken and one after", n)
		}
		k.Release()
	})
}

// F4: a device that is lost does not take a kernel along that nobody took yet, and
// Close does not wait for its linger time.
func TestKernelThatNobodyTookOutlivesItsDevice(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
			time.Sleep(time.Second)
			return nil
		}}
		e := open(t, f, gpuexec.Config{})
		for _, key := range []string{"k", "left"} {
			ctx, cancel := context.WithTimeout(bg, time.Millisecond)
			if _, err := e.Compile(ctx, source(key)); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
		}
		time.Sleep(2 * time.Second)
		f.Lose()
		synctest.Wait()
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		k := compile(t, e, source("k"))
		if n := e.Stats(); n.Compiles != 2 || n.BlobLoads != 2 {
			t.Errorf("%+v, want 2 compiles and 2 loads", n)
		}
		if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); err != nil {
			t.Error(err)
		}
		began := time.Now()
		if err := e.Close(bg); err != nil || time.Since(began) > 0 {
			t.Errorf("closed after %v, %v", time.Since(began), err)
		}
	})
}

// F2: who joined a compile that fails gets its error, and runs no other one: also where
// it is one that, of a blob of another caller's, would be no reason to fail.
func TestJoinedCompileFails(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		const callers = 3
		failed := fmt.Errorf("driver: %w", fault.ErrRefused)
		var begun atomic.Int32
		e := open(t, &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
			begun.Add(1)
			time.Sleep(time.Second)
			return failed
		}}, gpuexec.Config{})
		got := make(chan error, callers)
		for range callers {
			go func() {
				_, err := e.Compile(bg, source("k"))
				got <- err
			}()
		}
		for range callers {
			if err := <-got; !errors.Is(err, failed) {
				t.Error(err)
			}
		}
		if n := begun.Load(); n != 1 {
			t.Errorf("%d compiles, want 1", n)
		}
	})
}

// F4: the kernels that wait for a caller are bounded; the one that has waited longest
// goes.
func TestUnclaimedKernelsAreBounded(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		const most, more = 1024, 3
		f := &fakedevice.Backend{NoBlobs: true, OnCompile: func(context.Context, gpuexec.Source) error {
			time.Sleep(2 * time.Millisecond)
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour, Linger: time.Hour})
		for i := range most + more {
			ctx, cancel := context.WithTimeout(bg, time.Millisecond)
			if _, err := e.Compile(ctx, source(fmt.Sprint(i))); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if n := f.Programs(); n != most {
			t.Errorf("%d kernels are kept for nobody, want %d", n, most)
		}
		for _, c := range []struct {
			key      int
			compiles int64
		}{{more, 0}, {most + more - 1, 0}, {more - 1, 1}} {
			before := e.Stats().Compiles
			compile(t, e, source(fmt.Sprint(c.key)))
			if n := e.Stats().Compiles - before; n != c.compiles {
				t.Errorf("kernel %d: %d compiles, want %d", c.key, n, c.compiles)
			}
		}
	})
}
