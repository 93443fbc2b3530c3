package constants

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/progress"
	"github.com/kiln-cache/kiln/internal/zone"
	"github.com/kiln-cache/kiln/limit"
)

// Kind is an engine kind.
type Kind uint8

// The engine kinds.
const (
	CPU Kind = iota
	GPU
	kinds // how many
)

func (k Kind) String() string { return [...]string{"cpu", "gpu", "?"}[min(k, kinds)] }

// ParseKind reads "cpu" or "gpu".
func ParseKind(s string) (Kind, error) {
	for k := range kinds {
		if k.String() == s {
			return k, nil
		}
	}
	return 0, fault.Invalidf("constants: engine kind", "%q, want cpu or gpu", s)
}

// Policy says what happens when the capacity is reached.
type Policy string

// The policies of SPEC T4.
const (
	NoEvict Policy = "no_evict" // the newcomer is bypassed; the default
	Cost    Policy = "cost"     // least compute seconds per byte go, for what is worth more; at most 1,024 at a time
)

// Config of a Cache. The zero value is usable: unlimited, nothing evicted.
type Config struct {
	Capacity [kinds]limit.Limit // MiB, for each device of the kind; default unlimited
	Policy   [kinds]Policy      // default NoEvict
	// Reserve, if set, is asked for device memory before a caller becomes an owner;
	// after an error the call is a bypass instead (DeviceRefused). It runs on the caller's
	// goroutine. The function that it returns is called once, when the tensor is
	// freed or not delivered.
	Reserve func(kind Kind, index int, bytes int64) (func(), error)
	// Listen, if not nil, is told how each call was answered, on the caller's goroutine. On a
	// goroutine of the engine it is told, in order, of each promise that GetOrAdd gives, as
	// long as no more than 65,536 events wait to be told; and of each tensor that stops being
	// resident, after the promise of it. Of what Get computes it is told when that call is
	// answered: whoever removes it meanwhile may have the removal told first. It must be
	// cheap and safe for concurrent use, and must not wait for the cache. A panic of it is
	// logged.
	Listen func(Event)
	// Linger is how long what Get was given to compute goes on when the context of the
	// call has ended. 0 = not at all (SPEC F4).
	Linger time.Duration
	Hash   func(string) uint64 // places keys; nil = seeded
	Logger *slog.Logger        // nil = silent

	memory *pressure.Watch    // the memory limit of the process; nil = none
	spare  *pressure.Unused   // where the cache that is opened leaves its own; nil = nowhere
	slow   progress.Announcer // of what is computed; nil = nobody is told
	zone   *zone.Zone         // of whoever closes the cache; nil = nobody in particular
	lend   func(func())       // runs a Free on another goroutine, which that one waits for; nil = actors.Go
	stop   *flight.Stop       // where the cache that is opened leaves its own; nil = nowhere
}

func init() {
	hidden.Field(func(c *Config, w *pressure.Watch) { c.memory = w })
	hidden.Field(func(c *Config, s *pressure.Unused) { c.spare = s })
	hidden.Field(func(c *Config, a progress.Announcer) { c.slow = a })
	hidden.Field(func(c *Config, z *zone.Zone) { c.zone = z })
	hidden.Field(func(c *Config, lend func(func())) { c.lend = lend })
	hidden.Field(func(c *Config, s *flight.Stop) { c.stop = s })
}

// Validate joins everything that is wrong.
func (c Config) Validate() error {
	var errs []error
	for k := range kinds {
		errs = append(errs, c.Capacity[k].Validate())
		switch c.Policy[k] {
		case "", NoEvict, Cost:
		default:
			errs = append(errs, fault.Invalidf("constants: open", "policy %q of %s, want %s or %s", c.Policy[k], k, NoEvict, Cost))
		}
	}
	return errors.Join(errs...)
}

// saturated is the least number of MiB that is no bound in the C API (SPEC T2).
const saturated = 1<<44 - 1

// MiB is a capacity of n MiB; 2^44-1 and more is unlimited.
func MiB(n uint64) limit.Limit {
	if n >= saturated {
		return limit.Unlimited
	}
	return limit.Of(int64(n))
}

// settle gives an ungiven capacity its default and saturates a large one.
func settle(l limit.Limit) limit.Limit {
	if n, counted := l.Value(); counted {
		return MiB(uint64(n))
	}
	return limit.Unlimited
}

// Removal is why a tensor is no longer resident.
type Removal string

// The reasons that callbacks get (SPEC T7).
const (
	Removed Removal = "removed"
	Flushed Removal = "flush"
	Evicted Removal = "evicted"
	Closed  Removal = "closed"
)

// Bypass is why a tensor is not cached; empty if it is cached (SPEC T3).
type Bypass string

// The reasons of a bypass.
const (
	Disabled      Bypass = "disabled"
	Full          Bypass = "full"
	ZeroSize      Bypass = "zero_size"
	DeviceRefused Bypass = "device_refused"
)

// Event is how a GetOrAdd, a Get or a Lookup that found something was answered (SPEC
// C8), or that a tensor stopped being resident. Exactly one of Hit to Err says it.
type Event struct {
	Context context.Context // of the call; Background for a Lookup and a removal
	Engine  *Engine
	Key     Key

	Hit     bool    // the tensor was resident
	Owner   bool    // the caller has to deliver it, or was to in Get
	Joined  bool    // another caller delivered it meanwhile
	Bypass  Bypass  // it is not cached
	Removal Removal // it is not resident any more
	Err     error   // that the call returned

	Duration time.Duration // of the call
	Cost     time.Duration // of the tensor, as it was said
}
