//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
)

// plain has the tests below use a driver without pools, as before CUDA 11.2.
func plain(t *testing.T) backend {
	t.Helper()
	b := needFake(t)
	l, err := bind(func(name string) (uintptr, error) {
		if strings.Contains(name, "Pool") || name == cuMemFreeAsync.String() {
			return 0, fmt.Errorf("no symbol %s", name)
		}
		return fake.Symbol(name)
	})
	if err != nil {
		t.Fatal(err)
	}
	withLibrary(t, l)
	return b
}

// F6: memory that is given back does not wait for what other workers run, as cuMemFree does,
// and is there for the next one.
func TestMemoryOfAPool(t *testing.T) {
	const bytes = 400 << 20 // of 1 GiB
	for _, pools := range []bool{true, false} {
		b := needFake(t)
		if !pools {
			b = plain(t)
		}
		d := must(b.open(bg, 0)).(*device)
		q := must(d.OpenQueue()).(*queue)
		if want := map[bool]uint64{true: 1 << 30 / 16}[pools]; fake.Kept() != want {
			t.Errorf("with pools: %v: %d bytes of 1 GiB are kept that nobody has, want %d", pools, fake.Kept(), want)
		}
		kept, given := must(d.Alloc(16)), must(d.Alloc(bytes))
		check(q.Write(kept, 0, make([]byte, 16)))
		waiting := fake.Waiting()
		given.Release()
		if still := fake.Waiting() >= waiting; still != pools || waiting == 0 {
			t.Errorf("with pools: %v: of what another stream does %d wait before, %d after", pools, waiting, fake.Waiting())
		}
		for range 4 {
			must(d.Alloc(bytes)).Release()
		}
		check(q.Close())
		check(d.Close())
	}
}

// E1: nor does a device of an old driver leave anything.
func TestNothingIsLeftWithoutPools(t *testing.T) {
	b, live := plain(t), liveObjects()
	generaltest.NothingIsLeft(t, b, numbered(t, 3), 2, native.Load)
	if now := liveObjects(); now != live {
		t.Errorf("%d objects of the driver are left", now-live)
	}
}

// E1: memory that nobody has given back goes with its device, of a pool too.
func TestMemoryGoesWithItsDevice(t *testing.T) {
	b, live := needFake(t), liveObjects()
	d := must(b.open(bg, 0))
	var m []gpuexec.Memory
	for range 3 {
		m = append(m, must(d.Alloc(1<<20)))
	}
	m[0].Release()
	check(d.Close())
	if now := liveObjects(); now != live {
		t.Errorf("%d objects of the driver are left", now-live)
	}
}

// E1: nor does it stay with others that have the device's context.
func TestMemoryOfOneThatLeaves(t *testing.T) {
	b := needFake(t)
	stays := must(b.open(bg, 0))
	live := liveObjects()
	leaves := must(b.open(bg, 0))
	must(leaves.Alloc(1 << 20))
	check(leaves.Close())
	check(must(stays.(*device).OpenQueue()).Close()) // memory of a pool goes when a stream comes to it
	if now := liveObjects(); now != live {
		t.Errorf("%d objects of the driver are left", now-live)
	}
	check(stays.Close())
}

// E1: all of a device's memory may be had, and no more.
func TestAllMemory(t *testing.T) {
	b := needFake(t)
	withDriver(t, many())
	d := must(b.open(bg, 0))
	if m, err := d.Alloc(1 << 28); err != nil {
		t.Error(err)
	} else {
		m.Release()
	}
	if _, err := d.Alloc(1<<28 + 1); !errors.Is(err, fault.ErrTooLarge) || !strings.Contains(err.Error(), "the device has") {
		t.Errorf("a byte more: %v, want ErrTooLarge", err)
	}
	check(d.Close())
}

// P3: a blob is not to blame where the driver lacks memory for it.
func TestNoMemoryForABlob(t *testing.T) {
	d := must(needFake(t).open(bg, 0)) // an executor would try again
	blob := must(must(d.Compile(bg, add(t))).Blob(bg))
	hook := func(called function) int32 {
		if called == cuModuleLoadData {
			return outOfMemory
		}
		return success
	}
	inject.Store(&hook)
	_, err := d.Load(bg, add(t), blob)
	inject.Store(nil)
	if !errors.Is(err, fault.ErrTooLarge) || errors.Is(err, fault.ErrRefused) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
	check(d.Close())
}

// E1: a stream whose end cannot be waited for loses the device, also where the driver refuses the context.
func TestStreamWithoutAnEnd(t *testing.T) {
	b := needFake(t)
	for _, f := range []function{cuCtxPushCurrent, cuStreamSynchronize} {
		d := must(b.open(bg, 0)).(*device)
		q := must(d.OpenQueue()).(*queue)
		hook := func(called function) int32 {
			if called == f {
				return 12345
			}
			return success
		}
		inject.Store(&hook)
		err := q.Finish(bg)
		inject.Store(nil)
		if !errors.Is(err, fault.ErrDeviceLost) || !d.primary.isLost() {
			t.Errorf("%s fails: %v, the device is lost: %v", f, err, d.primary.isLost())
		}
		check(q.Close())
		check(d.Close())
	}
}
