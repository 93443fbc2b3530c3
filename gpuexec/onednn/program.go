package onednn

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// program is an operation of exact dimensions. It runs in a form for any shape, until the
// primitive of its own shape is there (SPEC E7): a product with the sizes given at
// execution, and Go's loops else. What is not worth building, because the general form
// has run for less than pays, is not built; what Go would take longer for than the library
// takes to build it is built first.
type program struct {
	d     *device
	op    ops.Op
	bytes int64

	general *runner // nil: Go's loops
	exact   atomic.Pointer[runner]
	pays    time.Duration // see there
	spent   atomic.Int64  // on launches in the general form, in ns
	asked   atomic.Bool   // for the exact form
	mu      struct {
		sync.Mutex
		released bool
	}
}

// quick is how many elements Go's loop is through with in the time that the library
// takes for a primitive, about 60 us.
var quick = map[ops.Kind]int64{ops.Softmax: 4 << 10, ops.LayerNorm: 32 << 10, ops.GELU: 3 << 10, ops.Tanh: 3 << 10}

// pays is how long a program runs in its general form before the exact one is worth what it
// costs to build, which is 1 ms for a product, 60 us else: a product with a weight gains
// about a hundredth, and more with few rows, one of two inputs a twentieth, and a quarter if
// the second is transposed, a loop half. So what is built behind a request takes no larger
// part of its time.
var pays = map[ops.Kind]time.Duration{
	ops.MatMul: 100 * time.Millisecond, ops.BatchMatMul: 20 * time.Millisecond,
	ops.Softmax: 120 * time.Microsecond, ops.LayerNorm: 120 * time.Microsecond, ops.GELU: 120 * time.Microsecond, ops.Tanh: 120 * time.Microsecond,
}

// What differs for a product whose second input is transposed: large is how many
// multiplications it has if its exact form gains in the first few launches what it costs,
// and so is built first.
const (
	paysTransposed = 4 * time.Millisecond
	large          = 48 << 20
)

// programBytes is what a program takes apart from primitives.
const programBytes = 1 << 10

func (d *device) program(ctx context.Context, op ops.Op) (_ *program, err error) {
	p := &program{d: d, op: op, bytes: programBytes, pays: pays[op.Kind]}
	p.mu.released = true // until it is whole
	if op.TransposeB {
		p.pays = paysTransposed
	}
	made := false
	defer func() { // the context is user code, and may panic
		if !made {
			p.drop()
		}
	}()
	now := false
	switch most, has := quick[op.Kind]; {
	case has:
		now = op.Elements() > most
	case op.Kind == ops.MatMul || op.Kind == ops.BatchMatMul:
		p.general, err = d.runner(ctx, d.lib.lateSpec(op), p.concrete)
		if now = errors.Is(err, fault.ErrUnsupported) || errors.Is(err, primitive.ErrEnd); err != nil && !now {
			return nil, err
		}
		now = now || p.general.slow() || op.TransposeB && op.Elements()*op.Dims[3] >= large
	default: // gather, add, reorder, slice: copies, which Go's loops do as well
		p.mu.released, made = false, true
		return p, nil
	}
	spec := p.spec()
	p.bytes += d.lib.bytes(&spec) + planBytes // of the exact form, also before it is there
	p.mu.released = false
	if now {
		if err := p.sharpen(ctx); err != nil {
			return nil, err
		}
	}
	made = true
	return p, nil
}

func (p *program) Bytes() int64 { return p.bytes }

// Blob implements gpuexec.Program: there is none (SPEC P17).
func (p *program) Blob(context.Context) ([]byte, error) { return nil, noBlobs("blob") }

func (p *program) Requires() []string { return nil }

func (p *program) Release() {
	p.d.mu.Lock()
	delete(p.d.mu.programs, p)
	p.d.mu.Unlock()
	p.drop()
}

func (p *program) drop() {
	p.mu.Lock()
	p.mu.released = true
	exact := p.exact.Swap(nil)
	p.mu.Unlock()
	exact.release()
	p.general.release()
}

