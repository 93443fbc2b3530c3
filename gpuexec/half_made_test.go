package gpuexec_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// halfMade is a backend that fails at what it is asked about memory or a program that
// it has just made.
type halfMade struct {
	*fakedevice.Backend
	at   string
	fail func()
}

func (b halfMade) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := b.Backend.Open(ctx, index)
	return halfMadeDevice{d, b}, err
}

func (b halfMade) call(what string) {
	if what == b.at {
		b.fail()
	}
}

type halfMadeDevice struct {
	gpuexec.Device
	backend halfMade
}

func (d halfMadeDevice) Alloc(n int64) (gpuexec.Memory, error) {
	m, err := d.Device.Alloc(n)
	return halfMadeMemory{m, d.backend}, err
}

func (d halfMadeDevice) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	p, err := d.Device.Compile(ctx, src)
	return halfMadeProgram{p, d.backend}, err
}

type halfMadeMemory struct {
	gpuexec.Memory
	backend halfMade
}

func (m halfMadeMemory) Mapped() []byte { m.backend.call("mapped"); return m.Memory.Mapped() }

type halfMadeProgram struct {
	gpuexec.Program
	backend halfMade
}

func (p halfMadeProgram) Bytes() int64        { p.backend.call("bytes"); return p.Program.Bytes() }
func (p halfMadeProgram) Requires() []string  { p.backend.call("requires"); return p.Program.Requires() }
func (p halfMadeProgram) Block() gpuexec.Size { p.backend.call("block"); return gpuexec.Size{} }

// F3: what a driver made before it panicked or ended its goroutine is released.
func TestWhatADriverHalfMadeIsReleased(t *testing.T) {
	for _, at := range []string{"mapped", "bytes", "requires", "block"} {
		for _, fail := range []func(){func() { panic(at) }, runtime.Goexit} {
			f := &fakedevice.Backend{}
			e, err := gpuexec.Open(bg, gpuexec.Config{Backend: halfMade{f, at, fail}, Workers: 1})
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				b, allocErr := e.Alloc(bg, 8)
				k, compileErr := e.Compile(bg, source("k"))
				if (allocErr == nil) == (at == "mapped") || (compileErr == nil) == (at != "mapped") {
					t.Errorf("%s: Alloc: %v, Compile: %v", at, allocErr, compileErr)
				}
				if b != nil {
					b.Release()
				}
				if k != nil {
					k.Release()
				}
			}
			eventually(t, func() bool { return f.Memories() == 0 && f.Programs() == 0 })
			if err := e.Close(bg); err != nil || f.Misuse() != 0 || f.Leaked() != 0 {
				t.Errorf("%s: %v, %d misuses, %d left open", at, err, f.Misuse(), f.Leaked())
			}
		}
	}
}
