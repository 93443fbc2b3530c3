package opencl

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
const Name = "opencl"

// Language is that of the Code which this backend compiles.
const Language = "opencl-c"

// install is what to do where nothing was found.
const install = "install an OpenCL loader and a driver (Debian: ocl-icd-libopencl1, and pocl-opencl-icd for the processor or the driver of your device)"

// format is that of blobs: what a driver gave, whole and of its source.
var format = sealed.Format{Backend: Name, Magic: "kilnocl\x01"}

// Config of a backend. The zero Config is that of the one which is registered.
type Config struct {
	// KnownBlobs is a file that has the digests of blobs that were made or loaded here. A
	// blob that is not in it, such as one of an import, a base or another host, is loaded
	// and run once by a child process first. If its driver ends that process, refuses the
	// blob or is not ready within a minute, the blob is fault.ErrRefused (SPEC P11). The
	// child is the running executable, started again: its packages are initialised up to
	// this one, and main does not run. Empty: all blobs are loaded in this process.
	KnownBlobs string
	// Device is the number of the device that the operations are written for, as a Library:
	// there are products for processors, which are right on others too, and slow, and
	// products whose tiles are as large as the limits of another device allow.
	Device int
}

// backend implements gpuexec.Backend. Safe for concurrent use.
type backend struct {
	cfg    Config
	staged bool           // tests: as if each device had memory of its own
	other  gpuexec.Limits // tests: if not zero, as if no device were a processor, and each had these
}

// New is the backend with settings of its own.
func New(cfg Config) ops.Library { return backend{cfg: cfg} }

// For is a backend of the same settings whose operations are written for the device of that
// number. The environment has no setting for this backend.
func (b backend) For(device int, _ string) ops.Library {
	b.cfg.Device = device
	return b
}

func init() { gpuexec.Register(backend{}) }

func (backend) Name() string { return Name }

// Aborts says that drivers may end the process when they are given a bad blob (SPEC P11).
func (backend) Aborts() bool { return true }

// Devices lists the devices of every driver, processors behind the others, and what cannot be
// used last.
func (backend) Devices(context.Context) []gpuexec.DeviceInfo {
	infos, err := list()
	if failed, ok := errors.AsType[*fault.Error](err); ok {
		err = failed.Err // the rest is in the row
	}
	if err != nil {
		return []gpuexec.DeviceInfo{{Backend: Name, Reason: err.Error()}}
	}
	return infos
}

func (b backend) Open(_ context.Context, index int) (gpuexec.Device, error) { return b.open(index) }

// failure is an error of this backend at an operation of it.
func failure(op string, sentinel error, format string, args ...any) *fault.Error {
	return &fault.Error{Op: "opencl: " + op, Backend: Name, Err: fmt.Errorf("%w: "+format, append([]any{sentinel}, args...)...)}
}

func unavailable(cause any) error {
	return failure("open", fault.ErrUnavailable, "%v: %s", cause, install)
}