// sharpen builds the exact form, unless the program is gone.
func (p *program) sharpen(ctx context.Context) error {
	p.mu.Lock()
	gone := p.mu.released
	p.mu.Unlock()
	if gone {
		return nil
	}
	f, err := p.d.runner(ctx, p.spec(), nil)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.released || p.exact.Load() != nil { // another has built it meanwhile
		f.release()
		return nil
	}
	p.exact.Store(f)
	return nil
}

// Exact tells whether the exact form is there; it builds it first, if told to wait.
func (p *program) Exact(ctx context.Context, wait bool) bool {
	if wait && p.pays > 0 && p.exact.Load() == nil {
		_ = p.sharpen(ctx) // else the other form serves
	}
	return p.exact.Load() != nil
}

// best is the form to launch; nil = Go's loops.
func (p *program) best() *runner {
	if f := p.exact.Load(); f != nil {
		p.d.exact.Add(1)
		return f
	}
	p.d.general.Add(1)
	return p.general
}

// ran notes how long a launch took, and has the exact form built when that pays.
func (p *program) ran(took time.Duration) {
	if p.pays == 0 || p.exact.Load() != nil { // a copy, which has one form
		return
	}
	if p.spent.Add(int64(took)) >= int64(p.pays) && p.asked.CompareAndSwap(false, true) && !p.d.want(p) {
		p.asked.Store(false)
	}
}

// failed has the exact form asked for again when the program has run on for as long, unless
// the library has none (SPEC F2).
func (p *program) failed(err error) {
	if !errors.Is(err, fault.ErrUnsupported) && !errors.Is(err, primitive.ErrEnd) {
		p.spent.Store(0)
		p.asked.Store(false)
	}
}

// runner is a leased primitive with what its executions take.
type runner struct {
	lib     *Library
	lease   primitive.Lease
	kernel  *kernel
	tensors []primitive.Tensor // of the arguments
	mu      struct {
		sync.Mutex
		idle [][]execArg // memory objects that no execution uses
	}
}

// runner brings a primitive. concrete gives sizes to tensors that lack them.
func (d *device) runner(ctx context.Context, s primitive.Spec, concrete func([]primitive.Tensor)) (*runner, error) {
	lease, _, err := d.engine.Primitive(ctx, &s, "")
	if err != nil {
		return nil, err
	}
	k := lease.Primitive().Native().(*kernel)
	f := &runner{lib: d.lib, lease: lease, kernel: k}
	for _, a := range k.plan.args {
		f.tensors = append(f.tensors, a.tensor)
	}
	if concrete != nil {
		concrete(f.tensors)
	}
	return f, nil
}

// slow is whether the library has only loops for it.
func (f *runner) slow() bool {
	return strings.HasPrefix(f.lease.Primitive().Descriptor().Name(), "ref")
}

// take gives memory objects for one execution.
func (f *runner) take() ([]execArg, error) {
	f.mu.Lock()
	if n := len(f.mu.idle); n > 0 {
		b := f.mu.idle[n-1]
		f.mu.idle = f.mu.idle[:n-1]
		f.mu.Unlock()
		return b, nil
	}
	f.mu.Unlock()
	return f.bind(f.tensors)
}

func (f *runner) give(b []execArg) {
	f.mu.Lock()
	f.mu.idle = append(f.mu.idle, b)
	f.mu.Unlock()
}

// bind makes memory objects, without memory.
func (f *runner) bind(tensors []primitive.Tensor) (b []execArg, err error) {
	for i := range tensors {
		md, err := f.lib.newDesc(&tensors[i])
		if err != nil {
			f.unbind(b)
			return nil, err
		}
		h, err := f.lib.make("dnnl_memory_create", func(h *handle) int32 { return f.lib.c.MemoryMake(h, md, f.lib.engine, nil) })
		if f.lib.dropDesc(md); err != nil {
			f.unbind(b)
			return nil, err
		}
		b = append(b, execArg{arg: f.kernel.plan.args[i].id, memory: h})
	}
	return b, nil
}

func (f *runner) unbind(b []execArg) {
	for _, a := range b {
		f.lib.free(f.lib.c.MemoryFree, a.memory)
	}
}

// release is called when no execution uses the form.
func (f *runner) release() {
	if f == nil {
		return
	}
	for _, b := range f.mu.idle {
		f.unbind(b)
	}
	f.mu.idle = nil
	f.lease.End()
}

