package kernels

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
)

// machineCode is one compiled module, shared by all programs that emit it.
type machineCode struct {
	engine *Engine
	digest [sha256.Size]byte // of the module
	of     Spec              // see Spec.code
	users  lease.Cell        // the last goes under the engine's lock

	// Set once, when it is made.
	compiled wazero.CompiledModule
	module   api.Module
	native   []byte // the compiler's file, nil if it has none
	features uint64 // the instruction set bits that native is for

	mu struct {
		sync.Mutex
		idle []*Instance // that were closed
	}
}

// make compiles module, or loads native for it, and instantiates it.
func (c *machineCode) make(module, native []byte) error {
	e, ctx := c.engine, context.Background() // a compile cannot be interrupted
	file := ""
	if e.files != "" {
		file = filepath.Join(e.files, fileName(sha256.Sum256(append(module, 0)), e.isa))
		defer os.Remove(file)
	}
	var placed os.FileInfo
	if native != nil {
		var err error
		if err = os.WriteFile(file, native, 0o600); err == nil {
			placed, err = os.Stat(file)
		}
		if err != nil {
			return ioError(opLoad, err)
		}
	}
	compiled, err := e.runtime.CompileModule(ctx, module)
	if err != nil {
		if native != nil { // the compiler refuses a file it cannot read rather than write it anew
			return refused(fault.DriverRefused, "", "%v", err)
		}
		return &fault.Error{Op: "kernels: compile", Backend: "cpu", Err: because(fault.ErrUnsupported, err)}
	}
	c.compiled = compiled
	if native == nil && file != "" {
		native, err = os.ReadFile(file)
		if err != nil {
			return errors.Join(ioError("kernels: compile", err), c.free())
		}
	} else if native != nil {
		// A file of the compiler's own instead means that it did not use ours.
		if now, err := os.Stat(file); err != nil || !os.SameFile(placed, now) {
			return errors.Join(refused(fault.DriverRefused, "", "the compiler passed over it"), c.free())
		}
	}
	c.native = native
	c.module, err = e.runtime.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		return errors.Join(&fault.Error{Op: "kernels: instantiate", Backend: "cpu", Err: because(fault.ErrUnavailable, err)}, c.free())
	}
	return nil
}

// drop ends one use of the machine code and frees it with the last. The lock is
// held meanwhile: who compiled the same module before it is freed would find it in
// the compiler's memory still, and no file of it.
func (c *machineCode) drop() error {
	e := c.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if !c.users.Drop() {
		return nil
	}
	if e.mu.code[c.digest] == c {
		delete(e.mu.code, c.digest)
	}
	if e.mu.known[c.of] == c {
		delete(e.mu.known, c.of)
	}
	return c.free()
}

// release is drop where nobody can be told of an error.
func (c *machineCode) release() { _ = c.drop() }

// free gives the machine code back. Its pages are unmapped by the garbage
// collector, when no instance can reach them.
func (c *machineCode) free() error {
	ctx := context.Background()
	var errs []error
	if c.module != nil {
		c.engine.closing.Lock()
		errs = append(errs, c.module.Close(ctx))
		c.engine.closing.Unlock()
		c.module = nil
	}
	if c.compiled != nil {
		errs = append(errs, c.compiled.Close(ctx))
		c.compiled = nil
	}
	return errors.Join(errs...)
}

// Program is a compiled kernel. It is safe for concurrent use.
type Program struct {
	spec    Spec
	params  []Param
	numbers []uint64
	blocks  uint32
	code    *machineCode
	closed  *atomic.Bool // with all that OfRows gave
}

func newProgram(spec Spec, code *machineCode) *Program {
	return programOf(spec, code, new(atomic.Bool))
}

func programOf(spec Spec, code *machineCode, closed *atomic.Bool) *Program {
	return &Program{spec, spec.Params(), spec.numbers(), spec.Blocks(), code, closed}
}

// OfRows is the program for another number of rows, and of rows that an add repeats: it is
// the same machine code, and ends with p. They must make a valid ops.Op.
func (p *Program) OfRows(rows, period int64) *Program {
	return programOf(p.spec.ofRows(rows, period), p.code, p.closed)
}

// Spec is what the program computes.
func (p *Program) Spec() Spec { return p.spec }

// Blob is the program as bytes for Engine.Load: its machine code in a frame
// that says what it is and what it needs. ErrUnsupported where the platform has
// no compiler, or the build no Identity.
func (p *Program) Blob() ([]byte, error) {
	id := Identity()
	if p.code.native == nil || id == "" {
		return nil, &fault.Error{Op: "kernels: blob", Backend: "cpu", Key: p.spec.String(), Err: fault.ErrUnsupported}
	}
	return blob{identity: id, spec: p.spec.String(), module: p.code.digest,
		features: p.code.features, code: p.code.native}.encode(), nil
}

