package constants

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
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

	resident, reserved, entries atomic.Uint64
}

// Options of one GetOrAdd. The zero value is usable.
type Options struct {
	Cost    float64       // compute seconds, for the policy Cost
	Removed func(Removal) // called once when the tensor that the owner delivers stops being resident
	CanOwn  bool          // while waiting for an owner that gives up: make me the owner
}

// Outcome of GetOrAdd: exactly one field is set.
type Outcome struct {
	Lease  *Lease   // hit
	Owner  *Promise // the caller must deliver
	Bypass Bypass   // not cached, for this reason
}

func newEngine(c *Cache, kind Kind, index int, context string, capacity uint64, policy Policy) *Engine {
	e := &Engine{cache: c, kind: kind, index: index, context: context}
	e.shell = &shell{e: e, state: newState(c.cfg.Hash, capacity, policy)}
	e.ref = actors.Spawn(actors.Config{Name: "constants " + e.String(), Logger: c.cfg.Logger}, e.shell.handle)
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

// Lookup is the hit path of GetOrAdd: a lease if the tensor is resident.
func (e *Engine) Lookup(key Key) (*Lease, bool) {
	n := e.shell.state.table.Lookup(key.ID, key.Backend)
	if n == nil || !n.Value.cell.Pin() {
		return nil, false
	}
	return &Lease{node: n}, true
}

// GetOrAdd gives the tensor of a key, waiting for the one who computes it, or
// makes the caller its owner, or says why it is not cached. bytes is its size on
// the device. Errors: ErrInvalid, ErrClosed, ErrCycle, the context's, and what
// the owner failed with.
func (e *Engine) GetOrAdd(ctx context.Context, key Key, bytes uint64, opts Options) (Outcome, error) {
	out, err := e.getOrAdd(ctx, key, bytes, opts)
	if out.Bypass != "" {
		e.cache.counters.bypass(out.Bypass)
	}
	return out, err
}

func (e *Engine) getOrAdd(ctx context.Context, key Key, bytes uint64, opts Options) (Outcome, error) {
	if err := key.check(bytes); err != nil {
		return Outcome{}, err
	}
	if !(opts.Cost >= 0) || math.IsInf(opts.Cost, 1) {
		return Outcome{}, fault.Invalidf("constants: get", "cost %v, want 0 or more seconds", opts.Cost)
	}
	if bytes == 0 {
		if e.shell.closed.Load() {
			return Outcome{}, ErrClosed
		}
		return Outcome{Bypass: ZeroSize}, nil
	}
	if l, ok := e.Lookup(key); ok {
		return Outcome{Lease: l}, nil
	}
	p := &pending{key: key, bytes: bytes, cost: opts.Cost, callback: opts.Removed}
	a, err := actors.Ask(ctx, e.ref, func(r actors.Reply[answer]) message {
		return getMsg{ctx: ctx, pending: p, compute: opts.CanOwn, reply: r}
	})
	switch {
	case err != nil:
		return Outcome{}, err
	case a.lease != nil:
		return Outcome{Lease: a.lease}, nil
	case a.owner != nil:
		return e.owned(a.owner)
	case a.waiter != nil:
		return e.waitTurns(ctx, a.waiter, a.turn)
	case a.flight != nil:
		return e.wait(ctx, a.flight)
	}
	return Outcome{Bypass: a.bypass}, nil
}

// owned asks for the device memory that the owner will fill.
func (e *Engine) owned(o *Promise) (Outcome, error) {
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
			o.Abandon()
			e.cache.cfg.Logger.Warn("constants: device memory", "engine", e.String(), "bytes", o.pending.bytes, "error", err)
			out = Outcome{Bypass: DeviceRefused}
		}
	})
	if free != nil {
		o.memory.Store(&free)
		if o.over.Load() { // cancelled meanwhile
			o.release()
		}
	}
	return out, nil
}

func (e *Engine) wait(ctx context.Context, f *flight.Flight[*node]) (Outcome, error) {
	var l *Lease
	err := f.Wait(ctx, func(n *node) {
		n.Value.cell.Pin() // cannot fail: the flight holds it
		l = &Lease{node: n}
	})
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Lease: l}, nil
}

