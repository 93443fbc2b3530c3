package artefacts

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/zone"
	"github.com/kiln-cache/kiln/limit"
)

// DefaultEntries is the capacity where none is given (SPEC C1).
const DefaultEntries = 1024

// Config of a Cache. The zero value is usable.
type Config struct {
	Entries limit.Limit // artefacts, flights included; not given = DefaultEntries; 0 disables the cache and all below it
	Bytes   limit.Limit // bytes of resident artefacts; not given = unlimited; 0 as for Entries

	// Linger is how long a creator goes on when every caller that waited for it has
	// left: a caller that comes back within that time finds the artefact, or waits for
	// the rest alone. 0 = its context ends at once (SPEC F4). In a runtime the default
	// is that of kiln.Config: see kiln.Linger.
	Linger time.Duration

	Store Store // where blobs outlive the process; nil = nowhere

	Logger *slog.Logger        // nil = silent
	Now    func() time.Time    // nil = time.Now
	Hash   func(string) uint64 // places keys in memory; nil = seeded. It may be as bad as it likes

	// Listen, if not nil, is told how each call ended, hits included, on the
	// goroutine of that call. It must be cheap; if it panics, that is logged and the
	// call goes on. Without it hits are counted only and read no clock.
	Listen func(key string, o Outcome)

	// Evicted, if not nil, is told of each artefact that lost its residency and why, in
	// this order, one at a time, on a goroutine of the cache. Leases on it may go on,
	// and it may become resident again (SPEC C13). It must be cheap: while 65,536 wait
	// to be told, others are not told but counted (Stats.Untold). Close answers it ErrCycle.
	Evicted func(key string, why Cause)

	memory *pressure.Watch // the memory limit of the process; nil = none
	zone   *zone.Zone      // of whoever closes the cache; nil = nobody in particular
	lend   func(func())    // runs a Free on another goroutine, which that one waits for; nil = actors.Go
	stop   *flight.Stop    // where the cache that is opened leaves its own; nil = nowhere

	// storable, if not nil, says before the store is asked for which reason, and which field,
	// what q asks for is not stored, or loaded; or, of what was made without a Blob, that this
	// is why. Its error is the call's (SPEC P17). It may fill in q.Identity.
	storable func(ctx context.Context, q *Request, made bool) (reason fault.Reason, field string, err error)
}

func init() {
	hidden.Field(func(c *Config, w *pressure.Watch) { c.memory = w })
	hidden.Field(func(c *Config, z *zone.Zone) { c.zone = z })
	hidden.Field(func(c *Config, lend func(func())) { c.lend = lend })
	hidden.Field(func(c *Config, s *flight.Stop) { c.stop = s })
	hidden.Field(func(b *Built, c *lease.Claim) { b.claim = c })
	hidden.Field(func(c *Config, f func(context.Context, *Request, bool) (fault.Reason, string, error)) { c.storable = f })
}

// Cause says why an artefact lost its residency. Floors only decide which one goes.
type Cause string

// The causes.
const (
	ForEntries Cause = "entries" // to keep the capacity in entries
	ForBytes   Cause = "bytes"   // to keep the capacity in bytes
	ForMemory  Cause = "memory"  // the memory limit of the process took it back
	OfOwner    Cause = "owner"   // Reset of the only owner that used it
	Cleared    Cause = "cleared" // capacity 0, or Close
)

// Validate reports every mistake at once, as fault.ErrInvalid.
func (c Config) Validate() error {
	return errors.Join(named("entries", c.Entries), named("bytes", c.Bytes))
}

func named(what string, l limit.Limit) error {
	if err := l.Validate(); err != nil {
		return &fault.Error{Op: "artefacts: " + what, Err: err}
	}
	return nil
}

// Built is what a creator delivers.
type Built struct {
	Value any           // immutable; nil is a value like any other
	Bytes int64         // what it takes of Config.Bytes, 0 or more
	Cost  time.Duration // what it took to make; 0 = as measured

	// Free, if not nil, is called exactly once, after the last use (SPEC C5). It
	// may run on any goroutine and must bring the release to its device itself.
	Free func()

	// Blob, if not nil, gives the artefact as bytes that Request.Load understands.
	// It is called only while the artefact is leased.
	Blob func(context.Context) ([]byte, error)
	// Requires lists the instruction sets without which Blob must not be loaded
	// (SPEC K7); nil = not known, so all that this device has; empty = none.
	Requires []string

	claim *lease.Claim // of the maker, who finds the value while it is in use; nil = none
}

// Request asks for one artefact.
type Request struct {
	Key   string // canonical key (SPEC K1); never empty
	Owner string // who uses it, for Reset; empty = no owner

	// Create makes the artefact. Its context carries the flight's identity: it
	// must be handed on to whatever the creator asks for. It ends when nobody
	// waits any more.
	Create func(context.Context) (Built, error)

	// Load makes the artefact from a blob that Built.Blob gave; the bytes are its own. nil:
	// the artefact cannot be stored nor made from a blob. With a StoredKey it is of a
	// backend that has no blobs, which is told where there is a store (SPEC P17).
	Load func(context.Context, []byte) (Built, error)

	// Unhashable names an input of the key that the runtime could not hash. Such
	// an artefact is made for this call alone (SPEC K6).
	Unhashable string

	// Linger is Config.Linger for this request; 0 = that, negative = none. Of several
	// callers that wait for one creator the longest counts.
	Linger time.Duration

	// Part is the key of an artefact that this one contains. When this one lands, the two
	// become one entry, and the part is no longer an entry of its own; until then one
	// such flight needs no place beside the part. If the flight fails, the part stays as
	// it was. Whole is the key of an artefact that contains this one: while the whole is
	// resident, this one is not kept (SPEC D3). Empty = none. Key is neither.
	Part, Whole string

	Backend   string // the Store's folder and part of errors; may be empty
	StoredKey string // the Store's key (SPEC P3); empty = Key

	// Identity is that of the device that the artefact is for: a stored blob must fit
	// it. nil = what the Store knows of the backend. It must not change any more.
	Identity *gpuexec.Identity
}

// Event says how a call ended (SPEC C8).
type Event string

// The events of SPEC C8.
const (
	Miss          Event = "miss"           // this call's creator made it
	Hit           Event = "hit"            // it was resident
	Joined        Event = "joined"         // another call's flight made it
	PersistentHit Event = "persistent_hit" // made from a blob
	KernelHit     Event = "kernel_hit"     // made from kernels that were there
	NestedHit     Event = "nested_hit"     // resident, asked for by another key's creator
	Failed        Event = "failed"         // the call returned an error
)

var events = [...]Event{Miss, Hit, Joined, PersistentHit, KernelHit, NestedHit, Failed}

// Outcome is how one call ended.
type Outcome struct {
	Event  Event
	Reason fault.Reason // why it was no hit; empty for hits and joins
	Field  string       // what the reason concerns, where it concerns a field

	// Duration is the time the call took; 0 for hits while nobody listens.
	Duration time.Duration
}
