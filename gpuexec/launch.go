package gpuexec

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// Source is what a program is compiled from. Code.Source makes one of text, or bytes,
// in a language that the backend compiles. Any other Spec is opaque to the executor: an
// operation of package ops, for instance, which the backend gives the source of.
type Source struct {
	Key    string        // canonical; equal keys mean equal programs on one device
	Name   string        // what people read in events, errors and logs; empty = the key
	Spec   any           // what the backend understands: a Code, or what it says
	Params []Param       // what each launch gives, in order
	Linger time.Duration // Config.Linger for this source; 0 = that, negative = not at all
}

// name is what people read of the source.
func (s *Source) name() string {
	if s.Name != "" {
		return s.Name
	}
	return fault.Printable(s.Key)
}

// ParamKind says what an argument must be.
type ParamKind uint8

// The kinds of parameters.
const (
	ParamBuffer ParamKind = iota + 1
	ParamStruct           // Param.Bytes bytes by value, laid out as the kernel's language has it
	ParamLocal            // local memory that the work items of a block share
	ParamI8
	ParamU8
	ParamI16
	ParamU16
	ParamI32
	ParamU32
	ParamF32
	ParamI64
	ParamU64
	ParamF64

	copyTo // of the argument of a copy
	copyFrom
)

// paramNames has the name of each kind.
var paramNames = [...]string{ParamBuffer: "buffer", ParamStruct: "struct", ParamLocal: "local",
	ParamI8: "i8", ParamU8: "u8", ParamI16: "i16", ParamU16: "u16", ParamI32: "i32", ParamU32: "u32", ParamF32: "f32",
	ParamI64: "i64", ParamU64: "u64", ParamF64: "f64"}

