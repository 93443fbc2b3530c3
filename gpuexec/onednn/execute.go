package onednn

import (
	"context"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/lease"
)

// alignment is that of memory: one line of the processor's cache.
const alignment = 64

// Memory holds a tensor. Its contents are its user's to guard; the rest is safe for
// concurrent use.
type Memory struct {
	lib    *Library
	tensor primitive.Tensor
	data   []byte // in Go's memory, from an aligned place on
	h      handle
	cell   lease.Cell
}

// NewMemory makes memory for a tensor with a layout, as a Descriptor's Tensors have one,
// filled with zeros. It is to be released once.
func (l *Library) NewMemory(t primitive.Tensor) (*Memory, error) {
	if !concrete(&t) {
		return nil, fault.Invalidf("onednn: memory", "the tensor has no layout: want one of a descriptor's, or Dense")
	}
	if err := l.pin("memory"); err != nil {
		return nil, err
	}
	m := &Memory{lib: l, tensor: cloned(t)}
	if err := m.allocate(); err != nil {
		l.cell.Unpin()
		return nil, fault.Wrap("onednn: memory", "", t.Type, err)
	}
	m.cell.Init(func() {
		l.free(l.c.MemoryFree, m.h)
		l.cell.Unpin()
	})
	return m, nil
}

func (m *Memory) allocate() (err error) {
	l := m.lib
	md, err := l.newDesc(&m.tensor)
	if err != nil {
		return err
	}
	defer l.dropDesc(md)
	n := l.c.DescBytes(md)
	if uint64(n) >= most {
		return failure("memory", fault.ErrTooLarge, "%d bytes", n)
	}
	if m.data, err = aligned(int64(n)); err != nil {
		return err
	}
	m.h, err = l.make("dnnl_memory_create", func(h *handle) int32 {
		return l.c.MemoryMake(h, md, l.engine, unsafe.Pointer(unsafe.SliceData(m.data)))
	})
	return err
}

// aligned gives n bytes of Go's memory, at least one. Go does not move it. It would end the
// process where the system has not as much, so of much the system is asked first.
func aligned(n int64) ([]byte, error) {
	const much = 1 << 30
	if n >= much && !available(n) {
		return nil, failure("memory", fault.ErrTooLarge, "%d bytes, which this machine does not have", n)
	}
	raw := make([]byte, max(1, n)+alignment-1)
	skip := -int(uintptr(unsafe.Pointer(&raw[0]))) & (alignment - 1)
	return raw[skip : int64(skip)+n : int64(skip)+n], nil
}

// Tensor is what it holds; to be read only.
func (m *Memory) Tensor() primitive.Tensor { return m.tensor }

// Bytes is the memory, in the tensor's layout. It must not be read while an execution
// writes it, nor written while one uses it.
func (m *Memory) Bytes() []byte { return m.data }

// Of is the memory as numbers of a type.
func Of[T int8 | uint8 | uint16 | int32 | float32](m *Memory) []T {
	var number T
	n := len(m.data) / int(unsafe.Sizeof(number))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(m.data))), n)
}

// Release gives the memory up. An execution under way keeps it until its end.
func (m *Memory) Release() { m.cell.Unpin() }

// Arg is a memory for an argument of an execution.
type Arg struct {
	Slot   Slot
	Memory *Memory
}

// worker is what one execution at a time needs: a stream, and scratch memory as large as
// any that it needed.
type worker struct {
	lib     *Library
	stream  handle
	scratch []byte
	memory  handle // of scratch
	args    []execArg
}

func (l *Library) newWorker() (w *worker, err error) {
	w = &worker{lib: l}
	w.stream, err = l.make("dnnl_stream_create", func(h *handle) int32 { return l.c.StreamMake(h, l.engine, streamInOrder) })
	return w, err
}

func (w *worker) close() {
	w.lib.free(w.lib.c.MemoryFree, w.memory)
	w.lib.free(w.lib.c.StreamFree, w.stream)
}

// grow sees to scratch memory of n bytes.
func (w *worker) grow(n int64) error {
	if int64(len(w.scratch)) >= n {
		return nil
	}
	l := w.lib
	n += n / 2 // so that many sizes in rising order cost few
	md, err := l.newDesc(&primitive.Tensor{Type: "u8", Dims: []int64{n}, Strides: []int64{1}})
	if err != nil {
		return err
	}
	defer l.dropDesc(md)
	scratch, err := aligned(n)
	if err != nil {
		return err
	}
	memory, err := l.make("dnnl_memory_create", func(h *handle) int32 {
		return l.c.MemoryMake(h, md, l.engine, unsafe.Pointer(&scratch[0]))
	})
	if err != nil {
		return err
	}
	l.free(l.c.MemoryFree, w.memory)
	w.scratch, w.memory = scratch, memory
	return nil
}

