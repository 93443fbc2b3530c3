package artefacts

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/recency"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/limit"
)

// Cache holds artefacts by key. Safe for concurrent use.
type Cache struct {
	cfg      Config
	log      *slog.Logger
	debug    bool // the log takes what is for debugging
	table    *table.Table[entry]
	uses     *recency.Log[node]
	capacity atomic.Pointer[capacity]
	counters counters
	blobless sync.Map // backends that gave no blob to store, which was told

	overleased atomic.Bool // that was so at some time (SPEC C13)

	state *state // the actor's, but for its gauges
	shell shell
	ref   *actors.Ref[message]
	leave func() // the memory limit

	floors floors // admitted; the core's tenants follow
}

type capacity struct{ entries, bytes limit.Limit }

// Open starts a cache. It must be closed. A negative capacity is ErrInvalid.
func Open(cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Entries = cfg.Entries.Or(limit.Of(DefaultEntries))
	cfg.Bytes = cfg.Bytes.Or(limit.Unlimited)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.lend == nil {
		cfg.lend = actors.Go
	}
	c := &Cache{cfg: cfg, table: table.New[entry](cfg.Hash)}
	c.log = guard.Logger(cfg.Logger, actors.Go) // what Close waits for is in the zone when it logs
	c.counters.init()
	c.debug = c.log.Enabled(context.Background(), slog.LevelDebug)
	c.log.Debug("artefacts: opened", "entries", cfg.Entries.String(), "bytes", cfg.Bytes.String())
	c.state = newState(c.table, cfg.Entries, cfg.Bytes)
	c.publishCapacity()
	c.floors.of, c.floors.bytes = make(map[string]int64), cfg.Bytes
	c.uses = recency.NewLog[node](func() { c.ref.Tell(drain{}) })
	c.shell.init(c)
	c.ref = actors.Spawn(actors.Config{Name: "artefacts", Logger: c.log}, c.shell.turn)
	if cfg.stop != nil {
		*cfg.stop = func() { c.ref.Tell(stopping{}) }
	}
	c.leave = cfg.memory.Join(pressure.Room{Rank: pressure.Artefacts, Offer: c.offerUnused, Shrink: c.shrinkUnused})
	return c, nil
}

// Lookup is the hit path without a lease: an uncounted reference to a resident
// artefact. It counts as a hit and as a use without an owner, and does not allocate.
// It reads no clock: a listener is told a duration of 0. It does not find an artefact
// that was evicted while it is leased; Get and Peek do (SPEC C13).
func (c *Cache) Lookup(key string) (Ref, bool) {
	n := c.table.Lookup(key, 0)
	if n == nil {
		return Ref{}, false
	}
	c.uses.Note(n, 0)
	if c.cfg.Listen != nil {
		c.tell(nil, key, Outcome{Event: Hit})
	}
	return Ref{c, n}, true
}

// Get gives a lease on the artefact of r.Key: the resident one, that of a flight
// under way, or a new one by the store or r.Create. At most one flight a key
// runs at a time. The error is the creator's, the context's, or one of the
// sentinels of this package. On an error nothing was cached.
func (c *Cache) Get(ctx context.Context, r Request) (*Lease, Outcome, error) {
	const op = "artefacts: get"
	if err := r.check(op); err != nil {
		return nil, Outcome{}, err
	}
	if r.Create == nil {
		return nil, Outcome{}, fault.Invalidf(op, "no creator: want a function that makes the artefact")
	}
	if r.Unhashable != "" {
		return c.await(ctx, op, &call{Request: r, kind: lone})
	}
	if l, o, ok := c.hit(ctx, &r); ok {
		return l, o, nil
	}
	return c.await(ctx, op, &call{Request: r, kind: normal})
}

// Force always runs r.Create, joins nothing and is not joined. A resident and a
// stored artefact of the key stay as they were; the new one is the caller's
// alone, freed when the lease ends (SPEC C6).
func (c *Cache) Force(ctx context.Context, r Request) (*Lease, Outcome, error) {
	const op = "artefacts: force"
	if err := r.check(op); err != nil {
		return nil, Outcome{}, err
	}
	if r.Create == nil {
		return nil, Outcome{}, fault.Invalidf(op, "no creator: want a function that makes the artefact")
	}
	return c.await(ctx, op, &call{Request: r, kind: lone})
}

// Peek gives the artefact if it is resident, waits for it if it is being made,
// and creates nothing: otherwise the lease is nil, without an error, and the
// outcome is a Miss with its reason. A peek refreshes recency but is no event,
// and credits no owner; the reason of a miss is counted.
func (c *Cache) Peek(ctx context.Context, key string) (*Lease, Outcome, error) {
	const op = "artefacts: peek"
	r := Request{Key: key}
	if err := r.check(op); err != nil {
		return nil, Outcome{}, err
	}
	if n := c.table.Lookup(key, 0); n != nil && n.Value.cell.Pin() {
		c.usedUncounted(n)
		return c.lease(n), Outcome{Event: Hit}, nil
	}
	return c.await(ctx, op, &call{Request: r, kind: peek})
}

func (r *Request) check(op string) error {
	if r.Key == "" {
		return fault.Invalidf(op, "the key is empty: want the canonical key of the artefact")
	}
	if r.Part == r.Key || r.Whole == r.Key {
		return fault.Invalidf(op, "the artefact is a part of itself: want another key as Part and Whole, or none")
	}
	return nil
}

