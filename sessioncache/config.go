package sessioncache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/pool"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/zone"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Limit is a capacity: limit.Of(n) or Unlimited. The zero Limit is "not given".
type Limit = limit.Limit

// Unlimited is no bound at all.
var Unlimited = limit.Unlimited

// LimitOf is a capacity of n, which Open and the setters refuse if negative.
func LimitOf(n int64) Limit { return limit.Of(n) }

// Pool is a number of bytes that sessions share; see Config.Pool. Make it with
// NewPool. Safe for concurrent use.
type Pool struct {
	shared   *pool.Pool
	capacity Limit
}

// NewPool makes a pool of the bytes given, which no session holds yet. A negative
// number is ErrInvalid.
func NewPool(bytes Limit) (*Pool, error) {
	shared, err := pool.New(bytes)
	if err != nil {
		return nil, err
	}
	return &Pool{shared, bytes.Or(Unlimited)}, nil
}

// Use is how many bytes the sessions hold, and how many of the pool's are spoken
// for: those, the unused parts of floors, and what is being given up for a session
// that waits. It waits for nothing.
func (p *Pool) Use() (held, spoken int64) { return p.shared.Use() }

// Floor is the part of a session that others cannot take. The session's own policy
// may evict it.
type Floor struct {
	Bytes  int64 // set aside in the pool, whether used or not
	Groups int64 // number of groups that stay, whatever other sessions need
}

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

	// Pool, if not nil, bounds the bytes that this session and others hold
	// together. A session that finds it full asks the sessions that hold more above
	// their floors than it would hold itself; these evict whole groups, by their own
	// policies. Open answers ErrTooLarge if the floors of all exceed the pool. It
	// waits for nobody: what others hold of its floor they give up soon after.
	Pool *Pool
	// Floor is the tenant's share that others cannot take; Groups and Bytes above
	// are its cap. None is needed without a Pool.
	Floor Floor

	Policy string // fifo, lru, sieve or duel; empty is duel
	Keep   string // always or worth; empty is always (SPEC S7)

	// Linger is how long a creator goes on when every caller that waited for it has
	// left. A caller that comes within that time joins it. 0 = its context ends at once
	// (SPEC F4).
	Linger time.Duration

	// Saved is what SavePolicy gave in an earlier run, so that this session
	// evicts as that one would have (SPEC S9). Empty begins anew.
	Saved []byte

	Bucket shapegroups.Bucketing // which shape is compiled for the one asked; zero is exact

	// Evicted, if not nil, is told of each group that had to go and why, in that order,
	// on a goroutine of its own. Close waits for it.
	Evicted func(compiled shapegroups.Shape, why Cause)

	Hash   func(string) uint64 // places keys in tables; nil is a seeded hash of the process
	Logger *slog.Logger        // nil is silent

	memory *pressure.Watch // the memory limit of the process; nil = none
	lend   func(func())    // runs what frees, and the end of the session, on another goroutine; nil = actors.Go
	zone   *zone.Zone      // of whoever closes the session; nil = nobody in particular
}

func init() {
	hidden.Field(func(c *Config, w *pressure.Watch) { c.memory = w })
	hidden.Field(func(c *Config, lend func(func())) { c.lend = lend })
	hidden.Field(func(c *Config, z *zone.Zone) { c.zone = z })
}

// Cause says why a group had to go.
type Cause string

// The causes.
const (
	ForGroups Cause = "groups"  // to keep the capacity in groups
	ForBytes  Cause = "bytes"   // to keep the capacity in bytes
	ForPool   Cause = "pool"    // other sessions of the pool need the bytes, or hold them
	ForMemory Cause = "memory"  // the memory limit of the process took it back
	Cleared   Cause = "cleared" // ResetAll or Close
)

