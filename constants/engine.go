package constants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/zone"
	"github.com/kiln-cache/kiln/limit"
)

// Engine is the cache of one engine kind, device index and context.
// Safe for concurrent use.
type Engine struct {
	cache   *Cache
	kind    Kind
	index   int
	context string
	ref     *actors.Ref[message]
	shell   *shell

	resident, reserved, entries, leased atomic.Int64

	promises struct { // of which the listener is to be told, and of removals
		sync.Mutex
		over bool // it is told of removals only
		bin  lease.Bin[Event]
	}

	once sync.Once
	gone chan struct{} // closed when Close has ended
	zone zone.Zone     // callbacks, Frees and the handler of the log, which it waits for
	log  *slog.Logger
}

// Options of one GetOrAdd. The zero value is usable.
type Options struct {
	Cost    time.Duration // what it takes to compute, for the policy Cost; at least 0
	Removed func(Removal) // called once, when a tensor that this call's owner delivers first stops being resident
	CanOwn  bool          // the caller can compute: if the owner that it waits for gives up, it becomes the owner
	Linger  time.Duration // Config.Linger for this call of Get; 0 = that, negative = none
}

// Outcome of GetOrAdd: exactly one field is set.
type Outcome struct {
	Lease  *Lease   // hit
	Owner  *Promise // the caller is the owner and must deliver
	Bypass Bypass   // not cached, for this reason
}

func newEngine(c *Cache, kind Kind, index int, context string, capacity int64, policy Policy) *Engine {
	e := &Engine{cache: c, kind: kind, index: index, context: context, gone: make(chan struct{})}
	e.shell = &shell{e: e, state: newState(c.cfg.Hash, capacity, policy)}
	e.shell.state.runs.counts = &c.counters.again
	e.zone.Up = &c.zone
	lend := e.zone.Lend(actors.Go)
	left := e.zone.Lend(c.cfg.lend)
	e.shell.let = func(n *node) {
		if n.Value.cell.Drop() {
			left(func() { guard.Call(n.Value.cell.Free, e.failed) })
		}
	}
	e.log = guard.Logger(c.cfg.Logger, actors.Go) // what Close waits for is in the zone when it logs
	e.shell.gone.Init(lend, e.shell.letGo, e.failed)
	e.promises.bin.InOrder = true
	e.promises.bin.Init(lend, func(told Event) { e.tellListener(told, nil) }, e.failed)
	e.shell.idle.Init(lend, func(n *node) { n.Value.cell.Unpin() }, e.failed)
	e.ref = actors.Spawn(actors.Config{Name: "constants " + e.String(), Logger: e.log}, e.shell.handle)
	return e
}

// String is kind:index, with the context behind it if there is one.
func (e *Engine) String() string {
	if e.context == "" {
		return fmt.Sprintf("%s:%d", e.kind, e.index)
	}
	return fmt.Sprintf("%s:%d/%s", e.kind, e.index, e.context)
}

func (e *Engine) tell(m message) { e.ref.Tell(m) }

// Lookup is the hit path of GetOrAdd: a lease if the tensor is resident. It does not
// find a tensor that was evicted while it is leased; GetOrAdd and Get do (SPEC C13).
func (e *Engine) Lookup(key Key) (*Lease, bool) {
	start := e.clock()
	l, ok := e.lookup(key)
	if ok && e.cache.cfg.Listen != nil {
		e.event(start, Event{Context: context.Background(), Key: key, Hit: true, Cost: l.cost()}, Outcome{Lease: l})
	}
	return l, ok
}

func (e *Engine) lookup(key Key) (*Lease, bool) {
	n := e.shell.state.table.Lookup(key.ID, key.Backend)
	if n == nil || !n.Value.cell.Pin() {
		return nil, false
	}
	if n.Value.gone.Load() { // evicted meanwhile, and perhaps not kept apart for a lease
		unpin(n)
		return nil, false
	}
	n.Value.hits.Add(1)
	return newLease(n), true
}

