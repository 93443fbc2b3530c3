package kiln_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// G13, R3: a caller that waited for another's computation gets ErrInvalid, not a zero
// value, where what was made is of another type.
func TestWaitedForAnotherType(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		g := group(t, session(t, open(t, kiln.Config{})), 1)
		defer g.Close()
		goOn := make(chan struct{})
		first, joined := make(chan int, 1), make(chan error, 1)
		go func() {
			first <- must(kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
				<-goOn
				return kiln.Made[int]{Value: 7}, nil
			}}))
		}()
		synctest.Wait()
		go func() { joined <- second(kiln.Get(ctx, g, "n", of("k", "seven"))) }()
		synctest.Wait() // it waits for the first
		close(goOn)
		if v := <-first; v != 7 {
			t.Errorf("its maker got %d", v)
		}
		if err := <-joined; !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("who joined got %v", err)
		}
	})
}

// C5, C12: an artefact that is refused for its type is not held for who asked.
func TestRefusedArtefactIsLetGo(t *testing.T) {
	var freed atomic.Int32
	r := open(t, kiln.Config{})
	s := session(t, r)
	g, h := group(t, s, 1), group(t, s, 2)
	must(kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
		return kiln.Made[int]{Value: 7, Free: func() { freed.Add(1) }}, nil
	}}))
	if _, err := kiln.Get(ctx, h, "m", of("k", "seven")); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	g.Close()
	h.Close()
	if err := s.ResetAll(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.Artefacts().SetCapacity(kiln.LimitOf(0), kiln.Limit{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return freed.Load() == 1 })
}

// K6, G12: an artefact made for a group that was closed meanwhile is freed.
func TestUnhashableForAClosedGroup(t *testing.T) {
	var freed atomic.Int32
	g := group(t, session(t, open(t, kiln.Config{})), 1)
	_, err := kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Unhashable: "include", Make: func(context.Context) (kiln.Made[int], error) {
		g.Close()
		return kiln.Made[int]{Value: 7, Free: func() { freed.Add(1) }}, nil
	}})
	if !errors.Is(err, kiln.ErrClosed) {
		t.Errorf("got %v", err)
	}
	eventually(t, func() bool { return freed.Load() == 1 })
}

// P1: StoreBytes wins over the capacity in Config.Store.
func TestStoreBytesWin(t *testing.T) {
	r := open(t, kiln.Config{StoreDir: t.TempDir() + "/store", StoreBytes: kiln.LimitOf(4 << 20), Store: blobstore.Config{Capacity: kiln.LimitOf(0)}})
	if r.Store() == nil {
		t.Error("no store: want one of 4 MiB")
	}
}

// C1: a kernel counts its bytes to the capacity of the artefacts.
func TestKernelBytesCount(t *testing.T) {
	r := open(t, kiln.Config{})
	e := executor(t, r, newCounted())
	g := group(t, session(t, r), 1)
	defer g.Close()
	k, err := g.Kernel(ctx, "n", e, source("matmul"))
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Artefacts().Bytes(); n != k.Bytes() || n == 0 {
		t.Errorf("%d bytes are counted, the kernel has %d", n, k.Bytes())
	}
}

// K7: a stored artefact needs the instruction sets that its maker named, not all of
// the machine that made it.
func TestStoredForWhatItRequires(t *testing.T) {
	dir := t.TempDir() + "/store"
	var made, loaded int
	for _, isa := range [][]string{{"avx2", "avx512f"}, {"avx2"}} {
		r := open(t, kiln.Config{StoreDir: dir, Store: blobstore.Config{Identity: func(string) gpuexec.Identity {
			return gpuexec.Identity{Library: "1", Build: "b", ISA: isa}
		}}})
		g := group(t, session(t, r), 1)
		must(kiln.Get(ctx, g, "n", kiln.Recipe[int]{
			Key: "k", Backend: "test",
			Make: func(context.Context) (kiln.Made[int], error) {
				made++
				return kiln.Made[int]{Value: 7, Requires: []string{"avx2"}, Blob: func(context.Context) ([]byte, error) { return []byte("7"), nil }}, nil
			},
			Load: func(context.Context, []byte) (kiln.Made[int], error) {
				loaded++
				return kiln.Made[int]{Value: 7}, nil
			},
		}))
		g.Close()
		if err := r.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if made != 1 || loaded != 1 {
		t.Errorf("made %d times, loaded %d times; want once each", made, loaded)
	}
}

// K6, P17, R1: what its key does not cover is refused for that, also where the store
// could not have kept it.
func TestKeyRefusedWithoutAnIdentity(t *testing.T) {
	var told []kiln.Event
	r := open(t, kiln.Config{
		StoreDir: t.TempDir() + "/store", Listen: func(e kiln.Event) { told = append(told, e) },
		Store: blobstore.Config{Identity: func(string) gpuexec.Identity { return gpuexec.Identity{} }},
	})
	g := group(t, session(t, r), 1)
	defer g.Close()
	must(kiln.Get(ctx, g, "n", kiln.Recipe[int]{
		Key: "k", Backend: "test", Unhashable: "include",
		Make: func(context.Context) (kiln.Made[int], error) { return kiln.Made[int]{Value: 7}, nil },
		Load: func(context.Context, []byte) (kiln.Made[int], error) { return kiln.Made[int]{Value: 7}, nil },
	}))
	if e := told[0]; e.Reason != fault.KeyRefused || e.Field != "include" {
		t.Errorf("told %+v", e)
	}
}
