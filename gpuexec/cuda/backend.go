package cuda

import (
	"context"
	"errors"
	"fmt"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/sealed"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Name is the backend's.
const Name = "cuda"

// Language is that of the Code which this backend compiles.
const Language = "cuda-c"

// install is what to do where nothing was found.
const install = "install NVIDIA's driver (Debian: libcuda1, of non-free)"

// format is that of blobs: a cubin and its PTX, whole and of their source.
var format = sealed.Format{Backend: Name, Magic: "kilncud\x01"}

// Config of a backend. The zero Config is that of the one which is registered.
type Config struct {
	NVRTC string // the compiler's file; empty: as it is installed
	// CUBLAS is a second implementation of products, which computes those that it is quicker
	// at, as measured on the device: the file of libcublas, or "installed". Empty: it is not
	// used. One that is not to be had is not used either, and no error.
	CUBLAS    string
	InProcess bool // compiles run in this process, one at a time, and cannot be stopped: for texts that are trusted
}

// installed is what Config.CUBLAS has for the one that the loader finds.
const installed = "installed"

// classMacro is defined in products that are measured, as the shapes they are measured for.
const classMacro = "CUBLAS"

// backend implements gpuexec.Backend. Safe for concurrent use.
type backend struct{ cfg Config }

// New is the backend with another compiler.
func New(cfg Config) ops.Library { return backend{cfg} }

func init() { gpuexec.Register(backend{}) }

// For is the backend with the compiler of that path; empty: as it is installed. Its
// operations are the same for all devices.
func (b backend) For(_ int, nvrtc string) ops.Library {
	b.cfg.NVRTC = nvrtc
	return b
}

// With is the backend with that Config.CUBLAS.
func (b backend) With(cublas string) ops.Library {
	b.cfg.CUBLAS = cublas
	return b
}

func (backend) Name() string { return Name }

// Aborts says that a driver may end the process when it is given a bad blob (SPEC P11).
func (backend) Aborts() bool { return true }

// Devices lists the devices that the driver shows: CUDA_VISIBLE_DEVICES and partitions of a
// device (MIG) are its matter.
func (b backend) Devices(context.Context) []gpuexec.DeviceInfo {
	infos, err := b.list()
	if err != nil {
		return []gpuexec.DeviceInfo{{Backend: Name, Reason: inner(err).Error()}} // the rest is in the row
	}
	return infos
}

// inner is an error without the operation and the backend that it has around it.
func inner(err error) error {
	if failed, ok := errors.AsType[*fault.Error](err); ok {
		return failed.Err
	}
	return err
}

func (b backend) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	return b.open(ctx, index)
}

// failure is an error of this backend at an operation of it.
func failure(op string, sentinel error, format string, args ...any) *fault.Error {
	return &fault.Error{Op: "cuda: " + op, Backend: Name, Err: fmt.Errorf("%w: "+format, append([]any{sentinel}, args...)...)}
}

func unavailable(cause any) error {
	return failure("open", fault.ErrUnavailable, "%v: %s", cause, install)
}