// GetOrAdd gives the tensor of a key, for which it may wait until its owner has
// computed it; or makes the caller its owner; or says why it is not cached. bytes
// is its size on the device, 0 to 2^48, for the case that the caller becomes the owner.
// The key alone says which tensor it is: a caller with the key of a tensor that is
// there, or is being computed, gets that one, whatever it was made from and however
// many bytes it has. So a key must change with the content: Content and Versioned
// make such keys. Errors: ErrInvalid, ErrClosed, ErrCycle, the context's, and the one
// that the owner failed with.
func (e *Engine) GetOrAdd(ctx context.Context, key Key, bytes int64, opts Options) (Outcome, error) {
	told := Event{Context: ctx, Key: key}
	start := e.clock()
	out, err := e.getOrAdd(&told, bytes, opts, true)
	told.Err = err
	e.event(start, told, out)
	return out, err
}

// getOrAdd is GetOrAdd, and says in told how the call was answered; watch says that
// the end of its context ends an ownership, too.
func (e *Engine) getOrAdd(told *Event, bytes int64, opts Options, watch bool) (Outcome, error) {
	out, joined, err := e.get(told.Context, told.Key, bytes, opts, watch)
	err = e.ended("get", told.Key, err)
	if out.Bypass != "" {
		e.cache.counters.bypass(out.Bypass)
	}
	told.Joined, told.Hit, told.Owner, told.Bypass = joined, out.Lease != nil && !joined, out.Owner != nil, out.Bypass
	if told.Cost = opts.Cost; out.Lease != nil {
		told.Cost = out.Lease.cost()
	}
	return out, err
}

// get reports besides whether the lease is on what another caller delivered meanwhile.
func (e *Engine) get(ctx context.Context, key Key, bytes int64, opts Options, watch bool) (out Outcome, joined bool, err error) {
	if err := key.check(bytes); err != nil {
		return Outcome{}, false, err
	}
	if opts.Cost < 0 {
		return Outcome{}, false, fault.Invalidf("constants: get", "cost %v: want 0 or more", opts.Cost)
	}
	if bytes == 0 {
		if e.shell.closed.Load() {
			return Outcome{}, false, fault.ErrClosed
		}
		return Outcome{Bypass: ZeroSize}, false, nil
	}
	if l, ok := e.lookup(key); ok {
		return Outcome{Lease: l}, false, nil
	}
	p := &pending{key: key, hash: e.placed(key), bytes: bytes, cost: opts.Cost, callback: opts.Removed}
	own := e.promise(ctx, p)
	own.watched = watch
	out, joined, err = e.ask(ctx, p, opts.CanOwn)
	if out.Owner != own {
		own.cancel(nil) // its context, which nobody uses
	}
	return out, joined, err
}

func (e *Engine) ask(ctx context.Context, p *pending, canOwn bool) (out Outcome, joined bool, err error) {
	c := &asking{engine: e, pending: p, canOwn: canOwn}
	defer func() { c.giveUp(nil) }()
	if _, err = flight.Ride[*node](ctx, c); err != nil {
		return out, false, err
	}
	a := c.answer
	c.answer = answer{} // it has come to something
	if a.owner != nil {
		out, err = e.owned(a.owner)
		return out, false, err
	}
	p.owner.flight.Finish(nil, fault.ErrAbandoned, nil) // nobody will use it
	return Outcome{Lease: c.lease, Bypass: a.bypass}, a.aboard != nil, nil
}

// asking is one GetOrAdd that was no hit. It implements flight.Caller.
type asking struct {
	engine  *Engine
	pending *pending // what it would own
	canOwn  bool
	answer  answer // the last one, as long as the caller has not left
	lease   *Lease
}

// Ask asks the actor, unless it called the caller: that has become the owner when the
// one before gave up, or would have if there were room for it.
func (c *asking) Ask(ctx context.Context) (flight.Ticket[*node], error) {
	if w := c.answer.waiter; w != nil && (w.owner != nil || w.bypass != "") {
		c.answer = answer{owner: w.owner, bypass: w.bypass}
		return flight.Ticket[*node]{}, nil
	}
	c.answer = answer{}
	a, err := actors.Ask(ctx, c.engine.ref, func(r actors.Reply[answer]) message {
		return getMsg{pending: c.pending, compute: c.canOwn, reply: r}
	})
	if err != nil {
		if errors.Is(err, fault.ErrClosed) { // else a turn may still take it up
			c.pending.owner.flight.Finish(nil, err, nil)
		}
		return flight.Ticket[*node]{}, err
	}
	c.answer, c.lease = a, a.lease
	if a.aboard == nil {
		return flight.Ticket[*node]{}, nil
	}
	if w := a.waiter; w != nil {
		return flight.Ticket[*node]{Flight: &w.line.flight, Call: w.called}, nil
	}
	return flight.Ticket[*node]{Flight: a.aboard.owner.flight}, nil
}