// Requires names the instruction sets that the program's code was compiled for,
// as Linux does; nil = not known.
func (p *Program) Requires() []string { return instructionSets(p.code.features) }

// CodeBytes is the size of the machine code, which other programs may share.
func (p *Program) CodeBytes() int { return len(p.code.native) }

// Close ends the program; its machine code goes with the last program that
// shares it. Instances must not run any more. Closing twice is fine.
func (p *Program) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	return p.code.drop()
}

// Instance runs a program: it owns a stack of about 12 KiB. It is owned by one
// goroutine at a time.
type Instance struct {
	program *Program // nil once it is closed
	run     api.Function
	stack   []uint64 // the arguments of a call
}

// NewInstance gives an instance, for one launch or for many: programs of the same code
// use each other's after Close.
func (p *Program) NewInstance() (*Instance, error) {
	if p.closed.Load() {
		return nil, &fault.Error{Op: "kernels: instance", Backend: "cpu", Key: p.spec.String(), Err: fault.ErrClosed}
	}
	c := p.code
	c.mu.Lock()
	var i *Instance
	if n := len(c.mu.idle); n > 0 {
		i, c.mu.idle = c.mu.idle[n-1], c.mu.idle[:n-1]
	}
	c.mu.Unlock()
	if i == nil {
		i = &Instance{run: c.module.ExportedFunction(entryPoint), stack: make([]uint64, len(p.params)+len(p.numbers)+2)}
	}
	i.program = p
	return i, nil
}

// Close returns the instance, which must not be used again.
func (i *Instance) Close() {
	if i.program == nil {
		return
	}
	c := i.program.code
	i.program = nil
	c.mu.Lock()
	c.mu.idle = append(c.mu.idle, i)
	c.mu.Unlock()
}

// Call runs the blocks from begin up to end on the buffers at the given byte
// offsets, which are in the order of Spec.Params. It validates them first (SPEC
// E3) and allocates nothing. The caller keeps end - begin to BlocksPerCall.
func (i *Instance) Call(buffers []uint32, begin, end uint32) error {
	p := i.program
	if p == nil {
		return &fault.Error{Op: opCall, Backend: "cpu", Err: fault.ErrClosed}
	}
	if p.closed.Load() {
		return &fault.Error{Op: opCall, Backend: "cpu", Key: p.spec.String(), Err: fault.ErrClosed}
	}
	if begin > end || end > p.blocks {
		return fault.Invalidf(opCall, "%s: blocks %d to %d are not within 0 to %d", p.spec, begin, end, p.blocks)
	}
	if err := p.Check(buffers); err != nil {
		return err
	}
	for n, b := range buffers {
		i.stack[n] = uint64(b)
	}
	copy(i.stack[len(buffers):], p.numbers)
	blocks := i.stack[len(buffers)+len(p.numbers):]
	blocks[0], blocks[1] = uint64(begin), uint64(end)
	if err := i.run.CallWithStack(context.Background(), i.stack); err != nil {
		return &fault.Error{Op: opCall, Backend: "cpu", Key: p.spec.String(),
			Err: fmt.Errorf("%w: an index is outside of its table: %w", fault.ErrInvalid, err)}
	}
	return nil
}

const opCall = "kernels: call"

// Check validates a launch's buffers: their number, alignment, that they lie in
// memory, and that the result overlaps no operand except in place.
func (p *Program) Check(buffers []uint32) error {
	if len(buffers) != len(p.params) {
		return fault.Invalidf(opCall, "%s takes %d buffers, not %d", p.spec, len(p.params), len(buffers))
	}
	size := uint64(len(p.code.engine.memory.bytes))
	if size == 0 {
		return &fault.Error{Op: opCall, Backend: "cpu", Key: p.spec.String(), Err: fault.ErrClosed}
	}
	result := len(p.params) - 1 // the written buffer is the last
	from := uint64(buffers[result])
	to := from + p.params[result].Bytes
	for n := range p.params {
		q := &p.params[n]
		at := uint64(buffers[n])
		switch {
		case at%uint64(q.Align) != 0:
			return fault.Invalidf(opCall, "%s: buffer %s at %d is not aligned to %d", p.spec, q.Name, at, q.Align)
		case at+q.Bytes > size:
			return fault.Invalidf(opCall, "%s: buffer %s of %d bytes at %d ends behind the memory of %d", p.spec, q.Name, q.Bytes, at, size)
		case n == result || at >= to || at+q.Bytes <= from || q.Access == InPlace && at == from:
		default:
			return fault.Invalidf(opCall, "%s: buffer %s at %d overlaps the result at %d", p.spec, q.Name, at, from)
		}
	}
	return nil
}