// nothing is the cause where nothing is lost.
const nothing Cause = ""

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
	named := func(field string, err error) error {
		if err != nil {
			err = fmt.Errorf("%s: %w", field, err)
		}
		return err
	}
	bounds := errors.Join(named("Groups", c.Groups.Validate()), named("Bytes", c.Bytes.Validate()))
	of := Capacity{c.Groups, c.Bytes}
	if bounds != nil {
		of = Capacity{Unlimited, Unlimited}
	}
	saved := savedErr(policy.Config{Kind: kind, Keep: keep}, of.Groups, c.Saved)
	if err := errors.Join(bounds, named("Floor", c.Floor.within(of)), named("Policy", kindErr), named("Keep", keepErr), named("Saved", saved)); err != nil {
		return c, failed("open", c.Name, err)
	}
	return c, nil
}

// savedErr is what is wrong with the saved state of a policy.
func savedErr(c policy.Config, groups Limit, saved []byte) (err error) {
	if c.Groups, err = policyGroups(groups); err == nil && len(saved) > 0 {
		if _, err = policy.Load(saved, c); err != nil {
			err = fmt.Errorf("%w: want what SavePolicy gave, or nothing", err)
		}
	}
	return err
}

// within refuses a floor that is none or above the capacity.
func (f Floor) within(c Capacity) error {
	switch {
	case f.Bytes < 0 || f.Groups < 0:
		return fault.Invalidf(room+"floor", "%d bytes and %d groups: neither may be negative", f.Bytes, f.Groups)
	case !c.Bytes.Allows(f.Bytes) || !c.Groups.Allows(f.Groups):
		return fault.Invalidf(room+"floor", "the floor has %d bytes and %d groups: want no more than the capacity of %v bytes and %v groups", f.Bytes, f.Groups, c.Bytes, c.Groups)
	}
	return nil
}

// Value is what a name stands for. A session owns every value that it is given, by
// Set or by a creator; it frees one that it does not keep, too.
type Value struct {
	Any   any
	Bytes int64         // what it holds, for the byte capacity; at least 0
	Cost  time.Duration // what it took to make, for the choice of victims; at least 0
	// Free is called once, after the last use, on any goroutine; nil: there is nothing to
	// do. In it, Close and ResetAll of the same session answer ErrCycle. It must not wait
	// for a goroutine that calls them, nor for the Close of a session whose Frees may wait
	// for this one's.
	Free func()
	Key  string // the content key that it was made from; empty is none (SPEC G13)

	// Leased says that Any is leased from a cache that counts its bytes for the
	// memory limit itself. They count for the capacities all the same.
	Leased bool
}

func (v Value) validate(op, name string, o Options) error {
	if v.Bytes < 0 || v.Bytes > pressure.MostBytes || v.Cost < 0 {
		return fault.Invalidf(room+op, "value of %q: %d bytes made in %v: want 0 to 2^48 bytes, and no negative time", name, v.Bytes, v.Cost)
	}
	return another(op, name, v.Key, o.Key)
}

// Create makes the value of a name. It runs on a goroutine of its own. Its context
// has the values of the first caller's; it ends when no caller waits any more or the
// session closes. It may ask for other names and keys, with that context.
type Create = func(ctx context.Context) (Value, error)

// Lane binds a name to a worker whose artefact must not be shared (SPEC G6).
// The zero Lane is the shared one.
type Lane uint64

// Worker is the lane of worker n, counted from 0.
func Worker(n uint32) Lane { return Lane(n) + 1 }

// Options of a name that is asked for or written.
type Options struct {
	Owner string // is credited with the name, for Reset; empty is nobody
	Lane  Lane
	// Key is the content key that the value must be made from; empty is any. A
	// name remembers the key of its value, or where that has none this one. Get
	// answers ErrInvalid where the name holds a value of another key (SPEC G13).
	Key string
	// Linger is Config.Linger for this Get; 0 = that, negative = none. Of several
	// callers that wait for one creator the longest counts.
	Linger time.Duration
	// Lingers says that the creator given here lingers itself, for Linger, when its
	// context has ended: that ends later only by what another caller asks for beyond it.
	Lingers bool
}

// Event says how Get came by its value (SPEC C8).
type Event string

// The events of a session.
const (
	Hit    Event = "hit"
	Miss   Event = "miss"   // this call's creator made it
	Joined Event = "joined" // another call's creator made it
)