// hit gives a lease on a resident artefact.
func (c *Cache) hit(ctx context.Context, r *Request) (*Lease, Outcome, bool) {
	n := c.table.Lookup(r.Key, 0)
	if n == nil {
		return nil, Outcome{}, false
	}
	var start time.Time
	if c.cfg.Listen != nil {
		start = c.cfg.Now()
	}
	inner := nested(ctx) // user code: before there is a pin to lose
	if !n.Value.cell.Pin() {
		return nil, Outcome{}, false
	}
	l := c.lease(n)
	return l, c.wasHit(inner, r, l, start), true
}

// wasHit notes, counts and tells a hit. start is 0 while nobody listens.
func (c *Cache) wasHit(inner bool, r *Request, l *Lease, start time.Time) Outcome {
	n := l.Ref().n
	if credit(&n.Value.users, r.Owner) {
		c.ref.Tell(credited{n, r.Owner})
	}
	o := Outcome{Event: Hit}
	if !start.IsZero() {
		o.Duration = c.since(start)
	}
	if inner {
		o.Event = NestedHit
		c.usedUncounted(n)
		c.ended(l, r.Key, o)
		return o
	}
	c.uses.Note(n, 0)
	if c.cfg.Listen != nil {
		c.tell(l, r.Key, o)
	}
	return o
}

// usedUncounted notes a use that is no hit.
func (c *Cache) usedUncounted(n *node) {
	c.uses.Note(n, 0)
	c.counters.unhit.Add(1)
}

// await brings a call that was no hit to its end: through the actor to a flight,
// and to the flight's end.
func (c *Cache) await(ctx context.Context, op string, call *call) (*Lease, Outcome, error) {
	start := c.cfg.Now()
	l, o, err := c.settleCall(ctx, call, start)
	if o.Event == Hit || o.Event == NestedHit {
		return l, o, nil // told already
	}
	o.Duration = c.since(start)
	if err != nil {
		o.Event = Failed
		err = &fault.Error{Op: op, Key: call.Key, Backend: call.Backend, Err: wasClosed(err)}
	}
	if call.kind != peek {
		c.ended(l, call.Key, o)
	} else if o.Reason != "" {
		c.counters.reason(o.Reason)
	}
	return l, o, err
}

func (c *Cache) settleCall(ctx context.Context, call *call, start time.Time) (*Lease, Outcome, error) {
	if call.kind == lone && flight.Within(ctx, c, call.Key) {
		return nil, Outcome{}, fault.ErrCycle // it joins nothing, so only depth would end it
	}
	call.cache = c
	inner := nested(ctx)
	if err := call.storable(ctx); err != nil {
		return nil, call.failure(err), err
	}
	if _, err := flight.Ride(ctx, call); err != nil {
		return nil, call.failure(err), err
	}
	o := Outcome{Event: Joined}
	switch call.role {
	case missing:
		return nil, Outcome{Event: Miss, Reason: call.reason}, nil
	case found:
		l := c.lease(call.n)
		if call.kind == peek {
			c.usedUncounted(call.n)
			return l, Outcome{Event: Hit}, nil
		}
		if c.cfg.Listen == nil {
			start = time.Time{}
		}
		return l, c.wasHit(inner, &call.Request, l, start), nil
	case started:
		o = call.n.Value.origin
	}
	return c.lease(call.n), o, nil
}

// storable finds out what keeps the artefact of a call that could be stored from that.
func (k *call) storable(ctx context.Context) (err error) {
	if ask := k.cache.cfg.storable; ask != nil && k.kind == normal && k.given == nil && k.Load != nil {
		k.barred, k.bars, err = ask(ctx, &k.Request, false)
	}
	return err
}

// since is the time that has passed; 0 where the clock was set back meanwhile.
func (c *Cache) since(start time.Time) time.Duration { return max(0, c.cfg.Now().Sub(start)) }

// Settle waits until the store writes that are under way when it is called have
// ended, or for the context (SPEC P18). Called by what such a write calls, a Blob or a
// Free, it does not wait for itself, but answers ErrCycle.
func (c *Cache) Settle(ctx context.Context) error {
	if c.shell.writing.Here() {
		return &fault.Error{Op: "artefacts: settle", Err: fault.ErrCycle}
	}
	over, err := actors.Ask(ctx, c.ref, func(r actors.Reply[chan struct{}]) message { return &settle{reply: r} })
	if err == nil {
		select {
		case <-over:
		case <-ctx.Done():
			err = guard.Ended(ctx)
		}
	}
	if err != nil {
		return &fault.Error{Op: "artefacts: settle", Err: err}
	}
	return nil
}

// Close ends the cache: callers that wait get the value or ErrClosed at once,
// creators' contexts end, and Close waits for them, for store writes and for
// frees. The context stops the waiting only; the closing goes on. Leases stay
// usable until they end. Closing again waits again. Called by a creator, a Load, a Free, by
// Evicted or by the log's handler, or with the context of a creator, it does not wait for
// itself, but answers ErrCycle at once; the closing goes on.
func (c *Cache) Close(ctx context.Context) error {
	c.leave()
	c.floors.close()
	c.ref.Tell(closing{})
	if c.shell.zone.Here() || flight.Inside(ctx, c) { // ctx is the user's code
		return &fault.Error{Op: "artefacts: close", Err: fault.ErrCycle}
	}
	select {
	case <-c.ref.Stopped(): // the actor stops itself after the last job
		return nil
	case <-ctx.Done():
		return &fault.Error{Op: "artefacts: close", Err: guard.Ended(ctx)}
	}
}
