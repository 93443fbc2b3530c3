//go:build linux && (amd64 || arm64)

package cuda

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/nvrtc"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// device is what one executor has of a device.
type device struct {
	*library
	found
	primary *primary
	stream  handle // makes, fills and frees memory
	pool    handle // that memory comes from; 0 = from the driver
	zeros   sync.Mutex

	cublas     *cublas     // nil: it is not used
	distrusted atomic.Bool // a call of it has failed

	nvrtc   *nvrtc.Library
	helpers *nvrtc.Helpers // of all devices; nil: compiles run in this process

	mu struct {
		sync.Mutex
		programs map[*program]struct{} // not released
		memories map[*memory]struct{}
	}
}

func (l *library) openDevice(ctx context.Context, f found, compiler *nvrtc.Library, cublas *cublas, inProcess bool) (gpuexec.Device, error) {
	d := &device{library: l, found: f, nvrtc: compiler, cublas: cublas}
	d.mu.programs, d.mu.memories = make(map[*program]struct{}), make(map[*memory]struct{})
	var err error
	if d.primary, err = l.retain(ctx, f.ordinal); err != nil {
		return nil, err
	}
	err = d.within("open", func() (err error) {
		d.stream, err = d.make("open", cuStreamCreate, streamNonBlocking)
		return err
	})
	if err != nil {
		d.primary.leave()
		return nil, err
	}
	d.openPool()
	if !inProcess {
		d.helpers = nvrtc.Share(compiler.Path)
	}
	return d, nil
}

// failed is library.failed, which remembers that the device is lost.
func (d *device) failed(op string, f function, code int32) error {
	err := d.library.failed(op, f, code)
	if errors.Is(err, fault.ErrDeviceLost) {
		d.primary.lose()
	}
	return err
}

// make is create with an error.
//
//go:uintptrescapes
func (d *device) make(op string, f function, args ...uintptr) (handle, error) {
	h, code := d.create(f, args...)
	return h, d.failed(op, f, code)
}

// within calls fn where the device's context is current.
func (d *device) within(op string, fn func() error) error {
	err := d.library.within(op, d.primary.context, fn)
	if errors.Is(err, fault.ErrDeviceLost) {
		d.primary.lose()
	}
	return err
}

func (d *device) Info() gpuexec.DeviceInfo { return d.info }

func (d *device) Limits() gpuexec.Limits { return d.limits }

// Lost implements gpuexec.Device: whoever is told so by the driver tells all others that
// have the context.
func (d *device) Lost() <-chan struct{} { return d.primary.lost }

// Close releases all that is left.
func (d *device) Close() error {
	if d.helpers != nil {
		d.helpers.Leave()
	}
	for p := range d.mu.programs {
		p.Release()
	}
	for m := range d.mu.memories {
		m.Release()
	}
	d.drop(cuMemPoolDestroy, d.pool)
	d.drop(cuStreamDestroy, d.stream)
	d.primary.leave()
	return nil
}

// drop releases objects of the context.
func (d *device) drop(f function, objects ...handle) {
	d.dropBy(func(o handle) { d.release(f, o) }, objects...)
}

func (d *device) dropBy(release func(handle), objects ...handle) {
	released := false
	_ = d.within("release", func() error {
		for _, o := range objects {
			release(o)
		}
		released = true
		return nil
	})
	if !released { // the context is not to be had: they go with it
		for _, o := range objects {
			if o != 0 {
				native.Add(-1)
			}
		}
	}
}

// Compile implements gpuexec.Device.
func (d *device) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	code, err := codeOf(src)
	if err != nil {
		return nil, err
	}
	class, err := d.productOf(code)
	if err != nil {
		return nil, err
	}
	request := requestOf(code, d.target)
	var out nvrtc.Output
	if d.helpers != nil {
		out, err = d.compile(ctx, request)
	} else if err = ctx.Err(); err == nil {
		out, err = d.nvrtc.Compile(request)
	}
	if err != nil {
		return nil, err
	}
	p, err := d.program(newImage(out.Cubin, out.PTX), src, code, class)
	if errors.Is(err, fault.ErrRefused) {
		return nil, failure("compile", fault.ErrUnavailable, "%s does not take what NVRTC %s made (%v): use an NVRTC that is no newer than the driver",
			d.info.Driver, d.nvrtc.Version, err)
	}
	if err != nil {
		return nil, err
	}
	if err := d.choose(ctx, p); err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// compile has a helper compile, as long as the device is not lost: whoever opens it again
// waits for this.
func (d *device) compile(ctx context.Context, request nvrtc.Request) (nvrtc.Output, error) {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-d.primary.lost:
			cancel()
		case <-within.Done():
		}
	}()
	out, err := d.helpers.Compile(within, request)
	if err != nil && ctx.Err() == nil && d.primary.isLost() {
		return out, failure("compile", fault.ErrDeviceLost, "the context was lost meanwhile")
	}
	return out, err
}

// Load implements gpuexec.Device.
func (d *device) Load(ctx context.Context, src gpuexec.Source, blob []byte) (gpuexec.Program, error) {
	code, err := codeOf(src)
	if err != nil {
		return nil, err
	}
	class, err := d.productOf(code)
	if err != nil {
		return nil, err
	}
	content, err := format.Open(d.sealedBy(src.Key, class), blob)
	if err != nil {
		return nil, err
	}
	choice := byKernel
	if class != (ops.Op{}) {
		if len(content) < 1 {
			return nil, refused(fault.Truncated, "", "no choice")
		}
		choice, content = content[0], content[1:]
	}
	im, err := imageOf(append([]byte(nil), content...))
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, err := d.program(im, src, code, class)
	if err != nil {
		return nil, blamed(err)
	}
	if err := d.heed(ctx, p, choice); err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// blamed is an error of a driver that was given a whole blob: short of memory or of a
// device, it has not said anything about the blob.
func blamed(err error) error {
	for _, other := range []error{fault.ErrRefused, fault.ErrDeviceLost, fault.ErrTooLarge, fault.ErrUnavailable} {
		if errors.Is(err, other) {
			return err
		}
	}
	return refused(fault.DriverRefused, "", "%w", err)
}

var targetLine = regexp.MustCompile(`(?m)^\.target\s+sm_(\d+)`)

// fits gives where in an image the part begins that this device takes: its cubin, or its PTX.
func (d *device) fits(im image) (at int, err error) {
	if im.ptx > 0 {
		err := checkCubin(im.bytes[:im.ptx], d.capability)
		if reason, _ := fault.ReasonOf(err); err == nil || reason != fault.DeviceMismatch {
			return 0, err
		}
	}
	m := targetLine.FindSubmatch(im.bytes[im.ptx:])
	if m == nil {
		return 0, refused(fault.Format, "", "PTX without a target")
	}
	if sm, _ := strconv.Atoi(string(m[1])); sm > d.capability {
		return 0, refused(fault.DeviceMismatch, "device", "PTX for compute capability %d.%d, the device has %d.%d", sm/10, sm%10, d.capability/10, d.capability%10)
	}
	return im.ptx, nil
}
