package kernels

import (
	"fmt"
	"math"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Spec is an operation that a kernel computes; package ops says what it is and in
// which order its buffers come. Specs are equal with == if and only if their kernels
// are interchangeable for every launch.
type Spec struct{ ops.Op }

// Of is the kernel of an operation; false for products of matrices, which have none.
func Of(op ops.Op) (Spec, bool) {
	_, ok := operations[op.Kind]
	return Spec{op}, ok
}

// dim is a dimension as the code has it: Validate sees to it that it fits.
func (s Spec) dim(i int) uint32 { return uint32(s.Dims[i]) }

// Access says what a kernel does with a buffer.
type Access uint8

// Read buffers are only read. The Write buffer may be the very buffer of the
// parameter marked InPlace, and must not overlap any other.
const (
	Read Access = iota
	InPlace
	Write
)

// Param is one buffer of a launch: a byte offset into the engine's memory.
type Param struct {
	Name   string
	Access Access
	Bytes  uint64 // that the kernel may touch from the offset on
	Align  uint32 // the offset is a multiple of this; 64 is fastest
}

// MaxBufferBytes is the largest buffer a kernel can address.
const MaxBufferBytes = wasm.MaxPages * wasm.PageBytes

// Validate reports, as ErrInvalid, what is no operation of a kernel, and as
// ErrUnsupported those whose single block is too long for a call that cannot be
// preempted (SPEC E4).
func (s Spec) Validate() error {
	const op = "kernels: spec"
	if err := s.Op.Validate(); err != nil {
		return err
	}
	o, ok := operations[s.Kind]
	if !ok {
		return fault.Invalidf(op, "%s has no kernel", s)
	}
	for _, p := range o.params(s.Dims) {
		if p.Bytes > MaxBufferBytes {
			return fault.Invalidf(op, "%s: buffer %s of %d bytes exceeds %d", s, p.Name, p.Bytes, uint64(MaxBufferBytes))
		}
	}
	if cost := s.BlockCost(); cost > callBudget {
		return &fault.Error{Op: op, Backend: "cpu", Key: s.String(),
			Err: fmt.Errorf("%w: one block would run for about %v without a safe point", fault.ErrUnsupported, cost)}
	}
	return nil
}

// Params lists the buffers in the order a call takes them. s must be valid.
func (s Spec) Params() []Param { return operations[s.Kind].params(s.Dims) }

// Blocks is into how many independent pieces the work is cut. s must be valid.
func (s Spec) Blocks() uint32 { return uint32(operations[s.Kind].blocks(s.Dims)) }

// callBudget is what one call should last at most: with it a machine more than
// twice as slow as the one measured stays under SPEC E4's half millisecond.
const callBudget = 200 * time.Microsecond

// BlockCost estimates how long one block runs on one core. The figures were
// measured on a 3.7 GHz Zen 4 core with operands in its second-level cache. s
// must be valid but for this cost.
func (s Spec) BlockCost() time.Duration {
	o := operations[s.Kind]
	return time.Duration(math.Ceil(o.fixedNs + o.elementNs*float64(o.elements(s.Dims))))
}

// BlocksPerCall is how many blocks one call may run without keeping the world
// from stopping for too long, at least 1. s must be valid.
func (s Spec) BlocksPerCall() uint32 {
	return uint32(max(1, min(int64(s.Blocks()), int64(callBudget/s.BlockCost()))))
}

// ofRows is the spec with another number of rows, and of rows that an add repeats.
func (s Spec) ofRows(rows, period int64) Spec {
	s.Dims[0] = rows
	if s.Kind == ops.Add {
		s.Dims[2] = period
	}
	return s
}

// numbers are what a call is given between its buffers and its blocks.
func (s Spec) numbers() []uint64 {
	if s.Kind == ops.Add {
		return []uint64{uint64(s.Dims[2])}
	}
	return nil
}

// Emit gives the kernel's module: one function "run" that takes the offsets of
// the buffers in the order of Params, the period of an add, then the first block and the one behind
// the last. Only what changes the code is in it, so specs that differ in their
// number of rows alone share a module, and with it the machine code.
func (s Spec) Emit() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	o := operations[s.Kind]
	m := wasm.NewModule()
	m.ImportMemory(memoryModule, memoryName, 1)
	params, numbers := len(o.params(s.Dims)), len(s.numbers())
	f, args := m.Func(entryPoint, params+numbers+2)
	o.emit(s, routine{Func: f, buffer: args[:params], numbers: args[params : params+numbers], block: args[params+numbers], end: args[params+numbers+1]})
	return m.Encode(), nil
}

// code is equal for specs that emit one module: what is not in the code is 0.
func (s Spec) code() Spec {
	return s.ofRows(0, 0)
}

const (
	memoryModule = "kiln"
	memoryName   = "memory"
	entryPoint   = "run"
)