// Take makes the lease. Pinning cannot fail: the flight holds the tensor.
func (c *asking) Take(n *node) {
	n.Value.cell.Pin()
	c.lease = newLease(n)
}

// Leave is for a caller that left its flight before the end.
func (c *asking) Leave(flight.Ticket[*node]) { c.giveUp(c.answer.aboard) }

// giveUp tells the actor of a caller that was answered and does not use that.
func (c *asking) giveUp(left *pending) {
	if c.answer.aboard != nil {
		c.engine.tell(leaveMsg{c.pending, c.answer.waiter, left})
		c.answer = answer{}
	}
}

// owned begins an ownership on the owner's goroutine: it asks for the device
// memory that the owner will fill.
func (e *Engine) owned(o *Promise) (Outcome, error) {
	e.cache.counters.promises.Add(1)
	given := false
	defer func() {
		if !given { // its context has ended the goroutine
			o.Abandon()
		}
	}()
	if o.watched {
		o.watch()
	}
	given = true
	reserve := e.cache.cfg.Reserve
	if reserve == nil {
		return Outcome{Owner: o}, nil
	}
	var free func()
	out := Outcome{Owner: o}
	guard.Guard(func() (err error) {
		free, err = reserve(e.kind, e.index, o.pending.bytes)
		return err
	}, func(err error) {
		if err != nil { // also when the goroutine is on its way out
			o.refused = true
			o.Abandon()
			e.log.Warn("constants: device memory", "engine", e.String(), "bytes", o.pending.bytes, "error", err)
			out = Outcome{Bypass: DeviceRefused}
		}
	})
	if free != nil {
		o.memory.free.Store(&free)
		if o.over.Load() { // cancelled meanwhile
			o.memory.release(e)
		}
	}
	return out, nil
}

// Value is a tensor that the function given to Get has made.
type Value struct {
	Any   any
	Bytes int64  // as declared
	Free  func() // nil = nothing
}

// Get gives the tensor of a key, which it finds by the key alone, as GetOrAdd does. If
// there is none, compute makes it, on the goroutine of the caller that becomes the owner
// or bypasses the cache. A panic in it becomes an error for every
// waiter. The context of an owner's compute goes on for Config.Linger after ctx, and
// what it makes after that is kept like any other tensor. cached reports whether the
// tensor is shared through the cache: an artefact that is built with it must record
// that (SPEC T9). The lease of a tensor that is not cached frees it.
func (e *Engine) Get(ctx context.Context, key Key, bytes int64, opts Options, compute func(context.Context) (Value, error)) (l *Lease, cached bool, err error) {
	if compute == nil {
		return nil, false, fault.Invalidf("constants: get", "compute is nil: want the function that makes the tensor")
	}
	opts.CanOwn = true
	told := Event{Context: ctx, Key: key}
	start := e.clock()
	defer func() { // also when compute ends the goroutine
		told.Err = err
		e.event(start, told, Outcome{Lease: l})
	}()
	// ctx is not watched: compute heeds it or does not, and nobody else computes
	// this key until it has ended (SPEC F1).
	out, err := e.getOrAdd(&told, bytes, opts, false)
	if err != nil || out.Lease != nil {
		return out.Lease, err == nil, err
	}
	own, end := ctx, guard.Context(ctx)
	if out.Owner != nil {
		own = out.Owner.Context()
	}
	var v Value
	announced := e.cache.cfg.slow.Begin(key.ID)
	guard.Guard(func() (err error) {
		if out.Owner != nil { // asks ctx, which may end the goroutine
			defer out.Owner.cancelAfter(end, max(0, cmp.Or(opts.Linger, e.cache.cfg.Linger)))()
		}
		v, err = compute(own)
		return err
	}, func(failed error) {
		announced(failed)
		if err = failed; err != nil && out.Owner != nil {
			switch {
			case context.Cause(own) == fault.ErrClosed:
				err = isClosed("the engine " + e.String())
			case errors.Is(err, context.Canceled) && end.Err() != nil:
				err = end.Err() // which may be a deadline
			}
			out.Owner.Fail(err) // also when the goroutine is on its way out
		}
	})
	if err != nil {
		return nil, false, &fault.Error{Op: "constants: compute", Key: key.ID, Err: err}
	}
	if out.Owner == nil {
		return e.uncached(v, bytes), false, nil
	}
	if l, err = out.Owner.Fulfil(v.Any, v.Bytes, v.Free); err == nil {
		return l, true, nil
	}
	e.discard(v.Free)
	return nil, false, err
}

