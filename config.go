package kiln

import (
	"errors"
	"log/slog"

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

// Config of a Runtime. The zero value is usable: it follows the environment.
type Config struct {
	ArtefactEntries Limit // default ONEDNN_PRIMITIVE_CACHE_CAPACITY, else 1024
	ArtefactBytes   Limit // default unlimited
	CPUConstants    Limit // MiB on each device; default ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY, else unlimited
	GPUConstants    Limit

	// Store keeps compiled artefacts over restarts: where, within which bounds,
	// how durable, whom it trusts. Store.Dir defaults to KILN_STORE_DIR, else no
	// store; Store.Capacity, in bytes, to KILN_STORE_CAPACITY MiB, else 1 GiB;
	// Store.Logger to Logger. Store.Identity is asked when the first artefact of a
	// backend is; it defaults to that of the first device, of the backend that
	// Executor was given (KILN_CPU_ISA: cpu.New) or else of the registered one. A
	// store that cannot be used is logged and gone without, unless StoreRequired
	// makes it an error of Open, as it does a directory that nobody names.
	Store         blobstore.Config
	StoreRequired bool

	// SessionBytes is what all sessions may hold together, each beside its own
	// capacity; default unlimited. A session that finds it used up has those give
	// whole groups that hold more above their floors (sessioncache.Config.Floor).
	SessionBytes Limit
	// MemoryLimit is what values of sessions, artefacts and constants, and the
	// blobs that the store keeps in memory, may take together: off, auto (0.8 of
	// what the control group or the machine has) or MiB; default
	// KILN_MEMORY_LIMIT, else off. Above it the cheapest to make again go, a byte,
	// constants last.
	MemoryLimit string

	Workers int // of each device; default KILN_WORKERS, else one a core

	// Artefacts, if not nil, is used in place of a cache that the runtime opens
	// for itself; the runtime leaves it open. ArtefactEntries, ArtefactBytes and
	// Store are then not heeded.
	Artefacts *artefacts.Cache

	Compiling func(gpuexec.CompileEvent)       // told of compiles that take long
	Lookup    func(name string) (string, bool) // the environment, read once by Open; nil = the process's
	Logger    *slog.Logger                     // nil = silent
}

// validate names every capacity that is none, as ErrInvalid.
func (c Config) validate() error {
	var errs []error
	for _, l := range []struct {
		field string
		given Limit
	}{
		{"ArtefactEntries", c.ArtefactEntries}, {"ArtefactBytes", c.ArtefactBytes}, {"CPUConstants", c.CPUConstants},
		{"GPUConstants", c.GPUConstants}, {"SessionBytes", c.SessionBytes},
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
	if c.Workers < 0 {
		errs = append(errs, fault.Invalidf("kiln: open", "Workers is %d: want 0 or more", c.Workers))
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
	over(&s.StoreCapacity, inMiB(c.Store.Capacity))
	if c.Store.Dir != "" {
		s.StoreDir = s.StoreDir.Override(c.Store.Dir)
	}
	for _, kind := range []struct {
		at    *env.Setting[env.Constants]
		given Limit
	}{{&s.CPUConstants, c.CPUConstants}, {&s.GPUConstants, c.GPUConstants}} {
		if kind.given.Given() {
			*kind.at = kind.at.Override(env.Constants{Capacity: kind.given, Policy: kind.at.Value.Policy})
		}
	}
	if c.Workers != 0 {
		s.Workers = s.Workers.Override(env.Workers(c.Workers))
	}
	return s
}

// inMiB is a capacity in bytes as the settings show it, rounded up.
func inMiB(bytes Limit) Limit {
	if n, counted := bytes.Value(); counted {
		return LimitOf(n>>20 + min(1, n&(1<<20-1)))
	}
	return bytes
}

func constantsConfig(s env.Settings, logger *slog.Logger) constants.Config {
	cfg := constants.Config{Logger: logger}
	for kind, set := range map[constants.Kind]env.Constants{constants.CPU: s.CPUConstants.Value, constants.GPU: s.GPUConstants.Value} {
		cfg.Capacity[kind] = set.Capacity
		if set.Policy == env.Cost {
			cfg.Policy[kind] = constants.Cost
		}
	}
	return cfg
}