func (k ParamKind) name() string {
	if k > 0 && int(k) < len(paramNames) {
		return paramNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Param is one parameter of a program.
type Param struct {
	Kind  ParamKind
	Bytes int64 // of a buffer and of local memory: the least it must have; of a struct: exactly, at most 64 KiB
	Align int   // of a buffer's start, bytes, a power of two; 0 = the device's
	// Times are the places, from 0, of parameters that are whole numbers. The buffer of a
	// launch has at least Bytes times the product of the launch's values for them: with
	// Bytes of 4, Times of 3 and 1000 as parameter 3, it has at least 4000 bytes.
	Times []int
	Round int64 // the last of Times counts as the next multiple of it; 0 = as it is
	// ReadOnly and WriteOnly are of a buffer; without either it is read and written. On
	// vulkan, launches of one sequence may overlap that share no bytes which one of them
	// writes; ReadOnly is refused there where the module can write. On other backends they
	// change nothing. They are part of the key.
	ReadOnly, WriteOnly bool
}

// The most bytes of a parameter: a struct is copied at each launch, and no machine has
// the memory for a buffer that is larger.
const (
	mostStruct = 64 << 10
	mostBytes  = 1 << 48
)

// checkParams refuses parameters that cannot be.
func checkParams(op, name string, params []Param) error {
	for i, p := range params {
		number := p.Kind > ParamLocal && int(p.Kind) < len(paramNames)
		switch {
		case p.Kind == 0 || int(p.Kind) >= len(paramNames):
			return fault.Invalidf(op, "%s: parameter %d is of %s, which is none", name, i, p.Kind.name())
		case p.Bytes < 0 || p.Kind == ParamStruct && p.Bytes == 0 || number && p.Bytes != 0:
			return fault.Invalidf(op, "%s: parameter %d, a %s, of %d bytes: want the size of a struct, the least of a buffer or of local memory, and 0 of a number", name, i, p.Kind.name(), p.Bytes)
		case p.Bytes > mostBytes || p.Kind == ParamStruct && p.Bytes > mostStruct:
			return fault.Invalidf(op, "%s: parameter %d, a %s, of %d bytes: want at most %d of a struct, %d of others", name, i, p.Kind.name(), p.Bytes, mostStruct, int64(mostBytes))
		case p.Align < 0 || p.Align&(p.Align-1) != 0 || p.Align != 0 && p.Kind != ParamBuffer:
			return fault.Invalidf(op, "%s: parameter %d, a %s, with an alignment of %d: want a power of two, and of a buffer only", name, i, p.Kind.name(), p.Align)
		case (p.ReadOnly || p.WriteOnly) && p.Kind != ParamBuffer, p.ReadOnly && p.WriteOnly:
			return fault.Invalidf(op, "%s: parameter %d, a %s, is only read %v, only written %v: want one of them, of a buffer, or none", name, i, p.Kind.name(), p.ReadOnly, p.WriteOnly)
		case p.Round < 0 || (p.Round != 0 || len(p.Times) > 0) && (p.Kind != ParamBuffer || p.Bytes == 0 || len(p.Times) == 0):
			return fault.Invalidf(op, "%s: parameter %d, a %s of %d bytes, times %v rounded to %d: want the bytes of a buffer, times something", name, i, p.Kind.name(), p.Bytes, p.Times, p.Round)
		}
		for _, at := range p.Times {
			if at < 0 || at >= len(params) || !params[at].Kind.whole() {
				return fault.Invalidf(op, "%s: parameter %d has bytes times parameter %d, which is no whole number", name, i, at)
			}
		}
	}
	return nil
}

// whole reports whether k is of whole numbers.
func (k ParamKind) whole() bool { return k >= ParamI8 && k <= ParamU64 && k != ParamF32 }

func (k ParamKind) signed() bool {
	return k == ParamI8 || k == ParamI16 || k == ParamI32 || k == ParamI64
}

// least is how many bytes a launch with these arguments must give for p. A number below
// 0 is more than any buffer has.
func (p *Param) least(args []Arg) int64 {
	bytes := uint64(p.Bytes)
	for i, at := range p.Times {
		a := &args[at]
		n := a.value
		if n > math.MaxInt64 || a.kind.signed() && n>>(8*a.bytes-1) != 0 {
			return math.MaxInt64
		}
		if i == len(p.Times)-1 && p.Round > 0 {
			n = (n + uint64(p.Round) - 1) / uint64(p.Round) * uint64(p.Round)
		}
		high, low := bits.Mul64(bytes, n)
		if high != 0 || low > math.MaxInt64 {
			return math.MaxInt64
		}
		bytes = low
	}
	return max(p.Bytes, int64(bytes))
}

// Arg is one argument of a launch, made by BufferArg, PartArg, ValueArg, StructArg or
// LocalArg.
type Arg struct {
	kind   ParamKind
	buffer *Buffer
	offset int64
	bytes  int64
	value  uint64
	data   []byte
}

// BufferArg passes a whole buffer.
func BufferArg(b *Buffer) Arg {
	if b == nil {
		return Arg{kind: ParamBuffer}
	}
	return Arg{kind: ParamBuffer, buffer: b, bytes: b.bytes}
}

// PartArg passes n bytes of a buffer from an offset on, in bytes.
func PartArg(b *Buffer, offset, n int64) Arg {
	return Arg{kind: ParamBuffer, buffer: b, offset: offset, bytes: n}
}

// Number is a number of 1 to 8 bytes.
type Number interface {
	int8 | uint8 | int16 | uint16 | int32 | uint32 | float32 | int64 | uint64 | float64
}

// ValueArg passes a number; its type says which kind of parameter it fits.
func ValueArg[T Number](v T) Arg {
	switch v := any(v).(type) {
	case int8:
		return Arg{kind: ParamI8, bytes: 1, value: uint64(uint8(v))}
	case uint8:
		return Arg{kind: ParamU8, bytes: 1, value: uint64(v)}
	case int16:
		return Arg{kind: ParamI16, bytes: 2, value: uint64(uint16(v))}
	case uint16:
		return Arg{kind: ParamU16, bytes: 2, value: uint64(v)}
	case int32:
		return Arg{kind: ParamI32, bytes: 4, value: uint64(uint32(v))}
	case uint32:
		return Arg{kind: ParamU32, bytes: 4, value: uint64(v)}
	case float32:
		return Arg{kind: ParamF32, bytes: 4, value: uint64(math.Float32bits(v))}
	case int64:
		return Arg{kind: ParamI64, bytes: 8, value: uint64(v)}
	case uint64:
		return Arg{kind: ParamU64, bytes: 8, value: v}
	case float64:
		return Arg{kind: ParamF64, bytes: 8, value: math.Float64bits(v)}
	}
	return Arg{}
}

// StructArg passes bytes by value.
func StructArg(b []byte) Arg { return Arg{kind: ParamStruct, bytes: int64(len(b)), data: b} }

// LocalArg gives the work items of each block n bytes of local memory to share.
func LocalArg(n int64) Arg { return Arg{kind: ParamLocal, bytes: n} }

// Launch is one kernel run over a grid of blocks, or a copy made by CopyTo or CopyFrom.
// It is a plain value that belongs to its builder.
type Launch struct {
	Kernel *Kernel
	Args   []Arg
	Grid   Size // blocks
	Block  Size // work items of a block; zero = Code.Block, or one item where that is zero, too

	// Wait is for programs that run in a form for any shape until the form for the exact
	// shape is there: with Wait the exact form is built first (SPEC E7). If it cannot be
	// built the other form serves.
	Wait bool
}

// tiered is a Program that runs in a form for any shape until that of its own is there.
type tiered interface {
	// Exact tells whether the latter is there. It builds it first, if told to wait.
	Exact(ctx context.Context, wait bool) bool
}

// CopyTo copies bytes into a buffer from an offset on, in the order of its sequence.
func CopyTo(b *Buffer, offset int64, from []byte) Launch { return copying(copyTo, b, offset, from) }

// CopyFrom copies bytes out of a buffer from an offset on, in the order of its sequence.
// After ErrDeviceLost, ErrClosed or a context's error, into may still be written to.
func CopyFrom(b *Buffer, offset int64, into []byte) Launch {
	return copying(copyFrom, b, offset, into)
}

func copying(kind ParamKind, b *Buffer, offset int64, host []byte) Launch {
	return Launch{Args: []Arg{{kind: kind, buffer: b, offset: offset, bytes: int64(len(host)), data: host}}}
}

func (a *Arg) verb() string {
	if a.kind == copyTo {
		return "write"
	}
	return "read"
}

// checkCopy refuses a copy that reaches beyond its buffer.
func (e *Executor) checkCopy(a *Arg) error {
	switch {
	case a.buffer == nil || a.buffer.exec != e:
		return fault.Invalidf("executor: "+a.verb(), "the buffer is not of this executor")
	case a.offset < 0 || a.bytes > a.buffer.bytes-a.offset:
		return fault.Invalidf("executor: "+a.verb(), "%d bytes at %d, the buffer has %d", a.bytes, a.offset, a.buffer.bytes)
	}
	return nil
}

// whole is a size without zeros.
func whole(s Size) Size { return Size{max(s[0], 1), max(s[1], 1), max(s[2], 1)} }

// block is the size of the launch's blocks.
func (k *Kernel) block(l *Launch) Size {
	if l.Block != (Size{}) {
		return whole(l.Block)
	}
	return k.block0
}

// checkSizes refuses a grid or a block that the device cannot run.
func (e *Executor) checkSizes(k *Kernel, l *Launch) error {
	for i, n := range whole(l.Grid) {
		switch most := e.limits.MaxGrid[i]; {
		case l.Grid[i] < 0 || l.Grid[0] == 0:
			return fault.Invalidf("executor: launch", "kernel %s: grid of %v blocks, want at least 1", k.name(), l.Grid)
		case most > 0 && n > most:
			return fault.Invalidf("executor: launch", "kernel %s: grid of %d blocks in %c, the device takes at most %d", k.name(), n, "xyz"[i], most)
		}
	}
	if slices.Min(l.Block[:]) < 0 || l.Block[0] == 0 && l.Block != (Size{}) {
		return fault.Invalidf("executor: launch", "kernel %s: blocks of %v items, want at least 1", k.name(), l.Block)
	}
	return e.checkBlock("executor: launch", &k.source, k.block(l))
}

// checkBlock refuses blocks that the device cannot run.
func (e *Executor) checkBlock(op string, src *Source, block Size) error {
	items := 1
	for i, n := range block {
		if most := e.limits.MaxBlock[i]; most > 0 && n > most {
			return fault.Invalidf(op, "kernel %s: blocks of %d items in %c, the device takes at most %d", src.name(), n, "xyz"[i], most)
		}
		if n > math.MaxInt32/items {
			return fault.Invalidf(op, "kernel %s: blocks of %v items are too large", src.name(), block)
		}
		items *= n
	}
	if most := e.limits.MaxItems; most > 0 && items > most {
		return fault.Invalidf(op, "kernel %s: blocks of %d items, the device takes at most %d", src.name(), items, most)
	}
	return nil
}

// check refuses what the driver must not see (SPEC E3).
func (e *Executor) check(l *Launch) error {
	k := l.Kernel
	switch {
	case k == nil && len(l.Args) == 1 && l.Args[0].kind >= copyTo:
		return e.checkCopy(&l.Args[0])
	case k == nil:
		return fault.Invalidf("executor: launch", "no kernel given")
	case k.exec != e:
		return fault.Invalidf("executor: launch", "kernel %s belongs to another executor: compile it on this one", k.name())
	case len(l.Args) != len(k.source.Params):
		return fault.Invalidf("executor: launch", "kernel %s takes %d arguments, got %d", k.name(), len(k.source.Params), len(l.Args))
	}
	if err := e.checkSizes(k, l); err != nil {
		return err
	}
	local := int64(0)
	for i := range l.Args {
		a := &l.Args[i]
		if err := e.checkArg(k, i, l.Args); err != nil {
			return err
		}
		if a.kind == ParamLocal {
			local += min(a.bytes, math.MaxInt64-local)
		}
	}
	return e.checkLocal("executor: launch", &k.source, local)
}

// checkLocal refuses more local memory than the device has.
func (e *Executor) checkLocal(op string, src *Source, local int64) error {
	if most := e.limits.MaxLocal; most > 0 && local > most {
		return fault.Invalidf(op, "kernel %s: %d bytes of local memory, the device has %d", src.name(), local, most)
	}
	return nil
}

func (e *Executor) checkArg(k *Kernel, i int, args []Arg) error {
	p, a := &k.source.Params[i], &args[i]
	if a.kind != p.Kind {
		return fault.Invalidf("executor: launch", "kernel %s: argument %d is a %s, want a %s", k.name(), i, a.kind.name(), p.Kind.name())
	}
	switch p.Kind {
	case ParamBuffer:
	case ParamStruct:
		if a.bytes != p.Bytes {
			return fault.Invalidf("executor: launch", "kernel %s: argument %d is a struct of %d bytes, want %d", k.name(), i, a.bytes, p.Bytes)
		}
		return nil
	case ParamLocal:
		if a.bytes < max(p.Bytes, 1) {
			return fault.Invalidf("executor: launch", "kernel %s: argument %d is local memory of %d bytes, want at least %d", k.name(), i, a.bytes, max(p.Bytes, 1))
		}
		return nil
	default:
		return nil
	}
	align, least := max(int64(p.Align), int64(e.limits.Alignment), 1), p.least(args)
	switch {
	case a.buffer == nil:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d has no buffer", k.name(), i)
	case a.buffer.exec != e:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d belongs to another executor: copy it to this one", k.name(), i)
	case a.offset < 0 || a.bytes < 0 || a.offset > math.MaxInt64-a.bytes || a.offset+a.bytes > a.buffer.bytes:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d reaches from %d over %d bytes, its buffer has %d", k.name(), i, a.offset, a.bytes, a.buffer.bytes)
	case a.bytes < least:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d has %d bytes, want at least %d", k.name(), i, a.bytes, least)
	case a.offset%align != 0:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d begins at byte %d, want a multiple of %d", k.name(), i, a.offset, align)
	}
	return nil
}
