package kiln_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// Runtime.Close: "Called by a Free ... that it waits for, ... it answers ErrCycle at once". The
// Free of a kernel runs on the creator's goroutine, where the creator fails.
func TestX12CloseInTheFreeOfAKernel(t *testing.T) {
	r := x12Runtime(t, kiln.Config{})
	_, g := x12Group(t, r, "s", 1)
	closed := make(chan error, 1)
	go kiln.Get(context.Background(), g, "n", kiln.Recipe[int]{Key: "k", Make: func(ctx context.Context) (kiln.Made[int], error) {
		_, err := r.Artefacts().Kernel(ctx, artefacts.Request{Key: "kernel", Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Value: 1, Free: func() { closed <- r.Close(context.Background()) }}, nil
		}})
		if err != nil {
			t.Error(err)
		}
		if err := r.Artefacts().SetCapacity(kiln.LimitOf(0), kiln.Limit{}); err != nil { // the layer lets go of the kernel
			t.Error(err)
		}
		return kiln.Made[int]{}, errors.New("fails")
	}})
	select {
	case err := <-closed:
		if !errors.Is(err, kiln.ErrCycle) {
			t.Errorf("Close in a Free answered %v, want ErrCycle", err)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("Close in the Free of a kernel has not answered in 10 s: want ErrCycle at once")
	}
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if err := r.Close(ctx); err != nil {
		t.Errorf("the runtime never closes: %v", err)
	}
}

// A Free of what Load gave, and no artefact could have.
func TestX12CloseInTheFreeOfAnUnfitLoad(t *testing.T) {
	dir := t.TempDir()
	recipe := func(bytes int64, free func()) kiln.Recipe[int] {
		return kiln.Recipe[int]{Key: "k",
			Make: func(ctx context.Context) (kiln.Made[int], error) {
				return kiln.Made[int]{Value: 1, Blob: func(context.Context) ([]byte, error) { return []byte("x"), nil }}, nil
			},
			Load: func(context.Context, []byte) (kiln.Made[int], error) {
				return kiln.Made[int]{Value: 1, Bytes: bytes, Free: free, Blob: func(context.Context) ([]byte, error) { return []byte("x"), nil }}, nil
			}}
	}
	r := x12Runtime(t, kiln.Config{StoreDir: dir})
	_, g := x12Group(t, r, "s", 1)
	if _, err := kiln.Get(context.Background(), g, "n", recipe(0, nil)); err != nil {
		t.Fatal(err)
	}
	g.Close()
	r.Close(context.Background())
	r = x12Runtime(t, kiln.Config{StoreDir: dir})
	_, g = x12Group(t, r, "s", 1)
	closed := make(chan error, 1)
	go kiln.Get(context.Background(), g, "n", recipe(-1, func() { closed <- r.Close(context.Background()) }))
	select {
	case err := <-closed:
		if !errors.Is(err, kiln.ErrCycle) {
			t.Errorf("Close in a Free answered %v, want ErrCycle", err)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("Close in the Free of what Load gave has not answered in 10 s: want ErrCycle at once")
	}
}

// Settle in a Blob waits for itself, and Close for it.
func TestX12SettleInABlob(t *testing.T) {
	r := x12Runtime(t, kiln.Config{StoreDir: t.TempDir()})
	_, g := x12Group(t, r, "s", 1)
	settled := make(chan error, 1)
	if _, err := kiln.Get(context.Background(), g, "n", kiln.Recipe[int]{Key: "k",
		Make: func(ctx context.Context) (kiln.Made[int], error) {
			return kiln.Made[int]{Value: 1, Blob: func(context.Context) ([]byte, error) {
				settled <- r.Artefacts().Settle(context.Background())
				return []byte("x"), nil
			}}, nil
		},
		Load: func(context.Context, []byte) (kiln.Made[int], error) { return kiln.Made[int]{}, nil }}); err != nil {
		t.Fatal(err)
	}
	g.Close()
	ctx, stop := context.WithTimeout(context.Background(), 8*time.Second)
	defer stop()
	if err := r.Close(ctx); err != nil {
		t.Errorf("the runtime never closes: %v", err)
	}
	select {
	case err := <-settled:
		t.Log(err)
	default:
		t.Error("Settle in a Blob never answers")
	}
}
