package kiln

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/limit"
)

// Limit is a capacity: LimitOf(n) or Unlimited. The zero Limit is "not given":
// then the environment decides, then the default.
type Limit = limit.Limit

// Unlimited is no bound at all.
var Unlimited = limit.Unlimited

// LimitOf is a capacity of n, which Open refuses if negative.
func LimitOf(n int64) Limit { return limit.Of(n) }

// Config of a Runtime. The zero value is usable: what is not given follows the
// environment, which Open reads once.
type Config struct {
	// StoreDir is the directory in which artefacts outlive the process, for any
	// number of processes at once; default KILN_STORE_DIR, else nothing is stored.
	StoreDir string
	// StoreBytes is what the directory may hold; default KILN_STORE_CAPACITY, else
	// what the directory remembers, else 1 GiB. 0 turns the store off.
	StoreBytes Limit
	// StoreRequired makes these errors of Open: no directory, one that cannot be used,
	// Store.ReadOnly and Store.Off. It also makes it an error to ask for an artefact
	// that cannot be stored: the identity of its backend is not known, no folder can
	// have the backend's name, its key is too long, or a recipe with a Load made it without
	// a Blob (SPEC P17).
	// Without StoreRequired each is logged once, and the program goes on.
	StoreRequired bool
	// DriverCaches puts the drivers' own caches (Mesa, PoCL, CUDA, NVIDIA) under
	// StoreDir, each within a tenth of the store's capacity; default
	// KILN_DRIVER_CACHES, else they stay where they are. It sets the drivers'
	// variables of the process that are not set yet. A driver reads them when it is
	// loaded: open the runtime before devices are listed or opened. What keeps a cache
	// out of StoreDir is logged. Linux only.
	DriverCaches bool
	// Store says the rest of the store: durability, policy, trust, bases, identity.
	// StoreDir and StoreBytes win over its Dir and Capacity; its Logger defaults to
	// Logger. Its Identity says what stored artefacts of a backend must fit. By
	// default that is the device, where a device's backend has that name, and
	// elsewhere the running executable; see DefaultBackend.
	Store blobstore.Config

	ArtefactEntries Limit // artefacts in memory; default ONEDNN_PRIMITIVE_CACHE_CAPACITY, else 1024
	// ArtefactBytes is for all artefacts in memory together; default unlimited. An
	// artefact that is larger is not kept: it is made again for the next caller, which
	// is logged once.
	ArtefactBytes Limit

	// What constants may take on each device of a kind, in MiB; default
	// ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY, else unlimited.
	CPUConstantsMiB Limit
	GPUConstantsMiB Limit

	// SessionBytes is what all sessions may hold together, beside the capacity of
	// each; default unlimited. When a session needs more than is left, the sessions
	// that hold most above their floors (SessionConfig.Floor) give up whole groups.
	SessionBytes Limit
	// MemoryLimit is what values of sessions, artefacts and constants, and the
	// blobs that the store keeps in memory, may take together: off, auto (0.8 of
	// what the control group or the machine has), MiB or a size such as 4GiB;
	// default KILN_MEMORY_LIMIT, else off. Above it the values with the least
	// compute time per byte go first, constants last.
	MemoryLimit string

	Workers int // run workers of each device, on cpu the most cores; default KILN_WORKERS, else one a core

	// Linger is how long an artefact goes on being made when every caller that waited
	// for it has left, and a constant goes on being computed when its caller's context
	// has ended; 0 = 1 minute, or what Artefacts has, if that is given; negative = its
	// context ends at once. The option Linger
	// says it for one call; its comment has the defaults of every room.
	Linger time.Duration

	// Evicted, if not nil, is told of each artefact that had to go; see
	// artefacts.Config.
	Evicted func(key string, why artefacts.Cause)

	// Artefacts, if not nil, is used in place of a cache that the runtime opens
	// for itself; the runtime leaves it open. ArtefactEntries, ArtefactBytes, Evicted and
	// the store's fields are then not heeded. MemoryLimit with it is ErrInvalid, and
	// KILN_MEMORY_LIMIT bounds the rest: what it holds is not counted. Close does not wait
	// for its creators.
	Artefacts *artefacts.Cache

	// Record notes what names come to stand for, so that Runtime.Record can write a
	// manifest for the Runtime.Warm of another process. A hit costs nothing more.
	Record bool

	// Listen, if not nil, is told how each look-up was answered: every Get and
	// Group.Kernel, every Lookup that finds something, and every request for a
	// constant. It is called on the caller's goroutine, must be cheap and safe for
	// concurrent use, and must not wait for the runtime. While it is set a hit reads
	// the clock. It is also told, on goroutines of its device, of each promise of a constant
	// that GetOrAdd gives, and of each constant that stops being resident; see constants.Config.
	Listen func(Event)
	// Compiling, if not nil, is told of what takes longer than a second: a Make, a
	// Load, the function that a constants.Engine.Get was given, a compile of a device.
	// It is told when the second is over, each further second, and at the end (SPEC E6).
	// Nobody waits for it but Close, after which it is told nothing: the end may be told when
	// callers have been answered.
	// While 256 that have ended wait for it, others are not announced.
	Compiling func(gpuexec.CompileEvent)

	Lookup func(name string) (string, bool) // an environment variable, and whether it is set; nil = os.LookupEnv
	Logger *slog.Logger                     // nil = warnings and errors go to slog.Default; slog.DiscardHandler silences it
}

