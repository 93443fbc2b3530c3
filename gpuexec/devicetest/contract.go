package devicetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

var background = context.Background()

// Contract is what every backend must pass, whatever it computes. It needs two
// or more sources of different programs that the backend compiles; Operations
// tests what they compute. If the backend has a method Objects() int64, which a
// file of its tests may give it, that counts the objects of its driver that were made and not
// destroyed: each part must leave as many as it found. The caller's TestMain should look for goroutines that
// are left.
func Contract(t *testing.T, backend gpuexec.Backend, sources ...gpuexec.Source) {
	if len(sources) < 2 {
		t.Fatalf("%d sources, want two different ones", len(sources))
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T, gpuexec.Backend, []gpuexec.Source)
	}{
		{"devices", devices}, {"memory", memory}, {"copies", copies}, {"arguments", arguments},
		{"blobs", blobs}, {"damaged blobs", damagedBlobs}, {"sources", refusedSources},
		{"workers", workers}, {"runs", runs}, {"closing", closing}, {"neighbours", neighbours}, {"runtimes", runtimes},
		{"sequences", sequences}, {"order", order}, {"failures", failures}, {"crowd", crowd}, {"ends", ends},
	} {
		before := objects(backend)
		t.Run(part.name, func(t *testing.T) { part.run(t, backend, sources) }) // and its cleanups
		if n := objects(backend) - before; n != 0 {
			t.Errorf("%s: %d objects of the driver were left", part.name, n)
		}
	}
}

func objects(b gpuexec.Backend) int64 {
	if c, ok := b.(interface{ Objects() int64 }); ok {
		return c.Objects()
	}
	return 0
}

