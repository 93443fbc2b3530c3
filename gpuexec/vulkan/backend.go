package vulkan

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Name is the backend's.
const Name = "vulkan"

// Languages of a gpuexec.Code.
const (
	SPIRV = "spirv" // Text is the bytes of a module
	GLSL  = "glsl"  // a compute shader in GLSL, for which glslc or glslang must be installed
)

// Config of a Backend.
type Config struct {
	// PipelineFile keeps the driver's cache over restarts, in one file for each device:
	// the device's number is added to the name. Empty = none.
	PipelineFile string
	// Device is the number of the device whose kind the operations are written for, as a
	// Library: there are shaders for processors, which are right on others too, and slow.
	Device int
	// Prefer is a part of the names, in any case of letters, of the devices that come first,
	// as `kiln devices` has them: number 0 is one of these. Where no device has it, opening
	// one is ErrNotFound. Empty = discrete ones first.
	Prefer string
	// Logger is told of files that cannot be used; nil = silent.
	Logger *slog.Logger
}

// Backend implements gpuexec.Backend. Safe for concurrent use.
type Backend struct {
	cfg    Config
	counts counts
	staged bool          // tests: as if the host saw none of the device's memory
	within time.Duration // tests: other than saveWithin
}

// counts are of all devices of a backend. leaked are objects of the drivers that a
// closed device had left, barriers those between launches.
type counts struct{ pipelines, told, cacheHits, fromGLSL, leaked, barriers atomic.Int64 }

// Stats counts what all devices of a backend did.
type Stats struct {
	Pipelines int64 // that the driver made
	Told      int64 // of these, those for which it said whether its cache helped
	CacheHits int64 // of these, those that came out of its cache
	FromGLSL  int64 // modules that were compiled of GLSL
}

func init() { gpuexec.Register(New(Config{})) }

// New makes a backend of its own settings; the registered one has none.
func New(cfg Config) *Backend { return &Backend{cfg: cfg} }

// For is a backend of the same settings that prefers devices of that name, and whose
// operations are written for the device of that number.
func (b *Backend) For(device int, prefer string) ops.Library {
	cfg := b.cfg
	cfg.Device, cfg.Prefer = device, prefer
	return New(cfg)
}

// Name implements gpuexec.Backend.
func (b *Backend) Name() string { return Name }

// Stats says what all devices of this backend did so far.
func (b *Backend) Stats() Stats {
	c := &b.counts
	return Stats{c.pipelines.Load(), c.told.Load(), c.cacheHits.Load(), c.fromGLSL.Load()}
}

// Devices implements gpuexec.Backend.
func (b *Backend) Devices(context.Context) []gpuexec.DeviceInfo { return b.devices() }

// Open implements gpuexec.Backend.
func (b *Backend) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	return b.open(ctx, index)
}

// install is what makes the backend available.
const install = "install libvulkan1 and a driver (Debian: mesa-vulkan-drivers, which has one for processors, too)"

// failure is an error of this backend at an operation of it.
func failure(op string, sentinel error, format string, args ...any) *fault.Error {
	return &fault.Error{Op: "vulkan: " + op, Backend: Name, Err: fmt.Errorf("%w: "+format, append([]any{sentinel}, args...)...)}
}

func unavailable(err error) error {
	return &fault.Error{Op: "vulkan: open", Backend: Name, Err: fmt.Errorf("%s: %w", install, err)}
}

func absent(err error) []gpuexec.DeviceInfo {
	return []gpuexec.DeviceInfo{{Backend: Name, Reason: fmt.Sprintf("%v; %s", err, install)}}
}