// mostWorkers is the bound of KILN_WORKERS.
const mostWorkers = 4096

// validate names every capacity that is none, as ErrInvalid.
func (c Config) validate() error {
	var errs []error
	for _, l := range []struct {
		field string
		given Limit
	}{
		{"StoreBytes", c.StoreBytes}, {"ArtefactEntries", c.ArtefactEntries}, {"ArtefactBytes", c.ArtefactBytes}, {"CPUConstantsMiB", c.CPUConstantsMiB},
		{"GPUConstantsMiB", c.GPUConstantsMiB}, {"SessionBytes", c.SessionBytes},
	} {
		if err := l.given.Validate(); err != nil {
			errs = append(errs, &fault.Error{Op: "kiln: open", Key: l.field, Err: err})
		}
	}
	if err := c.Store.Validate(); err != nil {
		errs = append(errs, &fault.Error{Op: "kiln: open", Key: "Store", Err: err})
	}
	if c.StoreRequired && c.Artefacts != nil {
		errs = append(errs, fault.Invalidf("kiln: open", "StoreRequired with Artefacts: a cache that is brought brings its store"))
	}
	if limit, err := env.ParseMemoryLimit(c.MemoryLimit); err == nil && c.Artefacts != nil && (limit.Auto || limit.Bytes > 0) {
		errs = append(errs, fault.Invalidf("kiln: open", "MemoryLimit with Artefacts: what a cache that is brought holds is not counted; bound it by its Config.Bytes"))
	}
	if c.StoreRequired && (c.Store.ReadOnly || len(c.Store.Off) > 0) {
		errs = append(errs, fault.Invalidf("kiln: open", "StoreRequired with Store.ReadOnly or Store.Off, for which nothing is stored: leave out either"))
	}
	if _, err := env.ParseMemoryLimit(c.MemoryLimit); err != nil && c.MemoryLimit != "" {
		errs = append(errs, &fault.Error{Op: "kiln: open", Key: "MemoryLimit", Err: err})
	}
	if c.Workers < 0 || c.Workers > mostWorkers {
		errs = append(errs, fault.Invalidf("kiln: open", "Workers is %d: want 0 to %d", c.Workers, mostWorkers))
	}
	return errors.Join(errs...)
}

// settings is the environment with what the config says over it.
func (c Config) settings() env.Settings {
	lookup := env.Lookup(c.Lookup)
	if lookup == nil {
		lookup = env.Process()
	}
	s := env.Read(lookup)
	over := func(at *env.Setting[limit.Limit], given Limit) {
		if given.Given() {
			*at = at.Override(given)
		}
	}
	over(&s.ArtefactCapacity, c.ArtefactEntries)
	over(&s.StoreCapacity, c.StoreBytes.Or(c.Store.Capacity))
	if dir := cmp.Or(c.StoreDir, c.Store.Dir); dir != "" {
		s.StoreDir = s.StoreDir.Override(dir)
	}
	for _, kind := range []struct {
		at    *env.Setting[env.Constants]
		given Limit
	}{{&s.CPUConstants, c.CPUConstantsMiB}, {&s.GPUConstants, c.GPUConstantsMiB}} {
		if kind.given.Given() {
			*kind.at = kind.at.Override(env.Constants{Capacity: kind.given, Policy: kind.at.Value.Policy})
		}
	}
	if c.DriverCaches {
		s.DriverCaches = s.DriverCaches.Override("1")
	}
	if c.Workers != 0 {
		s.Workers = s.Workers.Override(env.Workers(c.Workers))
	}
	return s
}

// environment logs what is wrong with the environment, or gives it as an error if
// that is what the environment asks for. The names of the variables are known of the
// process's own environment alone.
func (r *Runtime) environment() error {
	var names []string
	if r.cfg.Lookup == nil {
		names = env.Names()
	}
	var errs []error
	lines, strict := env.Wrong(r.settings, names)
	for _, line := range lines {
		if errs = append(errs, fault.Invalidf("kiln: environment", "%s", line)); !strict {
			r.logger.Warn("kiln: environment", "refused", line)
		}
	}
	if strict {
		return errors.Join(errs...)
	}
	return nil
}

func constantsConfig(s env.Settings, listen func(Event), linger time.Duration, logger *slog.Logger) constants.Config {
	cfg := constants.Config{Linger: linger, Logger: logger}
	if listen != nil {
		cfg.Listen = func(e constants.Event) { listen(constant(e)) }
	}
	for kind, set := range map[constants.Kind]env.Constants{constants.CPU: s.CPUConstants.Value, constants.GPU: s.GPUConstants.Value} {
		cfg.Capacity[kind] = set.Capacity
		if set.Policy == env.Cost {
			cfg.Policy[kind] = constants.Cost
		}
	}
	return cfg
}
