package generaltest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Number is what a buffer of a test has.
type Number interface{ float32 | int32 | uint32 }

// Open opens device 0 for a test.
func Open(t testing.TB, b gpuexec.Backend, workers int) *gpuexec.Executor {
	t.Helper()
	e, err := gpuexec.Open(background, gpuexec.Config{Backend: b, Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(background); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Compile gives a kernel for a test.
func Compile(t testing.TB, e *gpuexec.Executor, src gpuexec.Source) *gpuexec.Kernel {
	t.Helper()
	k, err := e.Compile(background, src)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Release)
	return k
}

// Upload gives a buffer with these numbers.
func Upload[T Number](t testing.TB, e *gpuexec.Executor, numbers []T) *gpuexec.Buffer {
	t.Helper()
	b, err := e.Alloc(background, int64(4*len(numbers)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Release)
	if err := e.Write(background, b, 0, gpuexec.BytesOf(numbers)); err != nil {
		t.Fatal(err)
	}
	return b
}

// Download gives the numbers of a buffer.
func Download[T Number](t testing.TB, e *gpuexec.Executor, b *gpuexec.Buffer) []T {
	t.Helper()
	numbers := make([]T, b.Bytes()/4)
	if err := e.Read(background, b, 0, gpuexec.BytesOf(numbers)); err != nil {
		t.Fatal(err)
	}
	return numbers
}

// Launch computes an operation on its tensors, to its end.
func Launch(t testing.TB, e *gpuexec.Executor, lib ops.Library, op ops.Op, tensors ...*gpuexec.Buffer) {
	t.Helper()
	src, err := lib.Source(op)
	if err != nil {
		t.Fatal(err)
	}
	grid, values := lib.Launch(op)
	var args []gpuexec.Arg
	for _, b := range tensors {
		args = append(args, gpuexec.BufferArg(b))
	}
	if err := e.Submit(background, gpuexec.Launch{Kernel: Compile(t, e, src), Grid: grid, Args: append(args, values...)}); err != nil {
		t.Fatal(err)
	}
}

// Use does everything once that an executor does with a device. The program of src takes
// two buffers of 16 bytes, an int32 and 64 bytes of local memory, and its launch with 1
// gives a first byte above 1; other is another program.
func Use(e *gpuexec.Executor, src, other gpuexec.Source) error {
	b, err := e.Alloc(background, 8192)
	if err != nil {
		return err
	}
	defer b.Release()
	if err := e.Write(background, b, 0, []byte{1}); err != nil {
		return err
	}
	k, err := e.Compile(background, src)
	if err != nil {
		return err
	}
	defer k.Release()
	blob, err := k.Blob(background)
	if err != nil {
		return err
	}
	launch := gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{
		gpuexec.PartArg(b, 0, 16), gpuexec.PartArg(b, 4096, 16), gpuexec.ValueArg(int32(1)), gpuexec.LocalArg(64)}}
	if err := e.Submit(background, launch, launch); err != nil {
		return err
	}
	got := make([]byte, 16)
	if err := e.Read(background, b, 4096, got); err != nil {
		return err
	}
	if got[0] < 2 {
		return fmt.Errorf("the kernel gave %v", got)
	}
	again, err := e.Load(background, src, blob)
	if err != nil {
		return err
	}
	again.Release()
	if taken, err := e.Load(background, other, blob); err == nil {
		taken.Release()
		return errors.New("a blob was taken for another source")
	} else if !errors.Is(err, fault.ErrRefused) {
		return err
	}
	return nil
}

// Faulted is the life of an executor of which one call of the driver fails: typed checks the
// error, if there is one, heal ends the faults, and all goes on then. It gives the error of
// Close.
func Faulted(t *testing.T, b gpuexec.Backend, src, other gpuexec.Source, typed func(error), heal func()) error {
	t.Helper()
	defer heal()
	e, err := gpuexec.Open(background, gpuexec.Config{Backend: b, Workers: 1})
	if err != nil {
		typed(err)
		return nil
	}
	if err := Use(e, src, other); err != nil {
		typed(err)
		heal()
		if err := e.Ready(background); err != nil {
			t.Error(err)
		}
		if again := Use(e, src, other); again != nil {
			t.Errorf("after a call that failed once with %v: %v", err, again)
		}
	}
	return e.Close(background)
}

// NothingIsLeft tests that what a device is closed with, its kernels, buffers and queues,
// goes with it. objects is how many of the driver there are. src is as for Use.
func NothingIsLeft(t *testing.T, b gpuexec.Backend, src gpuexec.Source, rounds int, objects func() int64) {
	before := objects()
	for range rounds {
		e, err := gpuexec.Open(background, gpuexec.Config{Backend: b, Workers: 3})
		if err != nil {
			t.Fatal(err)
		}
		k, err := e.Compile(background, src)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			m, err := e.Alloc(background, 8192)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Submit(background, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{
				gpuexec.BufferArg(m), gpuexec.PartArg(m, 4096, 16), gpuexec.ValueArg(int32(1)), gpuexec.LocalArg(64)}}); err != nil {
				t.Fatal(err)
			}
		}
		if objects() <= before {
			t.Fatal("nothing is counted")
		}
		if err := e.Close(background); err != nil {
			t.Fatal(err)
		}
	}
	if now := objects(); now != before {
		t.Errorf("%d objects are left", now-before)
	}
}
