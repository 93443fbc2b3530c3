//go:build linux && (amd64 || arm64)

package dnnl2

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
)

// Product is dst = src x weights prepared for one shape, with the weights in
// the library's own arrangement. It is owned by one goroutine.
type Product struct {
	library   *Library
	primitive handle
	args      [3]argument
	src, dst  []float32
	how       string
	release   []func() error // undone in reverse order
}

// argument is dnnl_exec_arg_t.
type argument struct {
	arg    int32
	_      int32
	memory handle
}

// Matmul prepares M x K by K x N, with w row-major K x N. The library chooses
// how it wants the weights, which are brought into that form once, here.
func (l *Library) Matmul(m, k, n int, w []float32) (p *Product, err error) {
	if m <= 0 || k <= 0 || n <= 0 || len(w) != k*n {
		return nil, fault.Invalidf("dnnl2: matmul", "%d x %d x %d with %d weights: sizes must be positive and fit", m, k, n, len(w))
	}
	p = &Product{library: l}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	var src, plain, chosen, dst memoryDesc
	if err := errors.Join(
		l.describe(&src, m, k, tagAB), l.describe(&plain, k, n, tagAB),
		l.describe(&chosen, k, n, tagAny), l.describe(&dst, m, n, tagAB),
	); err != nil {
		return nil, err
	}
	var desc matmulDesc
	if err := status("describe a product", l.c.matmulInit(&desc, &src, &chosen, nil, &dst)); err != nil {
		return nil, err
	}
	var pd handle
	if err := status("plan a product", l.c.primitiveDesc(&pd, &desc, 0, l.engine, 0)); err != nil {
		return nil, err
	}
	p.onClose("drop a plan", l.c.primitiveDescFree, pd)
	var how *byte
	if err := status("ask for the implementation", l.c.primitiveDescQuery(pd, queryImplementation, 0, &how)); err != nil {
		return nil, err
	}
	p.how = text(how)
	chosen = *l.c.primitiveDescMD(pd, queryWeights, 0)

	weights, _, err := p.memory(&chosen)
	if err != nil {
		return nil, err
	}
	if err := l.reorder(w, &plain, weights, &chosen); err != nil {
		return nil, err
	}
	srcMemory, srcBytes, err := p.memory(&src)
	if err != nil {
		return nil, err
	}
	dstMemory, dstBytes, err := p.memory(&dst)
	if err != nil {
		return nil, err
	}
	p.src, p.dst = floats(srcBytes, m*k), floats(dstBytes, m*n)
	if err := status("create a product", l.c.primitiveCreate(&p.primitive, pd)); err != nil {
		return nil, err
	}
	p.onClose("drop a product", l.c.primitiveFree, p.primitive)
	p.args = [3]argument{{arg: argSrc, memory: srcMemory}, {arg: argWeights, memory: weights}, {arg: argDst, memory: dstMemory}}
	return p, nil
}

func (l *Library) describe(md *memoryDesc, rows, columns int, tag int32) error {
	return status("describe a matrix", l.c.descInit(md, 2, &[12]int64{int64(rows), int64(columns)}, typeF32, tag))
}

// memory makes a matrix outside the Go heap, since the library keeps its
// address, on a page border, since it is faster aligned.
func (p *Product) memory(md *memoryDesc) (handle, []byte, error) {
	bytes, err := unix.Mmap(-1, 0, int(p.library.c.descSize(md)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0, nil, fmt.Errorf("dnnl2: map memory: %w", err)
	}
	p.release = append(p.release, func() error { return unix.Munmap(bytes) })
	var h handle
	if err := status("create a matrix", p.library.c.memoryCreate(&h, md, p.library.engine, &bytes[0])); err != nil {
		return 0, nil, err
	}
	p.onClose("drop a matrix", p.library.c.memoryFree, h)
	return h, bytes, nil
}

// reorder brings row-major weights into the arrangement to.
func (l *Library) reorder(w []float32, plain *memoryDesc, to handle, chosen *memoryDesc) (err error) {
	var once Product // owns what only the reorder needs
	once.library = l
	defer func() { err = errors.Join(err, once.Close()) }()
	from, bytes, err := once.memory(plain)
	if err != nil {
		return err
	}
	copy(floats(bytes, len(w)), w)
	var pd handle
	if err := status("plan a reorder", l.c.reorderDesc(&pd, plain, l.engine, chosen, l.engine, 0)); err != nil {
		return err
	}
	once.onClose("drop a plan", l.c.primitiveDescFree, pd)
	if err := status("create a reorder", l.c.primitiveCreate(&once.primitive, pd)); err != nil {
		return err
	}
	once.onClose("drop a reorder", l.c.primitiveFree, once.primitive)
	return l.execute(once.primitive, []argument{{arg: argSrc, memory: from}, {arg: argDst, memory: to}})
}

func (l *Library) execute(primitive handle, args []argument) error {
	code, _, _ := purego.SyscallN(l.c.execute, uintptr(primitive), uintptr(l.stream), uintptr(len(args)), uintptr(unsafe.Pointer(&args[0])))
	runtime.KeepAlive(args)
	return status("execute", int32(code))
}

// Src is the M x K matrix that Run reads; it may be written between runs.
func (p *Product) Src() []float32 { return p.src }

// Dst is the M x N matrix that Run fills.
func (p *Product) Dst() []float32 { return p.dst }

// Implementation is what the library calls the kernel it chose.
func (p *Product) Implementation() string { return p.how }

// Run computes Dst on the calling thread.
func (p *Product) Run() error { return p.library.execute(p.primitive, p.args[:]) }

// Close frees the product; Src and Dst must not be used afterwards. A second
// call does nothing.
func (p *Product) Close() error {
	var errs []error
	for ; len(p.release) > 0; p.release = p.release[:len(p.release)-1] {
		errs = append(errs, p.release[len(p.release)-1]())
	}
	p.src, p.dst = nil, nil
	return errors.Join(errs...)
}

func (p *Product) onClose(verb string, free func(handle) int32, h handle) {
	p.release = append(p.release, func() error { return status(verb, free(h)) })
}

func floats(bytes []byte, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&bytes[0])), n)
}

// text copies a C string.
func text(at *byte) string {
	if at == nil {
		return ""
	}
	return unix.BytePtrToString(at)
}
