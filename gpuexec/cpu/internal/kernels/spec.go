package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"
)

// Kind is an operation.
type Kind uint8

// The operations. Rows of [B,S,W] tensors are counted through: B*S rows of W.
const (
	_          Kind = iota
	KindGather      // rows out of a table by index
	KindReorder
	KindSlice
	KindGELU
	KindTanh
	KindSoftmax
	KindLayerNorm
	KindAdd
)

// maxDims is the most dimensions an operation has.
const maxDims = 4

// Spec says what a kernel computes. Specs are equal with == if and only if
// their kernels are interchangeable for every launch. Make one with the
// functions named like the kinds; dimensions that a kind lacks are 0.
type Spec struct {
	Kind    Kind
	Dims    [maxDims]uint32
	Epsilon float32 // of LayerNorm, else 0
}

// Gather copies rows of width floats out of a table of entries rows: ids [rows]
// int32, table [entries, width], out [rows, width].
func Gather(rows, width, entries uint32) Spec {
	return Spec{Kind: KindGather, Dims: [maxDims]uint32{rows, width, entries}}
}

// Reorder swaps the two middle dimensions: in [a, b, c, d], out [a, c, b, d]
// (permutation 0213, splitting heads and merging them).
func Reorder(a, b, c, d uint32) Spec {
	return Spec{Kind: KindReorder, Dims: [maxDims]uint32{a, b, c, d}}
}

// Slice takes the first row of each sequence: in [batch, rows, width], out
// [batch, width].
func Slice(batch, rows, width uint32) Spec {
	return Spec{Kind: KindSlice, Dims: [maxDims]uint32{batch, rows, width}}
}

// GELU is x/2 (1 + erf(x/sqrt 2)): in, out [rows, width].
func GELU(rows, width uint32) Spec {
	return Spec{Kind: KindGELU, Dims: [maxDims]uint32{rows, width}}
}

// Tanh is the hyperbolic tangent: in, out [rows, width].
func Tanh(rows, width uint32) Spec {
	return Spec{Kind: KindTanh, Dims: [maxDims]uint32{rows, width}}
}

// Softmax is over the last dimension: in [batch, heads, queries, keys], lengths
// [batch] int32, out as in. Columns from the item's length on are not read and
// give exactly 0; a length above keys counts as keys. With as many queries as
// keys (self-attention) rows from the length on are padding too and give 0.
func Softmax(batch, heads, queries, keys uint32) Spec {
	return Spec{Kind: KindSoftmax, Dims: [maxDims]uint32{batch, heads, queries, keys}}
}

// LayerNorm normalises each row to mean 0 and variance 1 (biased, plus
// epsilon), then scales and shifts: in [rows, width], gamma, beta [width], out
// [rows, width].
func LayerNorm(rows, width uint32, epsilon float32) Spec {
	return Spec{Kind: KindLayerNorm, Dims: [maxDims]uint32{rows, width}, Epsilon: epsilon}
}

// Add adds b [period, width] to a [rows, width], repeating b: a residual with
// period = rows, position embeddings with period = sequence length, a bias with
// period = 1. period divides rows.
func Add(rows, width, period uint32) Spec {
	return Spec{Kind: KindAdd, Dims: [maxDims]uint32{rows, width, period}}
}

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

