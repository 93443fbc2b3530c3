package onednn

import (
	"context"
	"errors"
	"runtime"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Name is the backend's.
const Name = "onednn"

// Backend runs the operations of package ops on the processor, by the library's primitives.
// It is an ops.Library. Safe for concurrent use.
type Backend struct{ path string }

// New is the backend with the library of that path; empty: as in Config.
func New(path string) *Backend { return &Backend{path} }

// For is New, for the one device that there is.
func (*Backend) For(_ int, path string) ops.Library { return New(path) }

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
	return []gpuexec.DeviceInfo{l.info()}
}

func (l *Library) info() gpuexec.DeviceInfo {
	a := l.About()
	driver := "oneDNN " + a.Version + ", " + a.Runtime
	if len(a.Build) >= 12 {
		driver += ", build " + a.Build[:12]
	}
	if a.OpenMP != "" {
		driver += ", " + a.OpenMP
	}
	return gpuexec.DeviceInfo{Backend: Name, Name: a.Identity.Device, Driver: driver, Available: true, ComputeUnits: runtime.NumCPU(), Identity: a.Identity}
}

// Open implements gpuexec.Backend.
func (b *Backend) Open(_ context.Context, index int) (gpuexec.Device, error) {
	if index != 0 {
		return nil, failure("open", fault.ErrNotFound, "there is one device, number 0")
	}
	r, err := openAll(b.path)
	if err != nil {
		return nil, err
	}
	d := &device{opened: r, info: r.lib.info()}
	d.mu.programs = make(map[*program]struct{})
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d, nil
}
