package sessioncache

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kiln-cache/kiln/internal/fault"
	"github.com/kiln-cache/kiln/internal/limit"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/shapegroups/policy"
)

// Limit is a capacity: limit.Of(n) or Unlimited. The zero Limit is "not given".
type Limit = limit.Limit

// Unlimited is no bound at all.
var Unlimited = limit.Unlimited

// LimitOf is a capacity of n, which Open and the setters refuse if negative.
func LimitOf(n int64) Limit { return limit.Of(n) }

// DefaultGroups is the capacity in groups where none is given.
const DefaultGroups = 64

// Config of one session. The zero value is usable.
type Config struct {
	Name string // for logs and errors

	// Groups is the capacity in shape groups, 64 if not given. 0 disables
	// caching for the session; it does not mean "no limit" as it did in Paddle:
	// that is Unlimited.
	Groups Limit
	// Bytes is the capacity in bytes of all values, Unlimited if not given.
	Bytes Limit

	Policy string // fifo, lru, sieve or duel; empty is duel
	Keep   string // always or worth; empty is always (SPEC S7)

	// Saved is what SavePolicy gave in an earlier run, so that this session
	// evicts as that one would have (SPEC S9). Empty begins anew.
	Saved []byte

	Bucket shapegroups.Bucketing // which shape is compiled for the one asked; zero is exact

	Hash   func(string) uint64 // places keys in tables; nil is a seeded hash of the process
	Logger *slog.Logger        // nil is silent
}

// Validate gives the config with its defaults filled in, or everything that is
// wrong with it, joined, as ErrInvalid.
func (c Config) Validate() (Config, error) {
	c.Groups = c.Groups.Or(limit.Of(DefaultGroups))
	c.Bytes = c.Bytes.Or(limit.Unlimited)
	kind, kindErr := policy.ParseKind(c.Policy)
	keep, keepErr := policy.ParseKeep(c.Keep)
	c.Policy, c.Keep = string(kind), string(keep)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(c.Groups.Validate(), c.Bytes.Validate(), kindErr, keepErr); err != nil {
		return c, failed("open", c.Name, err)
	}
	return c, nil
}

// Value is what a name stands for. A session owns the values it is given, by
// Set or by a creator, in every case: one that is not kept is freed, too.
type Value struct {
	Any   any
	Bytes int64         // what it holds, for the byte capacity; at least 0
	Cost  time.Duration // what it took to make, for the choice of victims; at least 0
	Free  func()        // called once, after the last use; nil if nothing is to do
}

func (v Value) validate(op, name string) error {
	if v.Bytes < 0 || v.Cost < 0 {
		return fault.Invalidf(room+op, "value of %q: %d bytes made in %v: neither may be negative", name, v.Bytes, v.Cost)
	}
	return nil
}

// Create makes the value of a name. It runs on a goroutine of its own, with a
// context that ends when nobody waits for the value any more or the session
// closes. It may ask for other names and keys, with that context.
type Create = func(ctx context.Context) (Value, error)

// Lane binds a name to a worker whose artefact must not be shared (SPEC G6).
// The zero Lane is the shared one.
type Lane uint64

// Worker is the lane of worker n, counted from 0.
func Worker(n uint32) Lane { return Lane(n) + 1 }

// Options of a name that is written.
type Options struct {
	Owner string // who is credited with it, for Reset; empty is nobody
	Lane  Lane
}

// Event says how GetOrCreate came by its value (SPEC C8).
type Event string

// The events of a session.
const (
	Hit    Event = "hit"
	Miss   Event = "miss"   // this call's creator made it
	Joined Event = "joined" // another call's creator made it
)
