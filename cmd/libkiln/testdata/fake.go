//go:build cgo && linux

package main

import "C" // so that this init runs after that of main.go

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/kiln-cache/kiln/cmd/libkiln/internal/capi"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// The tests' library has one more backend, "fake". What the kernel is called says what
// becomes of its compile.
func init() {
	capi.Languages["fake"] = []string{"fake"}
	b := &fakeBackend{Backend: new(fakedevice.Backend), stays: make(chan struct{}), gate: make(chan struct{})}
	b.OnCompile, b.OnBlob = b.compile, b.blob
	gpuexec.Register(b)
}

type fakeBackend struct {
	*fakedevice.Backend
	compiles atomic.Int64
	waited   atomic.Bool   // "waits" was compiled
	stays    chan struct{} // closed when "stays" is being compiled
	gate     chan struct{} // closed when its compile, and that of "stays", may end
}

func (b *fakeBackend) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := b.Backend.Open(ctx, index)
	if err != nil {
		return nil, err
	}
	return fakeDevice{d, b}, nil
}

type fakeDevice struct {
	gpuexec.Device
	b *fakeBackend
}

func (d fakeDevice) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	p, err := d.Device.Compile(ctx, src)
	if err == nil && src.Name == "grows" {
		p = grown{p, int(d.b.compiles.Add(1))}
	}
	return p, err
}

// grown is a program whose blob is longer with each compile.
type grown struct {
	gpuexec.Program
	n int
}

func (g grown) Blob(context.Context) ([]byte, error) { return make([]byte, g.n), nil }

func (b *fakeBackend) compile(ctx context.Context, src gpuexec.Source) error {
	switch src.Name {
	case "panics":
		panic("a bug of the driver")
	case "panics_with_canceled":
		panic(context.Canceled)
	case "exits":
		runtime.Goexit()
	case "waits":
		if b.waited.Swap(true) {
			return errors.New("it is compiled twice")
		}
		<-b.gate
	case "stays": // also when its context ends
		close(b.stays)
		<-b.gate
	case "comes_then":
		<-b.stays
	case "lets_it_go":
		close(b.gate)
	case "heeds_its_end":
		<-ctx.Done()
		return ctx.Err()
	case "is_lost":
		b.Lose()
		return fault.ErrDeviceLost
	case "is_refused":
		return &fault.Error{Op: "fake", Reason: fault.DriverRefused, Field: strings.Repeat("f", 1000), Err: fault.ErrRefused}
	case "says_much":
		return errors.New("first\x00second \xff" + strings.Repeat("é", 1<<20))
	case "finds_no_memory":
		return fmt.Errorf("%w: of the device", fault.ErrOverloaded)
	}
	return nil
}

func (b *fakeBackend) blob(key string) error {
	if strings.Contains(key, " panics_later ") {
		panic("a bug of the driver")
	}
	return nil
}