// discard frees a value. A panic of its Free is told and goes no further.
func (e *Engine) discard(free func()) {
	if free != nil {
		guard.Call(free, e.failed)
	}
}

// uncached is a lease on a value that the cache does not have. bytes are those declared.
func (e *Engine) uncached(v Value, bytes int64) *Lease {
	n := new(node)
	n.Value.value, n.Value.bytes = v.Any, v.Bytes
	n.Value.gone.Store(true)
	e.cache.cfg.memory.Add(bytes)
	n.Value.cell.Init(func() {
		defer e.cache.cfg.memory.Add(-bytes)
		e.discard(v.Free)
	})
	return newLease(n)
}

// Remove takes a tensor out, or keeps one that is being computed from becoming
// resident, and reports whether there was one. Its leases stay usable.
func (e *Engine) Remove(ctx context.Context, key Key) (bool, error) {
	hash := e.placed(key)
	was, err := actors.Ask(ctx, e.ref, func(r actors.Reply[bool]) message { return removeMsg{key, hash, r} })
	return was, e.ended("remove", key, err)
}

// ended says of ErrClosed what was closed. Other errors it gives as they are.
func (e *Engine) ended(op string, key Key, err error) error {
	if err != fault.ErrClosed {
		return err
	}
	return &fault.Error{Op: "constants: " + op, Key: key.ID, Err: isClosed("the engine " + e.String())}
}

// placed is the hash of a key. That is user code: not in a turn.
func (e *Engine) placed(key Key) uint64 { return e.shell.state.table.Hash(key.ID) }

// Size is the resident bytes. It waits for nothing.
func (e *Engine) Size() int64 { return e.resident.Load() }

// Len is the number of resident tensors. It waits for nothing.
func (e *Engine) Len() int64 { return e.entries.Load() }

// Reserved is the bytes promised to owners. It waits for nothing.
func (e *Engine) Reserved() int64 { return e.reserved.Load() }

// Capacity is the one in force here, in MiB. It waits for nothing.
func (e *Engine) Capacity() limit.Limit { return e.cache.capacityOf(e.kind, e.index) }

// setCapacity flushes with another capacity, and gives what waits for the end of that.
func (e *Engine) setCapacity(bytes int64) (ended func() error) {
	m := capacityMsg{bytes, make(chan struct{}), make(chan error, 1)}
	e.tell(m)
	return func() error {
		select {
		case <-m.drained:
		case err := <-m.failed:
			return err
		case <-e.ref.Stopped(): // it has closed
		}
		return nil
	}
}

// Close empties the engine and takes it out of its cache. Waiters get ErrClosed,
// callbacks get Closed, and Close returns when those have run. Leases stay usable.
// Cache.Engine then makes a new engine for this device and context. ctx ends only
// the waiting; a second Close waits, too. Called by a callback, a Free, the listener
// of a removal or the handler of the log, it does not wait for itself, but answers ErrCycle at once.
func (e *Engine) Close(ctx context.Context) error {
	e.begin()
	if e.zone.Here() {
		return fault.ErrCycle
	}
	select {
	case <-e.gone:
		return nil
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

// begin has the engine close.
func (e *Engine) begin() {
	e.cache.forget(e)
	e.once.Do(func() { actors.Go(e.close) })
}

func (e *Engine) close() {
	defer close(e.gone)
	ctx := context.Background()
	drained, err := actors.Ask(ctx, e.ref, func(r actors.Reply[<-chan struct{}]) message { return closeMsg{r} })
	if err == nil {
		<-drained
		done := make(chan struct{})
		e.promises.Lock()
		e.promises.over = true
		e.promises.Unlock()
		e.shell.gone.Fence(func() { e.shell.idle.Fence(func() { e.promises.bin.Fence(func() { close(done) }) }) })
		<-done
		err = e.ref.Stop(ctx)
	}
	if err != nil {
		e.log.Error("constants: close", "engine", e.String(), "error", err)
	}
}
