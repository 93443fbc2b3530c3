package onednn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/limit"
)

// opened is a library with an engine and the cache of its primitives.
type opened struct {
	lib    *Library
	cache  *artefacts.Cache
	engine *primitive.Engine
}

// spare is how many primitives stay that no program uses, and spareBytes what they take at
// most: those of any shape are among them.
const (
	spare      = 64
	spareBytes = 8 << 20
)

func openAll(path string) (_ *opened, err error) {
	r := new(opened)
	if r.lib, err = Open(Config{Path: path, Workers: 1}); err != nil {
		return nil, err
	}
	if r.cache, err = artefacts.Open(artefacts.Config{Entries: limit.Of(spare), Bytes: limit.Of(spareBytes)}); err == nil {
		r.engine, err = primitive.Open(primitive.Config{Cache: r.cache, Library: r.lib, Backend: Name, Identity: r.lib.About().Identity})
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *opened) close() (err error) {
	if r.cache != nil {
		err = r.cache.Close(context.Background())
	}
	return errors.Join(err, r.lib.Close())
}

// device is the processor with the library. Its memory is Go's.
type device struct {
	*opened
	info gpuexec.DeviceInfo

	ctx  context.Context // ends with the device
	stop context.CancelFunc
	all  sync.WaitGroup // of what builds exact forms
	mu   struct {
		sync.Mutex
		wanted   []*program // whose exact forms are to be built
		building bool
		programs map[*program]struct{} // not released
	}
	general, exact atomic.Int64 // launches of each form (SPEC E7)
}

func (d *device) Info() gpuexec.DeviceInfo { return d.info }

// Limits: a launch is one block, on its worker's thread.
func (d *device) Limits() gpuexec.Limits {
	one := gpuexec.Size{1, 1, 1}
	return gpuexec.Limits{Alignment: alignment, MaxGrid: one, MaxBlock: one}
}

// Lost implements gpuexec.Device: a processor does not go away.
func (d *device) Lost() <-chan struct{} { return nil }

func (d *device) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	op, err := opOf(src)
	if err != nil {
		return nil, err
	}
	p, err := d.program(ctx, op)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.programs[p] = struct{}{}
	return p, nil
}

// Load implements gpuexec.Device: the library has no blobs on processors.
func (d *device) Load(context.Context, gpuexec.Source, []byte) (gpuexec.Program, error) {
	return nil, noBlobs("load")
}

func noBlobs(op string) error {
	return failure(op, fault.ErrUnsupported, "oneDNN has no blobs on processors")
}

func opOf(src gpuexec.Source) (ops.Op, error) {
	op, ok := src.Spec.(ops.Op)
	if !ok {
		return op, fault.Invalidf("onednn: compile", "a source of type %T, want an ops.Op", src.Spec)
	}
	return op, op.Validate()
}

func (d *device) Alloc(n int64) (gpuexec.Memory, error) {
	data, err := aligned(n)
	if err != nil {
		return nil, err
	}
	return &memory{data}, nil
}

func (d *device) OpenQueue() (gpuexec.Queue, error) {
	w, err := d.lib.newWorker()
	if err != nil {
		w.close()
		return nil, err
	}
	return &queue{d: d, worker: w}, nil
}

// Close releases all that is left.
func (d *device) Close() error {
	d.stop()
	d.all.Wait()
	for p := range d.mu.programs {
		p.Release()
	}
	return d.opened.close()
}

// memory is a part of Go's memory.
type memory struct{ data []byte }

func (m *memory) Mapped() []byte { return m.data }

func (m *memory) Release() { m.data = nil }

// most exact forms that wait to be built: a program that finds no place asks again.
const mostWanted = 64

// want has an exact form built behind, one at a time.
func (d *device) want(p *program) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.mu.wanted) >= mostWanted || d.ctx.Err() != nil {
		return false
	}
	d.mu.wanted = append(d.mu.wanted, p)
	if !d.mu.building {
		d.mu.building = true
		d.all.Go(d.build)
	}
	return true
}

// build builds what is wanted, until nothing is. Close, before which want has been called for
// the last time, waits for it.
func (d *device) build() {
	for {
		d.mu.Lock()
		if len(d.mu.wanted) == 0 || d.ctx.Err() != nil {
			d.mu.building = false
			d.mu.wanted = nil
			d.mu.Unlock()
			return
		}
		p := d.mu.wanted[0]
		d.mu.wanted = d.mu.wanted[1:]
		d.mu.Unlock()
		if err := guard.Guarded(func() error { return p.sharpen(d.ctx) }); err != nil { // the other form serves on
			p.failed(err)
		}
	}
}

// queue runs launches on its worker's goroutine, at once. Owned by one goroutine.
type queue struct {
	d      *device
	worker *worker
}

func (q *queue) Launch(ctx context.Context, p gpuexec.Program, args []gpuexec.DeviceArg, _, _ gpuexec.Size) error {
	x, ok := p.(*program)
	if !ok {
		return fault.Invalidf("onednn: launch", "a program of type %T", p)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	err := q.run(ctx, x, args)
	x.ran(time.Since(began))
	return err
}

// execute runs a form on memory, in the order of its primitive's arguments.
func (q *queue) execute(f *runner, at ...unsafe.Pointer) error {
	b, err := f.take()
	if err != nil {
		return err
	}
	defer f.give(b)
	return q.launch(f, b, at...)
}

func (q *queue) launch(f *runner, b []execArg, at ...unsafe.Pointer) error {
	w := q.worker
	w.args = append(w.args[:0], b...)
	for i := range b {
		if err := w.lib.c.status("dnnl_memory_set_data_handle", w.lib.c.MemoryTake(b[i].memory, at[i])); err != nil {
			return err
		}
	}
	return w.execute(f.kernel)
}

func (q *queue) Write(m gpuexec.Memory, offset int64, from []byte) error {
	copy(m.(*memory).data[offset:], from)
	return nil
}

func (q *queue) Read(m gpuexec.Memory, offset int64, into []byte) error {
	copy(into, m.(*memory).data[offset:])
	return nil
}

// Finish implements gpuexec.Queue: a launch has run when it returns.
func (q *queue) Finish(context.Context) error { return nil }

func (q *queue) Close() error {
	q.worker.close()
	return nil
}

func view(a gpuexec.DeviceArg) []byte {
	return a.Memory.(*memory).data[a.Offset : a.Offset+a.Bytes]
}

func pointer(a gpuexec.DeviceArg) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(view(a))) }

// floats is the memory of b as numbers. It is aligned to 4 bytes, as every part of this
// device's memory is that passed a launch's check.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
