package capi

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// open gives a value a handle.
func open(t *testing.T, parent uint64, value any) uint64 {
	t.Helper()
	h, err := put(parent, value)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// G12: a handle takes along all that came from it, and nothing else; it leaves nothing behind.
func TestFreedHandleTakesItsOwnAlong(t *testing.T) {
	type root struct{ _ int }
	before := len(table.of)
	one, other := open(t, 0, &root{}), open(t, 0, &root{})
	d, spared := &device{}, &device{}
	first, second := open(t, one, d), open(t, other, spared)
	k, kept := &kernel{on: d}, &kernel{on: spared}
	below, beside := open(t, first, k), open(t, second, kept)
	_, freed, err := take[root](one)
	if err != nil || len(freed) != 2 {
		t.Fatalf("%v were freed (%v), want a device and a kernel", freed, err)
	}
	for _, h := range []uint64{one, first, below} {
		if _, err := find[kernel](h); !errors.Is(err, fault.ErrClosed) {
			t.Errorf("handle %d: %v", h, err)
		}
	}
	if _, err := find[kernel](beside); err != nil {
		t.Errorf("a kernel of another runtime: %v", err)
	}
	if err := DestroyKernel(beside); err != nil || !kept.mu.freed || len(table.of[second].children) != 0 {
		t.Errorf("%v: freed %t, and the device has %d kernels", err, kept.mu.freed, len(table.of[second].children))
	}
	if _, _, err := take[root](other); err != nil || len(table.of) != before {
		t.Errorf("%v: %d handles are left, want %d", err, len(table.of), before)
	}
}

// B4: what a handle's end costs does not depend on how many others there are.
func TestFreeingLooksAtNoOtherHandle(t *testing.T) {
	const some, many = 300, 60000
	h := open(t, 0, &device{})
	free := func() time.Duration {
		best := time.Duration(1 << 62)
		for range 5 {
			var kernels [some]uint64
			for i := range kernels {
				kernels[i] = open(t, h, &kernel{})
			}
			began := time.Now()
			for _, k := range kernels {
				if err := DestroyKernel(k); err != nil {
					t.Fatal(err)
				}
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	alone := free()
	for range many {
		open(t, h, &kernel{})
	}
	if crowded := free(); crowded > 20*alone {
		t.Errorf("%d kernels are freed in %v, beside %d others in %v", some, alone, many, crowded)
	}
	if err := CloseDevice(h); err != nil {
		t.Fatal(err)
	}
}

// F4: a timeout that is negative never ends, one of 0 has ended, and the longest is centuries away.
func TestDeadline(t *testing.T) {
	for _, ms := range []int64{-1, math.MinInt64} {
		ctx, stop := deadline(ms)
		if _, ends := ctx.Deadline(); ends {
			t.Errorf("%d ms end", ms)
		}
		stop()
	}
	for ms, want := range map[int64]error{0: context.DeadlineExceeded, math.MaxInt64: nil, math.MaxInt64 / 1000: nil} {
		ctx, stop := deadline(ms)
		if end, _ := ctx.Deadline(); ctx.Err() != want || want == nil && time.Until(end) < 100*365*24*time.Hour {
			t.Errorf("%d ms: %v, it ends at %v", ms, ctx.Err(), end)
		}
		stop()
	}
}
