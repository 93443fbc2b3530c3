package kiln

import (
	"log/slog"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/limit"
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
	Workers         int // of each device; default KILN_WORKERS, else one a core

	Compiling func(gpuexec.CompileEvent)        // told of compiles that take long
	Lookup    func(name string) (string, bool) // the environment, read once by Open; nil = the process's
	Logger    *slog.Logger                      // nil = silent
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