// Execute runs a primitive of this library, which the caller has leased, on the calling
// goroutine. It waits for a worker, or until ctx ends. What the primitive takes is
// compared with args before the library sees anything of it: slots, types, sizes and
// layouts (SPEC E3). Memory of one execution that is written may be used by no other.
//
// Errors: ErrInvalid for arguments that do not fit and for no primitive, ErrClosed for memory that was
// released, the context's, or the library's own.
func (l *Library) Execute(ctx context.Context, p *primitive.Primitive, args ...Arg) error {
	if p == nil {
		return fault.Invalidf("onednn: execute", "no primitive: want a leased one of this library")
	}
	k, ok := p.Native().(*kernel)
	if !ok || k.plan.lib != l {
		return fault.Invalidf("onednn: execute", "the primitive is another library's: want one of an engine on this one")
	}
	pinned := 0
	defer func() {
		for _, a := range args[:pinned] {
			a.Memory.cell.Unpin()
		}
	}()
	for i := range args {
		m := args[i].Memory
		if m == nil || m.lib != l {
			return fault.Invalidf("onednn: execute", "%v: want memory of this library", args[i].Slot)
		}
		if !m.cell.Pin() {
			return failure("execute", fault.ErrClosed, "%v: the memory was released", args[i].Slot)
		}
		pinned++
	}
	var w *worker
	select {
	case w = <-l.workers:
	default:
		select {
		case w = <-l.workers:
		case <-ctx.Done():
			return failure("execute", ctx.Err(), "all workers are busy")
		}
	}
	defer func() { l.workers <- w }()
	return w.run(k, args)
}

// run compares the arguments, and executes.
func (w *worker) run(k *kernel, args []Arg) error {
	w.args = w.args[:0]
	for i := range k.plan.args {
		want := &k.plan.args[i]
		var m *Memory
		for _, a := range args {
			if a.Slot == want.slot {
				m = a.Memory
				break
			}
		}
		if m == nil {
			return fault.Invalidf("onednn: execute", "%v is missing: %s %v", want.slot, want.tensor.Type, want.tensor.Dims)
		}
		if !serves(&m.tensor, &want.tensor) {
			return fault.Invalidf("onednn: execute", "%v is %s %v in the layout %v %v: want %s %v in %v %v", want.slot,
				m.tensor.Type, m.tensor.Dims, m.tensor.Strides, m.tensor.Blocks, want.tensor.Type, want.tensor.Dims, want.tensor.Strides, want.tensor.Blocks)
		}
		w.args = append(w.args, execArg{arg: want.id, memory: m.h})
	}
	if len(args) != len(k.plan.args) {
		return fault.Invalidf("onednn: execute", "%d arguments, want %d: one is not of this operation, or comes twice", len(args), len(k.plan.args))
	}
	if k.plan.late {
		sizes := make(map[Slot][]int64)
		for _, a := range args {
			if a.Slot == Bias && !gapless(&a.Memory.tensor) { // it is read as if it were
				return fault.Invalidf("onednn: execute", "bias with the strides %v: want one without gaps", a.Memory.tensor.Strides)
			}
			sizes[a.Slot] = a.Memory.tensor.Dims
		}
		if !multiplies(sizes[Src], sizes[Weights], sizes[Bias], sizes[Dst]) {
			return fault.Invalidf("onednn: execute", "src %v, weights %v, bias %v and dst %v: want those of one product, of 1 or more each way",
				sizes[Src], sizes[Weights], sizes[Bias], sizes[Dst])
		}
	}
	return w.execute(k)
}

// execute runs a primitive on w.args, and its scratch memory.
func (w *worker) execute(k *kernel) error {
	if k.plan.nothing {
		return nil
	}
	if k.plan.scratch > 0 {
		if err := w.grow(k.plan.scratch); err != nil {
			return fault.Wrap("onednn: execute", "", "scratch memory", err)
		}
		w.args = append(w.args, execArg{arg: int32(scratchpad), memory: w.memory})
	}
	c := w.lib.c
	var err error
	w.lib.image.alone(func() {
		err = c.status("dnnl_primitive_execute", c.Execute(k.h, w.stream, uintptr(len(w.args)), &w.args[0]))
		if err == nil {
			err = c.status("dnnl_stream_wait", c.StreamWait(w.stream))
		}
	})
	if err != nil {
		return fault.Wrap("onednn: execute", "", "the library", err)
	}
	return nil
}
