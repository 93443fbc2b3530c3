package onednn

import (
	"context"
	"errors"
	"runtime"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// Name is the backend's.
const Name = "onednn"

// Backend lists the library as a device. Safe for concurrent use.
type Backend struct{ path string }

// New is the backend with the library of that path; empty: as it is installed.
func New(path string) *Backend { return &Backend{path} }

func init() { gpuexec.Register(New("")) }

// Name implements gpuexec.Backend.
func (*Backend) Name() string { return Name }

// Devices implements gpuexec.Backend: the processor, with the library's version and build.
func (b *Backend) Devices(context.Context) []gpuexec.DeviceInfo {
	l, err := Open(Config{Path: b.path, Workers: 1})
	if failed, ok := errors.AsType[*fault.Error](err); ok {
		err = failed.Err // the rest is in the row
	}
	if err != nil {
		return []gpuexec.DeviceInfo{{Backend: Name, Reason: err.Error()}}
	}
	defer l.Close()
	a := l.About()
	driver := "oneDNN " + a.Version + ", " + a.Runtime
	if len(a.Build) >= 12 {
		driver += ", build " + a.Build[:12]
	}
	if a.OpenMP != "" {
		driver += ", " + a.OpenMP
	}
	return []gpuexec.DeviceInfo{{Backend: Name, Name: a.Identity.Device, Driver: driver, Available: true, ComputeUnits: runtime.NumCPU(), Identity: a.Identity}}
}

// Open implements gpuexec.Backend: the library runs primitives, which are asked for through
// the function Open, and no programs.
func (*Backend) Open(context.Context, int) (gpuexec.Device, error) {
	return nil, failure("open", fault.ErrUnsupported, "its primitives are used through onednn.Open; it runs no programs")
}