// run runs a program's one block.
func (q *queue) run(ctx context.Context, p *program, args []gpuexec.DeviceArg) error {
	d := p.op.Dims
	switch p.op.Kind {
	case ops.Gather:
		return gather(view(args[0]), view(args[1]), view(args[2]), d)
	case ops.Add:
		add(floats(view(args[0])), floats(view(args[1])), floats(view(args[2])), d)
	case ops.Reorder:
		reorder(view(args[0]), view(args[1]), d)
	case ops.Slice:
		slice(view(args[0]), view(args[1]), d)
	case ops.MatMul:
		return q.matmul(p, args)
	case ops.BatchMatMul:
		return q.batchMatMul(ctx, p, args)
	case ops.Softmax:
		return q.softmax(p, args)
	case ops.LayerNorm:
		if f := p.best(); f != nil {
			return q.execute(f, pointer(args[0]), pointer(args[3]), pointer(args[1]), pointer(args[2]))
		}
		layerNorm(floats(view(args[0])), floats(view(args[1])), floats(view(args[2])), floats(view(args[3])), p.op)
	case ops.GELU, ops.Tanh:
		if f := p.best(); f != nil {
			return q.execute(f, pointer(args[0]), pointer(args[1]))
		}
		eltwise(floats(view(args[0])), floats(view(args[1])), p.op)
	default:
		return fault.Invalidf("onednn: launch", "%s", p.op)
	}
	return nil
}

func (q *queue) matmul(p *program, args []gpuexec.DeviceArg) error {
	at := make([]unsafe.Pointer, 0, 4)
	for _, a := range args {
		at = append(at, pointer(a))
	}
	return q.execute(p.best(), at...)
}

// valid gives the valid positions of an item.
func valid(lengths []byte, item, all int64) int64 {
	n := int64(int32(binary.LittleEndian.Uint32(lengths[4*item:])))
	if n < 0 || n > all {
		return all
	}
	return n
}

func full(lengths []byte, items, all int64) bool {
	for i := range items {
		if valid(lengths, i, all) < all {
			return false
		}
	}
	return true
}

// batchMatMul multiplies all items at once, but where their lengths bound what they sum
// over: then each by itself, with its own depth.
func (q *queue) batchMatMul(ctx context.Context, p *program, args []gpuexec.DeviceArg) error {
	d, lengths := p.op.Dims, view(args[2])
	src, weights, dst := pointer(args[0]), pointer(args[1]), pointer(args[3])
	scale := unsafe.Pointer(&p.op.Scale) // the form for any size may take it
	if !p.op.MaskK || full(lengths, d[0], d[3]) {
		return q.execute(p.best(), src, weights, dst, scale)
	}
	f := p.general
	if f == nil {
		return failure("launch", fault.ErrUnsupported, "%s: this library has no product for sequences of several lengths", p.op)
	}
	p.d.general.Add(1)
	each := [3]int64{d[1] * d[2] * d[3], d[1] * d[3] * d[4], d[1] * d[2] * d[4]}
	for item := range d[0] {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := valid(lengths, item, d[3])
		if n == 0 {
			zero(floats(view(args[3]))[item*each[2] : (item+1)*each[2]])
			continue
		}
		tensors := batchTensors(p.op, d[1], n)
		b, err := f.bind(append(tensors[:], f.tensors[len(tensors):]...))
		if err != nil {
			return err
		}
		err = q.launch(f, b, unsafe.Add(src, 4*item*each[0]), unsafe.Add(weights, 4*item*each[1]), unsafe.Add(dst, 4*item*each[2]), scale)
		if f.unbind(b); err != nil {
			return err
		}
	}
	return nil
}

// softmax: padding becomes -Inf, and so 0.
func (q *queue) softmax(p *program, args []gpuexec.DeviceArg) error {
	d, lengths := p.op.Dims, view(args[1])
	x, out := floats(view(args[0])), floats(view(args[2]))
	f := p.best()
	if f == nil {
		softmax(x, lengths, out, d)
		return nil
	}
	if full(lengths, d[0], d[3]) {
		return q.execute(f, pointer(args[0]), pointer(args[2]))
	}
	mask(x, lengths, out, d)
	defer unmask(lengths, out, d)
	return q.execute(f, pointer(args[2]), pointer(args[2]))
}