// waitTurns waits as one that may become the owner.
func (e *Engine) waitTurns(ctx context.Context, w *waiter, t *turn) (Outcome, error) {
	for {
		out, err := e.wait(ctx, t.flight)
		switch {
		case err == nil:
			return out, nil
		case !t.flight.Finished() || ctx.Err() != nil: // the caller gives up
			e.tell(leaveMsg{w, t})
			if own := ctx.Err(); own != nil {
				err = own // not what ended the flight at that moment
			}
			return Outcome{}, err
		case t.next == nil:
			return out, err
		case t.next.owner != nil:
			return e.owned(t.next.owner)
		case t.next.bypass != "":
			return Outcome{Bypass: t.next.bypass}, nil
		}
		t = t.next
	}
}

// Value is what Get's function makes.
type Value struct {
	Any   any
	Bytes uint64 // as declared
	Free  func() // nil = nothing
}

// Get is GetOrAdd with the function that computes: it runs on the
// caller's goroutine if the caller is the owner or bypasses the cache, and a
// panic in it becomes an error for everybody who waits. The lease ends like any
// other; of a value that is not cached it frees it. cached reports whether the
// value came from or went into the cache, which an artefact built with it must
// record (SPEC T9).
func (e *Engine) Get(ctx context.Context, key Key, bytes uint64, opts Options, compute func(context.Context) (Value, error)) (l *Lease, cached bool, err error) {
	opts.CanOwn = true
	out, err := e.GetOrAdd(ctx, key, bytes, opts)
	if err != nil || out.Lease != nil {
		return out.Lease, err == nil, err
	}
	own := ctx
	if out.Owner != nil {
		own = out.Owner.Context()
	}
	var v Value
	guard.Guard(func() (err error) {
		v, err = compute(own)
		return err
	}, func(failed error) {
		if err = failed; err != nil && out.Owner != nil {
			if context.Cause(own) == ErrClosed {
				err = ErrClosed
			}
			out.Owner.Fail(err) // also when the goroutine is on its way out
		}
	})
	if err != nil {
		return nil, false, &fault.Error{Op: "constants: compute", Key: key.ID, Err: err}
	}
	if out.Owner == nil {
		return e.uncached(v), false, nil
	}
	if l, err = out.Owner.Fulfil(v.Any, v.Bytes, v.Free); err == nil {
		return l, true, nil
	}
	if v.Free != nil {
		guard.Call(v.Free, e.failed)
	}
	if ended := ctx.Err(); ended != nil { // which is what ended the ownership
		err = ended
	}
	return nil, false, err
}

// uncached is a lease on a value that the cache does not have.
func (e *Engine) uncached(v Value) *Lease {
	n := new(node)
	n.Value.value, n.Value.bytes = v.Any, v.Bytes
	n.Value.gone.Store(true)
	n.Value.cell.Init(v.Free)
	return &Lease{node: n}
}

// Remove takes a tensor out, or keeps one that is being computed from becoming
// resident, and reports whether there was one. Who uses it may go on.
func (e *Engine) Remove(ctx context.Context, key Key) (bool, error) {
	return actors.Ask(ctx, e.ref, func(r actors.Reply[bool]) message { return removeMsg{key, r} })
}

// Size is the resident bytes. It waits for nothing.
func (e *Engine) Size() uint64 { return e.resident.Load() }

// Len is the number of resident tensors. It waits for nothing.
func (e *Engine) Len() uint64 { return e.entries.Load() }

// Reserved is the bytes promised to owners. It waits for nothing.
func (e *Engine) Reserved() uint64 { return e.reserved.Load() }

// Capacity is the one in force here, in MiB. It waits for nothing.
func (e *Engine) Capacity() limit.Limit { return e.cache.capacityOf(e.kind, e.index) }

func (e *Engine) setCapacity(ctx context.Context, bytes uint64) error {
	_, err := actors.Ask(ctx, e.ref, func(r actors.Reply[struct{}]) message { return capacityMsg{bytes, r} })
	return err
}

func (e *Engine) close(ctx context.Context) error {
	_, err := actors.Ask(ctx, e.ref, func(r actors.Reply[struct{}]) message { return closeMsg{r} })
	if err != nil {
		return err
	}
	e.shell.work.Wait()
	return e.ref.Stop(ctx)
}
