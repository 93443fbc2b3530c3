package cpu

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/gemm"
	"github.com/kiln-cache/kiln/internal/heap"
)

// device is the linear memory with the compiler for it.
type device struct {
	backend *Backend
	engine  *kernels.Engine
	memory  []byte
	heap    *heap.Heap
	crew    crew
	guests  guests
}

func (d *device) Info() gpuexec.DeviceInfo { return d.backend.info() }

func (d *device) Limits() gpuexec.Limits {
	one := gpuexec.Size{1, 1, 1} // an operation's blocks are numbered, and have no items
	return gpuexec.Limits{Alignment: alignment, MaxGrid: gpuexec.Size{0, 1, 1}, MaxBlock: one}
}

// Lost implements gpuexec.Device: a processor does not go away.
func (d *device) Lost() <-chan struct{} { return nil }

func (d *device) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	op, many, err := opOf(src)
	if err != nil {
		return nil, err
	}
	spec, isKernel := d.backend.kernel(op)
	if !isKernel {
		return d.product(op, many), nil
	}
	p, err := d.engine.Compile(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &program{kernel: p, anyRows: many}, nil
}

func (d *device) product(op ops.Op, many bool) *product {
	return &product{op: op, anyRows: many, set: d.backend.set, blob: d.productBlob(op)}
}

func (d *device) Load(ctx context.Context, src gpuexec.Source, blob []byte) (gpuexec.Program, error) {
	op, many, err := opOf(src)
	if err != nil {
		return nil, err
	}
	spec, isKernel := d.backend.kernel(op)
	if !isKernel {
		if want := d.productBlob(op); string(blob) != want {
			return nil, refused(src.Key, fault.DriverRefused, "the blob is of another product or instruction set")
		}
		return d.product(op, many), nil
	}
	p, err := d.engine.Load(ctx, blob)
	if err != nil {
		return nil, err
	}
	if p.Spec() != spec {
		return nil, errors.Join(refused(src.Key, fault.KeyCollision, "the blob is of "+p.Spec().String()), p.Close())
	}
	return &program{kernel: p, anyRows: many}, nil
}

func refused(key string, why fault.Reason, text string) error {
	return &fault.Error{Op: "cpu: load", Key: key, Backend: Name, Reason: why, Err: fmt.Errorf("%w: %s", fault.ErrRefused, text)}
}

// opOf is the operation of a source, and whether it stands for those of any number of rows.
func opOf(src gpuexec.Source) (op ops.Op, many bool, err error) {
	switch spec := src.Spec.(type) {
	case ops.Op:
		op = spec
	case manyRows:
		op, many = spec.op, true
	default:
		return op, false, fault.Invalidf("cpu: compile", "a source of type %T, want an ops.Op", src.Spec)
	}
	return op, many, op.Validate()
}

// productBlob stands for the machine code of a product, which is part of this
// program: it says which one.
func (d *device) productBlob(op ops.Op) string {
	return "kiln cpu product\n" + d.backend.set.Name() + "\n" + op.String() + "\n"
}

// Alloc gives zeroed linear memory; ErrTooLarge if there is none of that size.
func (d *device) Alloc(bytes int64) (gpuexec.Memory, error) {
	offset, used, ok := d.heap.Take(bytes)
	if !ok {
		most, advice := int64(len(d.memory)-alignment), ""
		if bytes <= most {
			advice = " and too few of them free together: release buffers"
		}
		return nil, &fault.Error{Op: "cpu: alloc", Backend: Name, Err: fmt.Errorf(
			"%w: %d bytes, the device has %d in all%s", fault.ErrTooLarge, bytes, most, advice)}
	}
	clear(d.memory[offset : offset+used])
	return &memory{d, offset, bytes}, nil
}

func (d *device) OpenQueue() (gpuexec.Queue, error) { return newQueue(d), nil }

func (d *device) Close() error {
	d.guests.close()
	return d.engine.Close()
}

// memory is a part of the linear memory.
type memory struct {
	d             *device
	offset, bytes int64
}

func (m *memory) Mapped() []byte { return m.d.memory[m.offset : m.offset+m.bytes : m.offset+m.bytes] }

// Release returns the memory; large parts go back to the system.
func (m *memory) Release() {
	const worthIt = 512 << 10 // below it the system call costs more than the pages
	if m.bytes >= worthIt {
		_ = m.d.engine.Discard(uint64(m.offset), uint64(m.bytes)) // it would only stay in use
	}
	m.d.heap.Give(m.offset, m.bytes)
}

// product is an operation in Go assembly: a matrix product, an attention, a gelu.
type product struct {
	op      ops.Op
	anyRows bool // each launch says how many
	set     *gemm.Set
	blob    string
}

func (p *product) Bytes() int64                         { return int64(len(p.blob)) }
func (p *product) Blob(context.Context) ([]byte, error) { return []byte(p.blob), nil }
func (p *product) Requires() []string                   { return p.set.Requires() }
func (p *product) Release()                             {}

// program is a WebAssembly kernel.
type program struct {
	kernel  *kernels.Program
	anyRows bool                               // each launch says how many
	sized   [8]atomic.Pointer[kernels.Program] // kernel for the rows of launches before, by their number
}

// of is the kernel for the rows that a launch's arguments say.
func (p *program) of(args []gpuexec.DeviceArg) (*kernels.Program, error) {
	if !p.anyRows {
		return p.kernel, nil
	}
	op, err := withRows(p.kernel.Spec().Op, args)
	if err != nil {
		return nil, err
	}
	at := &p.sized[op.Dims[0]%int64(len(p.sized))]
	if kernel := at.Load(); kernel != nil && kernel.Spec().Op == op {
		return kernel, nil
	}
	kernel := p.kernel.OfRows(op.Dims[0], op.Dims[2])
	at.Store(kernel)
	return kernel, nil
}

func (p *program) Bytes() int64                         { return int64(p.kernel.CodeBytes()) }
func (p *program) Blob(context.Context) ([]byte, error) { return p.kernel.Blob() }
func (p *program) Requires() []string                   { return p.kernel.Requires() }

func (p *program) Release() {
	_ = p.kernel.Close() // its error is of unmapping, which the collector does
}