// openDevice gives an executor that the test closes.
func openDevice(t testing.TB, backend gpuexec.Backend, workers int) *gpuexec.Executor {
	t.Helper()
	e, err := gpuexec.Open(background, gpuexec.Config{Backend: backend, Workers: workers})
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

func allocate(t testing.TB, e *gpuexec.Executor, n int64) *gpuexec.Buffer {
	t.Helper()
	b, err := e.Alloc(background, n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func build(t testing.TB, e *gpuexec.Executor, src gpuexec.Source) *gpuexec.Kernel {
	t.Helper()
	k, err := e.Compile(background, src)
	if err != nil {
		t.Fatalf("compile %s: %v", src.Key, err)
	}
	return k
}

// devices: what is listed can be opened, what is not is ErrNotFound.
func devices(t *testing.T, backend gpuexec.Backend, _ []gpuexec.Source) {
	list := backend.Devices(background)
	if len(list) == 0 {
		t.Fatal("no device is listed, not even as unavailable")
	}
	for _, d := range list {
		if d.Backend != backend.Name() {
			t.Errorf("a device of backend %q, want %q", d.Backend, backend.Name())
		}
		if !d.Available {
			if d.Reason == "" {
				t.Errorf("%s is not available for no reason", d.Name)
			}
			continue
		}
		e, err := gpuexec.Open(background, gpuexec.Config{Backend: backend, Index: d.Index, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		if info := e.Info(); info.Name != d.Name || !reflect.DeepEqual(e.Identity(), d.Identity) {
			t.Errorf("opened %+v, listed was %+v", info, d)
		}
		if e.Limits().Alignment < 1 {
			t.Errorf("alignment %d, want at least 1", e.Limits().Alignment)
		}
		if err := e.Close(background); err != nil {
			t.Error(err)
		}
	}
	if _, err := gpuexec.Open(background, gpuexec.Config{Backend: backend, Index: 1 << 20}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("device 1048576: %v, want ErrNotFound", err)
	}
}

// memory comes filled with zeros, also where it was used before.
func memory(t *testing.T, backend gpuexec.Backend, _ []gpuexec.Source) {
	e := openDevice(t, backend, 2)
	for range 3 {
		var held []*gpuexec.Buffer
		for _, n := range []int64{1, 3, 64, 4097, 1 << 20, 3<<20 + 5} {
			b := allocate(t, e, n)
			got := bytes.Repeat([]byte{1}, int(n))
			if err := e.Read(background, b, 0, got); err != nil {
				t.Fatal(err)
			}
			if i := bytes.IndexFunc(got, func(r rune) bool { return r != 0 }); i >= 0 {
				t.Fatalf("byte %d of %d is not zero", i, n)
			}
			if err := e.Write(background, b, 0, bytes.Repeat([]byte{0xA5}, int(n))); err != nil {
				t.Fatal(err)
			}
			held = append(held, b)
		}
		releaseAll(held)
	}
	held := allocate(t, e, 64)
	for _, n := range []int64{1 << 50, math.MaxInt64} { // the latter overflows where it is rounded up
		if _, err := e.Alloc(background, n); err == nil {
			t.Errorf("%d bytes were given", n)
		}
	}
	if err := e.Write(background, held, 0, make([]byte, 64)); err != nil {
		t.Errorf("a refusal took away what was held before: %v", err)
	}
	held.Release()
	allocate(t, e, 64).Release() // and nothing is broken after that
}

// copies go where they should and nowhere else.
func copies(t *testing.T, backend gpuexec.Backend, _ []gpuexec.Source) {
	e := openDevice(t, backend, 1)
	const size = 5000
	b, neighbour := allocate(t, e, size), allocate(t, e, size)
	defer b.Release()
	defer neighbour.Release()
	rnd := rand.New(rand.NewPCG(3, 4))
	want := make([]byte, size)
	for range 50 {
		from := rnd.IntN(size)
		part := want[from : from+rnd.IntN(size-from+1)]
		for i := range part {
			part[i] = byte(rnd.Uint32())
		}
		if err := e.Write(background, b, int64(from), part); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, size)
	if err := e.Read(background, b, 0, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, or other bytes came back", err)
	}
	if mapped := b.Mapped(); mapped != nil && !bytes.Equal(mapped, want) {
		t.Errorf("mapped are %d other bytes", len(mapped))
	}
	if err := e.Read(background, neighbour, 0, got); err != nil || !bytes.Equal(got, make([]byte, size)) {
		t.Errorf("%v, or a write reached the neighbour", err)
	}
}

// launchOf gives whole buffers for a kernel's parameters; release them.
func launchOf(t testing.TB, e *gpuexec.Executor, k *gpuexec.Kernel) (gpuexec.Launch, []*gpuexec.Buffer) {
	t.Helper()
	l := gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}
	var held []*gpuexec.Buffer
	for _, p := range k.Params() {
		if p.Kind != gpuexec.ParamBuffer {
			l.Args = append(l.Args, zero(p))
			continue
		}
		b := allocate(t, e, max(p.Bytes, 1)+256)
		held = append(held, b)
		l.Args = append(l.Args, gpuexec.PartArg(b, 0, max(p.Bytes, 1)))
	}
	return l, held
}

// zero is an argument of nothing but zeros.
func zero(p gpuexec.Param) gpuexec.Arg {
	switch p.Kind {
	case gpuexec.ParamStruct:
		return gpuexec.StructArg(make([]byte, p.Bytes))
	case gpuexec.ParamLocal:
		return gpuexec.LocalArg(max(p.Bytes, 1))
	case gpuexec.ParamI8:
		return gpuexec.ValueArg(int8(0))
	case gpuexec.ParamU8:
		return gpuexec.ValueArg(uint8(0))
	case gpuexec.ParamI16:
		return gpuexec.ValueArg(int16(0))
	case gpuexec.ParamU16:
		return gpuexec.ValueArg(uint16(0))
	case gpuexec.ParamI32:
		return gpuexec.ValueArg(int32(0))
	case gpuexec.ParamF32:
		return gpuexec.ValueArg(float32(0))
	case gpuexec.ParamI64:
		return gpuexec.ValueArg(int64(0))
	case gpuexec.ParamU64:
		return gpuexec.ValueArg(uint64(0))
	case gpuexec.ParamF64:
		return gpuexec.ValueArg(float64(0))
	}
	return gpuexec.ValueArg(uint32(0))
}

func releaseAll(held []*gpuexec.Buffer) {
	for _, b := range held {
		b.Release()
	}
}

// arguments: E3 holds for this device's limits.
func arguments(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	e := openDevice(t, backend, 1)
	k := build(t, e, sources[0])
	defer k.Release()
	good, held := launchOf(t, e, k)
	defer releaseAll(held)
	if err := e.Submit(background, good); err != nil {
		t.Fatal(err)
	}
	before := e.Stats().Launches
	bad := map[string]func(*gpuexec.Launch){
		"no blocks":       func(l *gpuexec.Launch) { l.Grid = gpuexec.Size{} },
		"an argument few": func(l *gpuexec.Launch) { l.Args = l.Args[1:] },
		"no items":        func(l *gpuexec.Launch) { l.Block = gpuexec.Size{0, 1} },
		"a number":        func(l *gpuexec.Launch) { l.Args[0] = gpuexec.ValueArg(uint32(1)) },
		"too small":       func(l *gpuexec.Launch) { l.Args[0] = gpuexec.PartArg(held[0], 0, k.Params()[0].Bytes-1) },
	}
	if a := int64(e.Limits().Alignment); a > 1 {
		bad["unaligned"] = func(l *gpuexec.Launch) { l.Args[0] = gpuexec.PartArg(held[0], 1, k.Params()[0].Bytes) }
	}
	limits := e.Limits()
	for i := range 3 {
		if most := limits.MaxGrid[i]; most > 0 {
			bad[fmt.Sprint("too many blocks ", i)] = func(l *gpuexec.Launch) { l.Grid[i] = most + 1 }
		}
		if most := limits.MaxBlock[i]; most > 0 {
			bad[fmt.Sprint("too large a block ", i)] = func(l *gpuexec.Launch) { l.Block[0] = 1; l.Block[i] = most + 1 }
		}
	}
	if most := limits.MaxItems; most > 0 {
		bad["too many items"] = func(l *gpuexec.Launch) { l.Block = gpuexec.Size{most, 2} }
	}
	for name, spoil := range bad {
		l := good
		l.Args = append([]gpuexec.Arg(nil), good.Args...)
		spoil(&l)
		if err := e.Submit(background, good, l); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if e.Stats().Launches != before {
		t.Error("a wrong launch, or one beside it, reached the driver")
	}
}

// workers: programs are shared and built by many at once.
func workers(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	e := openDevice(t, backend, 4)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 20 {
				k, err := e.Compile(background, sources[(i+j)%len(sources)])
				if err != nil {
					t.Error(err)
					return
				}
				l, held := launchOf(t, e, k)
				if err := e.Submit(background, l, l); err != nil {
					t.Error(err)
				}
				releaseAll(held)
				k.Release()
			}
		})
	}
	wg.Wait()
}

// runs: launches that nobody waits for run too, be their kernel and buffers released
// meanwhile, and cancelling one that has ended changes nothing.
func runs(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	e := openDevice(t, backend, 2)
	for i := range 10 {
		k := build(t, e, sources[i%len(sources)])
		l, held := launchOf(t, e, k)
		var started []*gpuexec.Run
		for range 8 {
			run, err := e.Start(background, l, l)
			if err != nil {
				t.Fatal(err)
			}
			started = append(started, run)
		}
		releaseAll(held)
		k.Release()
		for _, run := range started {
			if err := run.Wait(background); err != nil {
				t.Error(err)
			}
			run.Cancel()
			if err := run.Wait(background); err != nil {
				t.Errorf("after it was cancelled at its end: %v", err)
			}
		}
	}
	if n := e.Stats().Launches; n != 160 {
		t.Errorf("%d launches, want 160", n)
	}
}

// closing: after Close everything answers ErrClosed, and what was held by then
// can still be released.
func closing(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	for range 3 {
		e, err := gpuexec.Open(background, gpuexec.Config{Backend: backend, Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		k := build(t, e, sources[0])
		l, held := launchOf(t, e, k)
		if err := e.Submit(background, l); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := e.Close(background); err != nil {
				t.Fatal(err)
			}
		}
		_, compiled := e.Compile(background, sources[1])
		_, allocated := e.Alloc(background, 8)
		for what, err := range map[string]error{"submit": e.Submit(background, l), "compile": compiled, "alloc": allocated, "ready": e.Ready(background)} {
			if !errors.Is(err, fault.ErrClosed) {
				t.Errorf("%s after Close: %v", what, err)
			}
		}
		k.Release()
		releaseAll(held)
	}
}
