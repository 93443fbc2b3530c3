package capi

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

func init() {
	gpuexec.Register(&fakedevice.Backend{})
	Languages = map[string][]string{"fake": {"fake"}}
}

// must gives what a call gave, which had to be right.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// B4, F8, G12: sixteen goroutines call every function on one runtime while it, a device or a kernel
// is freed. Each call ends well or with ErrClosed, and the race detector finds nothing.
func TestHammer(t *testing.T) {
	for round := range 30 {
		rt := must(Open(""))
		d := must(OpenDevice(rt, "fake", 0, -1))
		code := func(text string) gpuexec.Code { return gpuexec.Code{Language: "fake", Text: text, Entry: "k"} }
		k := must(CreateKernel(d, code("shared"), nil))
		blob := must(Blob(k, -1))
		calls := []func(n int) error{
			func(int) error { return Settle(rt, -1) },
			func(int) error {
				own, err := OpenDevice(rt, "fake", 0, -1)
				if err == nil {
					err = CloseDevice(own)
				}
				return err
			},
			func(n int) error {
				own, err := CreateKernel(d, code(strconv.Itoa(n)), nil)
				if err == nil {
					_, err = Build(own, -1)
				}
				if err == nil {
					err = DestroyKernel(own)
				}
				return err
			},
			func(int) error { _, err := BlobID(k); return err },
			func(int) error { _, err := Build(k, -1); return err },
			func(int) error { _, err := Blob(k, -1); return err },
			func(int) error { _, err := FromBlob(k, blob, -1); return err },
			func(n int) error { return SetCapacity(rt, 0, uint64(n), -1) },
			func(int) error { _, err := Capacity(rt, 0); return err },
		}
		frees := []func() error{func() error { return Close(rt, -1) }, func() error { return CloseDevice(d) }, func() error { return DestroyKernel(k) }}
		var all sync.WaitGroup
		begin := make(chan struct{})
		for g := range 16 {
			all.Go(func() {
				<-begin
				for i := range 2 * len(calls) {
					if err := calls[(g+i)%len(calls)](100*g + i); err != nil && !errors.Is(err, fault.ErrClosed) {
						t.Errorf("call %d: %v", (g+i)%len(calls), err)
					}
				}
			})
		}
		all.Go(func() {
			<-begin
			if err := frees[round%len(frees)](); err != nil {
				t.Error(err)
			}
		})
		close(begin)
		all.Wait()
		if err := Close(rt, -1); err != nil && !errors.Is(err, fault.ErrClosed) {
			t.Error(err)
		}
		if table.of[rt] != nil || table.of[d] != nil || table.of[k] != nil {
			t.Error("a handle outlives its runtime")
		}
	}
}

// C12: a handle that is freed while its kernel is being made does not keep it: nobody would end
// that lease.
func TestFreedHandleKeepsNothing(t *testing.T) {
	rt := must(Open(""))
	defer func() { must(0, Close(rt, -1)) }()
	handle := must(CreateKernel(must(OpenDevice(rt, "fake", 0, -1)), gpuexec.Code{Language: "fake", Text: "freed", Entry: "k"}, nil))
	k := must(find[kernel](handle))
	lease, _, err := k.built(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer lease.End()
	if k.mu.lease == nil {
		t.Error("it keeps nothing before it is freed")
	}
	must(0, DestroyKernel(handle))
	if k.keep(lease); k.mu.lease != nil {
		t.Error("it keeps what came after it was freed")
	}
}
