package artefacts

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/pressure"
)

// making is one asking of a call, and the flight that begins with it if there is
// none to join.
type making struct {
	flight.Seats
	flight flight.Flight[*node]
	reply  actors.Reply[answer]
	call   *call
	began  time.Time
	at     *list.Element // of the flight, among those that fly
	linger time.Duration // that this caller wishes for its flight
	n      *node
	part   *node           // whose place it has; nil = none
	stored bool            // the store is asked, and told
	ctx    context.Context // the creator's
	claim  Claim           // what the landing has to save
	err    error
	unfit  func()  // frees what was built and cannot be used
	origin Outcome // how it is made; the creator's goroutine's until the landing
	ran    bool    // the creator was called, as origin
	turns  int     // that it took so far; the actor's

	mu struct {
		sync.Mutex
		kernels []*node // each pinned for the artefact
		built   bool    // a kernel was not in the layer
		over    bool
	}
}

// makingKey marks the context of a creator: the kernels asked for under it are held by what the
// creator makes.
type makingKey struct{}

// nested reports whether ctx is that of an artefact's creator. A session's own
// flight on the way here does not make a hit a nested one.
func nested(ctx context.Context) bool { return flight.Marked(ctx, makingKey{}) != nil }

// run makes the artefact, on a goroutine of its own.
func (m *making) run() {
	c := m.call.cache
	m.flight.Mark(makingKey{}, m)
	m.ctx = m.flight.Context()
	var b Built
	guard.Guard(func() (err error) {
		start := c.cfg.Now()
		b, err = c.make(m)
		took := c.since(start)
		b.Cost = cmp.Or(b.Cost, took)
		if err == nil && c.debug {
			c.log.Debug("artefacts: made", "key", fault.Printable(m.call.Key), "by", string(m.origin.Event), "took", took)
		}
		return err
	}, func(err error) {
		m.flight.Settle()
		defer c.ref.Do(landed{m}, nil) // also where the Free of a kernel ends this goroutine
		if err == nil {
			if err = b.check(); err == nil {
				err = m.unstored(&b)
			}
			if err != nil {
				m.unfit = b.Free
			}
		}
		m.finish(b, err)
	})
}

// unstored tells of what was made to be stored, and has no blob.
func (m *making) unstored(b *Built) error {
	ask := m.call.cache.cfg.storable
	if ask == nil || m.claim == nil || b.Blob != nil {
		return nil
	}
	reason, field, err := ask(m.ctx, &m.call.Request, true)
	m.origin.Reason, m.origin.Field = reason, field
	return err
}

// check refuses what no artefact takes.
func (b *Built) check() error {
	if b.Bytes < 0 || b.Bytes > pressure.MostBytes || b.Cost < 0 {
		return fault.Invalidf("artefacts: create", "the creator reported %d bytes made in %v: want 0 to 2^48 bytes, and no negative time", b.Bytes, b.Cost)
	}
	return nil
}

// finish fills in what was made, before anybody sees it.
func (m *making) finish(b Built, err error) {
	c := m.call.cache
	kernels, fromLayer := m.takeKernels()
	if m.claim != nil && (err != nil || b.Blob == nil) {
		c.guarded(m.claim.Abandon)
		m.claim = nil
	}
	e := &m.n.Value
	if err != nil {
		m.err = err
		var f *fault.Error
		if errors.As(err, &f) && f.Reason != "" {
			m.origin.Reason, m.origin.Field = f.Reason, f.Field
		}
		c.giveBack(kernels)
		return
	}
	e.value, e.bytes, e.cost, e.free, e.blob, e.requires = b.Value, b.Bytes, b.Cost, b.Free, b.Blob, b.Requires
	e.kernels, e.claim = kernels, b.claim
	if fromLayer && m.origin.Event == Miss {
		m.origin.Event = KernelHit
	}
}

// make gives the artefact by the shortest way: its blob, else its creator.
func (c *Cache) make(m *making) (Built, error) {
	k, o := m.call, &m.origin
	if k.given != nil {
		o.Event = PersistentHit
		if k.Unhashable == "" {
			o.Reason = ""
		}
		b, err := c.load(m, k.given)
		if err != nil && m.ctx.Err() == nil {
			err = rejected(k, err)
		}
		return b, err
	}
	if k.kind == normal && k.Load == nil && k.StoredKey != "" && c.cfg.Store != nil {
		o.Reason, o.Field = fault.Disabled, "blob"
		c.tellBlobless(k.Backend, nil)
	}
	if !m.stored || c.cfg.Store == nil {
		return m.create()
	}
	found := c.asked(func() Found { return c.cfg.Store.Find(m.ctx, k.subject()) })
	m.claim = found.Claim
	refused := false
	for found.Reason == "" {
		b, err := c.load(m, slices.Clone(found.Blob)) // which the store may keep
		if err == nil {
			if found.Cost > 0 {
				b.Cost = found.Cost
			}
			c.guarded(m.claim.Loaded)
			m.claim = nil
			o.Event, o.Reason, o.Field = PersistentHit, "", ""
			return b, nil
		}
		if m.ctx.Err() != nil {
			return Built{}, m.ctx.Err() // nobody wants it any more; the blob is not to blame
		}
		if !blames(err) {
			o.Reason, o.Field = fault.Degraded, ""
			c.log.Warn("artefacts: what was stored was not loaded", "key", fault.Printable(k.Key), "backend", k.Backend, "error", err)
			c.guarded(m.claim.Abandon)
			m.claim = nil
			return m.create()
		}
		o.Reason, o.Field = refusal(err)
		c.log.Warn("artefacts: what was stored was not loaded, and is set aside", "key", fault.Printable(k.Key), "backend", k.Backend, "reason", string(o.Reason), "error", err)
		refused = true
		found = c.asked(func() Found { return m.claim.Refused(m.ctx) })
	}
	if !refused && found.Reason != fault.Disabled { // without a store memory alone speaks
		o.Reason, o.Field = found.Reason, found.Field
	}
	if err := m.ctx.Err(); err != nil { // everybody left while the store was asked: begin nothing
		return Built{}, err
	}
	return m.create()
}

