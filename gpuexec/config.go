package gpuexec

import (
	"errors"
	"log/slog"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// Errors of an executor, found with errors.Is.
var (
	ErrInvalid     = fault.ErrInvalid
	ErrClosed      = fault.ErrClosed
	ErrOverloaded  = fault.ErrOverloaded
	ErrDeviceLost  = fault.ErrDeviceLost
	ErrUnavailable = fault.ErrUnavailable
	ErrUnsupported = fault.ErrUnsupported
	ErrRefused     = fault.ErrRefused
	ErrNotFound    = fault.ErrNotFound
)

// Config of one executor. Backend must be set; the rest may be zero.
type Config struct {
	Backend  Backend
	Index    int           // of the device within the backend
	Workers  int           // run workers; 0 = one a core, at most what the device can use
	Compiles int           // compiles at a time; 0 = as Workers
	Queue    int           // most sequences that wait for a worker; 0 = 256
	Slow     time.Duration // a compile that takes longer is announced (SPEC E6); 0 = 1 s
	Listen   func(CompileEvent)
	Logger   *slog.Logger // nil = silent
}

const (
	defaultQueue = 256
	defaultSlow  = time.Second
)

// validate joins everything that is wrong.
func (c Config) validate() error {
	var errs []error
	if c.Backend == nil {
		errs = append(errs, fault.Invalidf("executor: open", "no backend given"))
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"index", c.Index}, {"workers", c.Workers}, {"compiles", c.Compiles}, {"queue", c.Queue}} {
		if n.value < 0 {
			errs = append(errs, fault.Invalidf("executor: open", "%s is %d, want 0 or more", n.name, n.value))
		}
	}
	return errors.Join(errs...)
}

// CompileEvent tells of a compile that takes long. It is called on a goroutine
// of the executor and must return soon.
type CompileEvent struct {
	Key     string
	Phase   CompilePhase
	Elapsed time.Duration
	Err     error // of PhaseEnd
}

// CompilePhase is where a compile is.
type CompilePhase string

// The phases of a long compile; there is one PhaseRunning for each further Slow
// that it lasts.
const (
	PhaseStart   CompilePhase = "start"
	PhaseRunning CompilePhase = "running"
	PhaseEnd     CompilePhase = "end"
)

// Stats of an executor since it was opened.
type Stats struct {
	Compiles  int64 // programs compiled from their source
	BlobLoads int64 // programs loaded from a blob
	Launches  int64 // kernel runs handed to the driver
	Restarts  int64 // times the device was opened again
	Queued    int64 // sequences that wait now
}
