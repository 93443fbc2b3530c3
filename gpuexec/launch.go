package gpuexec

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// Source is what a program is compiled from. Spec is opaque to the executor: an
// operation of package ops, or text of a language that the backend compiles.
type Source struct {
	Key    string        // canonical; equal keys mean equal programs on one device
	Name   string        // what people read in events, errors and logs; empty = the key
	Spec   any           // what the backend understands
	Params []Param       // what each launch gives, in order
	Linger time.Duration // Config.Linger for this source; 0 = that, negative = not at all
}

// name is what people read of the source.
func (s *Source) name() string { return cmp.Or(s.Name, fault.Printable(s.Key)) }

// ParamKind says what an argument must be.
type ParamKind uint8

// The kinds of parameters.
const (
	ParamBuffer ParamKind = iota + 1
	ParamU32
)

func (k ParamKind) name() string {
	switch k {
	case ParamBuffer:
		return "buffer"
	case ParamU32:
		return "u32"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Param is one parameter of a program.
type Param struct {
	Kind  ParamKind
	Bytes int64 // of a buffer: the least it must have
	Align int   // of a buffer's start, bytes; 0 = the device's
}

// Arg is one argument of a launch, made by BufferArg, PartArg or U32Arg.
type Arg struct {
	kind   ParamKind
	buffer *Buffer
	offset int64
	bytes  int64
	value  uint32
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

// U32Arg passes a number.
func U32Arg(v uint32) Arg { return Arg{kind: ParamU32, value: v} }

// Launch is one kernel run over blocks 0..Grid-1. It is a plain value that belongs to
// its builder.
type Launch struct {
	Kernel *Kernel
	Args   []Arg
	Grid   int
}

// check refuses what the driver must not see (SPEC E3).
func (e *Executor) check(l *Launch) error {
	k := l.Kernel
	switch {
	case k == nil:
		return fault.Invalidf("executor: launch", "no kernel given")
	case k.exec != e:
		return fault.Invalidf("executor: launch", "kernel %s belongs to another executor: compile it on this one", k.name())
	case len(l.Args) != len(k.source.Params):
		return fault.Invalidf("executor: launch", "kernel %s takes %d arguments, got %d", k.name(), len(k.source.Params), len(l.Args))
	case l.Grid < 1:
		return fault.Invalidf("executor: launch", "kernel %s: grid of %d blocks, want at least 1", k.name(), l.Grid)
	case e.limits.MaxGrid > 0 && l.Grid > e.limits.MaxGrid:
		return fault.Invalidf("executor: launch", "kernel %s: grid of %d blocks, the device takes at most %d", k.name(), l.Grid, e.limits.MaxGrid)
	}
	for i := range l.Args {
		if err := e.checkArg(k, i, &l.Args[i]); err != nil {
			return err
		}
	}
	return nil
}

func (e *Executor) checkArg(k *Kernel, i int, a *Arg) error {
	p := &k.source.Params[i]
	if a.kind != p.Kind {
		return fault.Invalidf("executor: launch", "kernel %s: argument %d is a %s, want a %s", k.name(), i, a.kind.name(), p.Kind.name())
	}
	if p.Kind != ParamBuffer {
		return nil
	}
	align := max(int64(p.Align), int64(e.limits.Alignment), 1)
	switch {
	case a.buffer == nil:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d has no buffer", k.name(), i)
	case a.buffer.exec != e:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d belongs to another executor: copy it to this one", k.name(), i)
	case a.offset < 0 || a.bytes < 0 || a.offset > math.MaxInt64-a.bytes || a.offset+a.bytes > a.buffer.bytes:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d reaches from %d over %d bytes, its buffer has %d", k.name(), i, a.offset, a.bytes, a.buffer.bytes)
	case a.bytes < p.Bytes:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d has %d bytes, want at least %d", k.name(), i, a.bytes, p.Bytes)
	case a.offset%align != 0:
		return fault.Invalidf("executor: launch", "kernel %s: argument %d begins at byte %d, want a multiple of %d", k.name(), i, a.offset, align)
	}
	return nil
}
