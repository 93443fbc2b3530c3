//go:build linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"unsafe"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// program is a module with its one kernel.
type program struct {
	d        *device
	key      string
	image    image
	module   handle
	function handle
	product  product
}

// program has the driver make a module of an image. class is that of productOf.
func (d *device) program(im image, src gpuexec.Source, code gpuexec.Code, class ops.Op) (_ *program, err error) {
	if err := checkParams(im.bytes[im.ptx:], code.Entry, src.Params); err != nil {
		return nil, err
	}
	at, err := d.fits(im)
	if err != nil {
		return nil, err
	}
	p := &program{d: d, key: src.Key, image: im, product: product{class: class}}
	err = d.within("load", func() (err error) {
		if p.module, err = d.make("load", cuModuleLoadData, uintptr(unsafe.Pointer(&im.bytes[at]))); err != nil {
			return err
		}
		if err := p.find(code.Entry, src.Params); err != nil {
			d.release(cuModuleUnload, p.module)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.mu.programs[p] = struct{}{}
	d.mu.Unlock()
	return p, nil
}

// find takes the kernel out of the module, with all the local memory that it may have.
func (p *program) find(entry string, params []gpuexec.Param) error {
	d := p.d
	var err error
	if p.function, err = p.kernel(entry); err != nil {
		return err
	}
	if p.product.class.Bias {
		if p.product.bias, err = p.kernel("add_bias"); err != nil {
			return err
		}
	}
	local := slices.ContainsFunc(params, func(p gpuexec.Param) bool { return p.Kind == gpuexec.ParamLocal })
	if !local || d.limits.MaxLocal <= plainShared {
		return nil
	}
	static := new(int32)
	code := d.call(cuFuncGetAttribute, uintptr(unsafe.Pointer(static)), sharedBytes, uintptr(p.function))
	if err := d.failed("load", cuFuncGetAttribute, code); err != nil {
		return err
	}
	most := max(0, d.limits.MaxLocal-int64(*static))
	return d.failed("load", cuFuncSetAttribute, d.call(cuFuncSetAttribute, uintptr(p.function), maxDynamicShared, uintptr(most)))
}

// kernel is that of a name.
func (p *program) kernel(name string) (handle, error) {
	made, text := new(handle), append([]byte(name), 0)
	code := p.d.call(cuModuleGetFunction, uintptr(unsafe.Pointer(made)), uintptr(p.module), uintptr(unsafe.Pointer(&text[0])))
	return *made, p.d.failed("load", cuModuleGetFunction, code)
}

// Bytes implements gpuexec.Program: what is kept for blobs, and the code on the device,
// which a driver may load when it is first launched.
func (p *program) Bytes() int64 {
	return int64(len(p.image.bytes) + max(p.image.ptx, len(p.image.bytes)-p.image.ptx))
}

// Requires implements gpuexec.Program.
func (p *program) Requires() []string { return nil }

// Blob implements gpuexec.Program.
func (p *program) Blob(context.Context) ([]byte, error) {
	content := p.image.content()
	if p.product.class != (ops.Op{}) {
		content = append([]byte{p.product.choice()}, content...)
	}
	return format.Seal(p.d.sealedBy(p.key, p.product.class), content), nil
}

func (p *program) Release() {
	p.d.mu.Lock()
	delete(p.d.mu.programs, p)
	p.d.mu.Unlock()
	p.d.drop(cuModuleUnload, p.module)
}

// textAt is a text that ends with a zero.
func textAt(at *byte) string {
	var b bytes.Buffer
	for p := unsafe.Pointer(at); *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
		b.WriteByte(*(*byte)(p))
	}
	runtime.KeepAlive(at)
	return b.String()
}