// Validate reports, as ErrInvalid, dimensions that are no operation, and as
// ErrUnsupported those whose single block is too long for a call that cannot be
// preempted (SPEC E4).
func (s Spec) Validate() error {
	const op = "kernels: spec"
	if s.Kind == 0 || int(s.Kind) >= len(operations) {
		return fault.Invalidf(op, "unknown kind %d", s.Kind)
	}
	o := operations[s.Kind]
	for i, d := range s.Dims {
		switch {
		case i < len(o.dims) && d == 0:
			return fault.Invalidf(op, "%s needs %s above 0", o.name, o.dims[i])
		case i >= len(o.dims) && d != 0:
			return fault.Invalidf(op, "%s has %d dimensions, not %d", o.name, len(o.dims), i+1)
		}
	}
	switch e := float64(s.Epsilon); {
	case !o.epsilon && math.Float32bits(s.Epsilon) != 0:
		return fault.Invalidf(op, "%s has no epsilon", o.name)
	case o.epsilon && !(e > 0 && e <= 1):
		return fault.Invalidf(op, "%s needs an epsilon above 0 and at most 1, not %v", o.name, e)
	}
	if s.Kind == KindAdd && s.Dims[0]%s.Dims[2] != 0 {
		return fault.Invalidf(op, "add: period %d does not divide %d rows", s.Dims[2], s.Dims[0])
	}
	// Before anything multiplies dimensions in 64 bits.
	product := 1.0
	for _, d := range s.Dims[:len(o.dims)] {
		product *= float64(d)
	}
	if product >= 1<<62 {
		return fault.Invalidf(op, "%s is too large", s)
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

// String is the operation with its dimensions, as in "gelu 128x1536".
func (s Spec) String() string {
	if s.Kind == 0 || int(s.Kind) >= len(operations) {
		return fmt.Sprintf("kind %d", s.Kind)
	}
	o := operations[s.Kind]
	var b strings.Builder
	b.WriteString(o.name)
	for i := range o.dims {
		sep := "x"
		if i == 0 {
			sep = " "
		}
		fmt.Fprintf(&b, "%s%d", sep, s.Dims[i])
	}
	if o.epsilon {
		fmt.Fprintf(&b, " epsilon %g", s.Epsilon)
	}
	return b.String()
}

// Canonical is the spec's encoding for keys (SPEC K1): the length and name of
// the kind, the count and values of its dimensions, the bits of epsilon.
func (s Spec) Canonical() []byte {
	name, dims := "", s.Dims[:]
	if int(s.Kind) < len(operations) {
		name, dims = operations[s.Kind].name, s.Dims[:len(operations[s.Kind].dims)]
	}
	b := append([]byte{byte(len(name))}, name...)
	b = append(b, byte(len(dims)))
	for _, d := range dims {
		b = binary.LittleEndian.AppendUint32(b, d)
	}
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(s.Epsilon))
}

// ParseSpec reads what Canonical wrote. Anything else is ErrInvalid.
func ParseSpec(b []byte) (Spec, error) {
	const op = "kernels: parse spec"
	var s Spec
	if len(b) < 1 || len(b) < 2+int(b[0]) {
		return Spec{}, fault.Invalidf(op, "%d bytes are too short", len(b))
	}
	name, rest := string(b[1:1+b[0]]), b[1+b[0]:]
	for k := range operations {
		if k != 0 && operations[k].name == name {
			s.Kind = Kind(k)
		}
	}
	count := int(rest[0])
	if s.Kind == 0 || count != len(operations[s.Kind].dims) || len(rest) != 1+4*count+4 {
		return Spec{}, fault.Invalidf(op, "no kernel %q with %d dimensions in %d bytes", name, count, len(b))
	}
	for i := range count {
		s.Dims[i] = binary.LittleEndian.Uint32(rest[1+4*i:])
	}
	s.Epsilon = math.Float32frombits(binary.LittleEndian.Uint32(rest[1+4*count:]))
	return s, s.Validate()
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

// Emit gives the kernel's module: one function "run" that takes the offsets of
// the buffers in the order of Params, then the first block and the one behind
// the last. Only what changes the code is in it, so specs that differ in their
// number of rows alone mostly share a module, and with it the machine code.
func (s Spec) Emit() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	o := operations[s.Kind]
	m := wasm.NewModule()
	m.ImportMemory(memoryModule, memoryName, 1)
	params := len(o.params(s.Dims))
	f, args := m.Func(entryPoint, params+2)
	o.emit(s, routine{Func: f, buffer: args[:params], block: args[params], end: args[params+1]})
	return m.Encode(), nil
}

const (
	memoryModule = "kiln"
	memoryName   = "memory"
	entryPoint   = "run"
)
