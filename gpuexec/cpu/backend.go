package cpu

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/internal/gemm"
	"github.com/kiln-cache/kiln/internal/heap"
	"github.com/kiln-cache/kiln/internal/processor"
)

// Name is the backend's.
const Name = "cpu"

// alignment of every buffer, in bytes: a cache line and an AVX-512 register.
const alignment = 64

// Backend implements ops.Library on the processor. Safe for concurrent use.
type Backend struct {
	set    *gemm.Set
	halves *gemm.Set       // for weights in bfloat16
	rows   general.Sources // those of rowsLibrary
}

func with(set *gemm.Set) *Backend { return &Backend{set: set, halves: set.Halves()} }

func init() { gpuexec.Register(with(gemm.Best())) }

// New is a backend whose matrix products use one instruction set: "avx512",
// "avx2" or "generic"; "auto" is the best one here. ErrInvalid for another word,
// ErrUnavailable for a set that this processor does not have.
func New(isa string) (*Backend, error) {
	if isa == "auto" {
		return with(gemm.Best()), nil
	}
	var have []string
	for _, s := range gemm.Sets() {
		if s.Name() == isa {
			return with(s), nil
		}
		have = append(have, s.Name())
	}
	switch isa {
	case "avx512", "avx2", "generic":
		return nil, &fault.Error{Op: "cpu: instruction set " + isa, Backend: Name,
			Err: fmt.Errorf("%w: this processor has %s", fault.ErrUnavailable, strings.Join(have, ", "))}
	}
	return nil, fault.Invalidf("cpu: instruction set", "%q, want auto, %s", isa, strings.Join(have, ", "))
}

// Name implements gpuexec.Backend.
func (b *Backend) Name() string { return Name }

// Devices implements gpuexec.Backend: there is one, always.
func (b *Backend) Devices(context.Context) []gpuexec.DeviceInfo {
	return []gpuexec.DeviceInfo{b.info()}
}

func (b *Backend) info() gpuexec.DeviceInfo {
	m := machine()
	return gpuexec.DeviceInfo{
		Backend: Name, Name: m.model, Driver: "wazero, " + b.set.Name(), Available: true,
		MemoryBytes: m.memory, ComputeUnits: runtime.NumCPU(),
		Identity: gpuexec.Identity{
			Library: "kiln", Build: kernels.Identity(), Compiler: runtime.Version(),
			Driver: b.set.Layout(), Device: runtime.GOOS + "/" + runtime.GOARCH, ISA: m.isa,
		},
	}
}

// Open implements gpuexec.Backend.
func (b *Backend) Open(_ context.Context, index int) (gpuexec.Device, error) {
	if index != 0 {
		return nil, &fault.Error{Op: "cpu: open", Backend: Name,
			Err: fmt.Errorf("%w: there is one device, number 0", fault.ErrNotFound)}
	}
	engine, err := kernels.Open(kernels.Config{})
	if err != nil {
		return nil, err
	}
	return &device{backend: b, engine: engine, memory: engine.Memory(), heap: heap.New(int64(len(engine.Memory())), alignment)}, nil
}

// hardware is what the operating system says of this machine.
type hardware struct {
	model  string
	memory int64
	isa    []string
}

var machine = sync.OnceValue(func() hardware {
	model, isa := processor.Read()
	return hardware{model, memoryBytes(), isa}
})
