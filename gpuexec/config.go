package gpuexec

import (
	"errors"
	"log/slog"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/progress"
	"github.com/kiln-cache/kiln/internal/zone"
)

// Config of one executor. Backend must be set; the rest may be zero.
type Config struct {
	Backend  Backend
	Index    int           // of the device within the backend
	Workers  int           // run workers; 0 = one a core, at most what the device can use
	Compiles int           // compiles at a time, beside those that they ask for; 0 = as Workers
	Queue    int           // most sequences that wait, for a worker or for other runs; 0 = 256
	Slow     time.Duration // a compile that takes longer is announced (SPEC E6); 0 = 1 s
	// Linger is how long a compile goes on when every caller has left, and how long its
	// kernel is then kept for a caller that asks again. So callers whose deadlines are
	// shorter than a compile get further with each try (SPEC F4). The kernels of the last
	// 1024 such compiles are kept. 0 = a minute, negative = not at all. Source.Linger
	// says it for one source.
	Linger time.Duration
	Listen func(CompileEvent) // told of announced compiles, one event of a compile at a time
	Logger *slog.Logger       // nil = silent

	spare pressure.Unused // gives up constants that nobody uses; nil = there are none
	zone  *zone.Zone      // of whoever closes the executor; nil = nobody in particular
	stop  *flight.Stop    // where the executor that is opened leaves that of its compiles; nil = nowhere
}

func init() {
	hidden.Field(func(c *Config, s pressure.Unused) { c.spare = s })
	hidden.Field(func(c *Config, z *zone.Zone) { c.zone = z })
	hidden.Field(func(c *Config, s *flight.Stop) { c.stop = s })
}

const (
	defaultQueue  = 256
	defaultSlow   = time.Second
	defaultLinger = time.Minute
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
	if c.Slow < 0 {
		errs = append(errs, fault.Invalidf("executor: open", "slow is %v, want 0 or more", c.Slow))
	}
	return errors.Join(errs...)
}

// CompileEvent tells of a compile, or of the load of a blob, that takes long. The
// listener is called on a goroutine of the executor, for which no compile waits: PhaseEnd
// may come when its caller has been answered. Close waits for it. While 256 compiles that
// have ended wait for it, others are not announced.
type CompileEvent struct {
	Key     string // of the source
	Name    string // of the source, else its key: for people
	Phase   string // PhaseStart, PhaseRunning or PhaseEnd
	Elapsed time.Duration
	Err     error // of PhaseEnd
}

// The phases of a long compile; there is one PhaseRunning for each further Slow
// that it lasts.
const (
	PhaseStart   = progress.Start
	PhaseRunning = progress.Running
	PhaseEnd     = progress.End
)

// Stats is a snapshot of an executor's counts since it was opened.
type Stats struct {
	Number    int64 // of this executor among those that the process opened, from 1
	Compiles  int64 // programs compiled from their source
	BlobLoads int64 // programs loaded from a blob
	Launches  int64 // kernel runs handed to the driver
	Exact     int64 // of the Launches, those in the form for their exact shape, of programs that have a form for any shape, too (SPEC E7)
	Restarts  int64 // times the device was opened again
	Queued    int64 // sequences that wait now
	Touched   int64 // most runs, launches with their arguments, and compiles that one turn of the actor looked at or changed
}