func (m *making) create() (Built, error) {
	c := m.call.cache
	m.ran = true
	start := c.cfg.Now()
	defer func() { c.counters.run(c.since(start)) }()
	return m.call.Create(m.ctx)
}

// asked is what the store says. One that panics has nothing (SPEC P5).
func (c *Cache) asked(ask func() Found) (f Found) {
	f = Found{Reason: fault.Degraded}
	c.guarded(func() { f = ask() })
	return f
}

// guarded calls the store, which is not to fail a request.
func (c *Cache) guarded(call func()) {
	guard.Call(call, func(err error) {
		c.counters.reason(fault.Degraded)
		c.log.Error("artefacts: store", "error", err)
	})
}

func (r *Request) subject() Subject {
	return Subject{Backend: r.Backend, Key: cmp.Or(r.StoredKey, r.Key), Identity: r.Identity}
}

// load gives a blob to the driver. Its panic is a refusal like any other, and so is
// a result that no artefact could have.
func (c *Cache) load(m *making, blob []byte) (b Built, err error) {
	c.counters.loads.Add(1)
	err = guard.Guarded(func() (err error) {
		b, err = m.call.Load(m.ctx, blob)
		return err
	})
	if err == nil {
		if err = b.check(); err != nil && b.Free != nil {
			guard.Call(b.Free, c.freeFailed(m.call.Key))
		}
	}
	return b, err
}

// rejected makes a driver's error a typed rejection (B3).
func rejected(k *call, err error) error {
	if errors.Is(err, fault.ErrGoexit) || !blames(err) {
		return err
	}
	reason, field := refusal(err)
	if !errors.Is(err, fault.ErrRefused) {
		err = fmt.Errorf("%w: %w", fault.ErrRefused, err)
	}
	return &fault.Error{Op: "artefacts: load blob", Key: k.Key, Backend: k.Backend, Reason: reason, Field: field, Err: err}
}

// blames reports whether a driver's error says something of the blob (SPEC P11): it does
// not where the device is short of something, or is not there.
func blames(err error) bool {
	others := []error{fault.ErrDeviceLost, fault.ErrUnavailable, fault.ErrTooLarge, fault.ErrOverloaded, fault.ErrClosed}
	return errors.Is(err, fault.ErrRefused) || !slices.ContainsFunc(others, func(other error) bool { return errors.Is(err, other) })
}

// refusal is the reason that a driver's error carries, or that it refused.
func refusal(err error) (fault.Reason, string) {
	var f *fault.Error
	if errors.As(err, &f) && f.Reason != "" {
		return f.Reason, f.Field
	}
	return fault.DriverRefused, ""
}

// save brings a built artefact to the store, off everybody's path.
func (s *shell) save(m *making) {
	n, claim, backend := m.n, m.claim, m.call.Backend
	m.claim = nil
	n.Value.cell.Pin()
	s.began++
	w := &saving{number: s.began}
	w.at = s.saves.PushBack(w)
	s.counters.saves.Store(int64(s.saves.Len()))
	keep := !s.state.off() // also what succeeds while the cache closes (F4)
	s.job(func() {
		defer s.ref.Tell(saved{w}) // also after user code that ends its goroutine
		s.writing.Run(func() {
			defer s.unpin(n)
			s.write(n, claim, backend, keep)
		})
	})
}

func (c *Cache) write(n *node, claim Claim, backend string, keep bool) {
	given := false
	defer func() { // also when Blob ends its goroutine
		if !given {
			c.guarded(claim.Abandon)
		}
	}()
	if !keep {
		return
	}
	ctx := context.Background()
	blob, err := blobOf(ctx, n)
	if err != nil {
		if errors.Is(err, fault.ErrUnsupported) {
			c.counters.reason(fault.Disabled)
			c.tellBlobless(backend, err)
			return
		}
		c.log.Warn("artefacts: no blob to store", "key", fault.Printable(n.Key), "error", err)
		return
	}
	given = true
	if err := guard.Guarded(func() error { return claim.Save(ctx, blob, n.Value.cost, n.Value.requires) }); err != nil {
		c.counters.reason(fault.Degraded)
		level := slog.LevelDebug // the store has told once why it takes nothing now
		if errors.Is(err, fault.ErrTooLarge) {
			level = slog.LevelWarn
		}
		c.log.Log(ctx, level, "artefacts: not stored", "key", fault.Printable(n.Key), "error", err)
	}
}

// tellBlobless tells once of a backend that gives no blobs (SPEC P17).
func (c *Cache) tellBlobless(backend string, err error) {
	if _, told := c.blobless.LoadOrStore(backend, true); told {
		return
	}
	why := []any{"backend", backend, "reason", string(fault.Disabled), "field", "blob"}
	if err != nil {
		why = append(why, "error", err)
	}
	c.log.Warn("artefacts: nothing native of this backend is stored: it gives no blobs", why...)
}
