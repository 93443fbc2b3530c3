package blobstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Claim is the right to build the blob of a key, which one process of the host has
// at a time (SPEC P8). Its holder must call Save or Release. Its methods may be
// called from any goroutine, by one at a time.
type Claim struct {
	s            *Store
	backend, key string
	lease        *hostlock.Lease // nil = the host could not be asked, so that others may build as well
	builder      flight.Creator  // whose claim it is
	once         sync.Once
}

func (c *Claim) place() place { return place{c.s.home, nameOf(c.backend, c.key)} }

// Save stores the blob that was built, as Put does with the same errors, and ends
// the claim.
func (c *Claim) Save(ctx context.Context, payload []byte, cost time.Duration, requires ...string) error {
	defer c.Release()
	return c.s.Put(ctx, c.backend, c.key, payload, cost, requires...)
}

// Release ends the claim, so that another process may build. It may be called again,
// and after Save.
func (c *Claim) Release() {
	c.s.mu.Lock()
	_, mine := c.s.mu.claims[c]
	delete(c.s.mu.claims, c)
	c.s.mu.Unlock()
	c.release()
	if mine && c.s.begin("store: release") == nil {
		c.s.sweepShare(sweptByClaim)
		c.s.leave()
	}
}

func (c *Claim) release() {
	c.once.Do(func() {
		if c.lease == nil {
			return
		}
		released(c.place(), c.builder)
		if err := c.lease.Release(); err != nil {
			c.s.logOnce("release", err) // other processes pass it over after the lease time
		}
		c.s.drop()
	})
}

// Obtain gives the blob of a key, as Get does, or the claim to build it. While
// another process of the host builds it, Obtain waits until that process has stored
// the blob, gave up or stood still for Config.Lease.
//
// If the Miss is zero, Blob is the blob. Otherwise the caller builds it, and ends
// the Claim, which is nil where the store writes nothing. The error is
// fault.ErrInvalid for a bad key or backend, fault.ErrClosed, or the context's.
func (s *Store) Obtain(ctx context.Context, backend, key string) (Blob, *Claim, Miss, error) {
	b, miss, err := s.Get(ctx, backend, key)
	if err != nil || miss.None() || miss.Reason == fault.Disabled {
		return b, nil, miss, err
	}
	next, c, err := s.Succeed(ctx, backend, key, Blob{})
	if err != nil {
		return Blob{}, nil, Miss{}, err
	}
	if next != nil {
		return *next, nil, Miss{}, nil
	}
	return Blob{}, c, miss, nil
}

// Succeed is Obtain for a caller whose driver did not take the blob old: it gives
// the blob that has replaced old, or the claim to build one, or, where the store
// writes nothing, neither.
func (s *Store) Succeed(ctx context.Context, backend, key string, old Blob) (*Blob, *Claim, error) {
	if s.off || s.cfg.ReadOnly {
		return nil, nil, nil
	}
	var found *Blob
	settled := func() bool {
		b, miss, err := s.get(ctx, backend, key, true, nil)
		if err == nil && miss.None() && b.digest != old.digest {
			found = &b
		}
		return found != nil || err != nil
	}
	c, err := s.claim(ctx, backend, key, settled)
	if err != nil {
		return nil, nil, err
	}
	given := false
	defer func() {
		if c != nil && !given { // or settled has panicked
			c.Release()
		}
	}()
	if c != nil && c.lease != nil && found == nil && settled() && found != nil { // it was stored before the claim was ours
		return found, nil, nil
	}
	given = true
	return found, c, nil
}

// errCircle ends a wait for a claim whose holder waits for who waits.
var errCircle = errors.New("blobstore: circle")

// claim waits for the right to build a key. It calls settled whenever a builder has
// ended; if settled reports true, no build is needed and the Claim is nil.
func (s *Store) claim(ctx context.Context, backend, key string, settled func() bool) (*Claim, error) {
	if err := s.enter("store: claim", backend, key); err != nil {
		return nil, err
	}
	s.hold()
	defer s.drop()
	s.leave() // waiting may take as long as a build; Close ends it by cancelling s.base
	c := &Claim{s: s, backend: backend, key: key, builder: flight.CreatorOf(ctx)}
	if s.writes.broken() {
		return c, nil
	}
	asker := flight.AskerOf(ctx)
	ctx, cancel := context.WithCancelCause(guard.Context(ctx))
	defer cancel(nil)
	w := &wait{place: c.place(), asker: asker, circle: func() { cancel(errCircle) }}
	if !w.begin() {
		return c, nil // it waits for this very call, through another runtime: build as well (SPEC F5)
	}
	defer w.end()
	defer context.AfterFunc(s.base, func() { cancel(nil) })()
	lease, err := s.leases.Acquire(ctx, nameOf(backend, key), settled)
	switch {
	case s.base.Err() != nil:
		if lease != nil {
			_ = lease.Release() // on an error others pass it over after the lease time
		}
		return nil, &fault.Error{Op: "store: claim", Err: fault.ErrClosed}
	case context.Cause(ctx) == errCircle && lease == nil && err != nil:
		return c, nil // likewise, with who has it by now
	case ctx.Err() != nil && lease == nil && err != nil:
		return nil, ctx.Err()
	case err != nil: // build without asking the host rather than not at all
		s.degraded("claim", err)
		return c, nil
	case lease == nil:
		return nil, nil
	}
	c.lease = lease
	w.end() // it waits no more, not for itself either
	held(c.place(), c.builder)
	s.hold() // until its release
	s.mu.Lock()
	closed := s.mu.claims == nil || s.closed.Load()
	if !closed {
		s.mu.claims[c] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		c.release()
		return nil, &fault.Error{Op: "store: claim", Err: fault.ErrClosed}
	}
	return c, nil
}

// nameOf gives a name of 32 characters for a key, which every file system takes.
func nameOf(backend, key string) string {
	sum := sha256.Sum256([]byte(backend + "\x00" + key))
	return hex.EncodeToString(sum[:16])
}

// place is what a process can have the claim of: a key in a directory, by whatever path a
// store was opened.
type place struct{ dir, name string }

// builders are the creators of this process that have a claim, and those that wait for one:
// stores of one directory wait for each other's, and so may wait in a circle (SPEC F5).
var builders struct {
	sync.Mutex
	at map[place]*turnout
}

// turnout is who is there for one place. Under the lock of builders.
type turnout struct {
	holder flight.Creator // the zero one is nobody's
	waits  map[*wait]struct{}
}

// wait is one wait for a claim.
type wait struct {
	place  place
	asker  flight.Asker
	circle func() // called once where its edge would close a circle

	mu   sync.Mutex
	exit func() // ends the edge to the holder; nil once the wait is over
}

// turnoutLocked gives that of a place, tidyLocked forgets it where nobody is there.
func turnoutLocked(at place) *turnout {
	t := builders.at[at]
	if t == nil {
		if builders.at == nil {
			builders.at = make(map[place]*turnout)
		}
		t = &turnout{waits: make(map[*wait]struct{})}
		builders.at[at] = t
	}
	return t
}

func (t *turnout) tidyLocked(at place) {
	if len(t.waits) == 0 && t.holder == (flight.Creator{}) {
		delete(builders.at, at)
	}
}

// begin has w wait for whoever holds the claim, from now on one after the other, until end.
// It reports false, and w has ended, if that would close a circle at once.
func (w *wait) begin() bool {
	w.exit = func() {}
	builders.Lock()
	turnoutLocked(w.place).waits[w] = struct{}{}
	builders.Unlock()
	if !w.follow() {
		w.end()
		return false
	}
	return true
}

// follow has w wait for who holds the claim now, in place of the holder before. It reports
// false where that would close a circle: then w waits for none.
func (w *wait) follow() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.exit == nil {
		return true
	}
	w.exit()
	exit, ok := holderOf(w.place).Await(w.asker) // asked under w's lock: of two that follow, the later knows more
	if !ok {
		exit = func() {}
	}
	w.exit = exit
	return ok
}

func holderOf(at place) flight.Creator {
	builders.Lock()
	defer builders.Unlock()
	if t := builders.at[at]; t != nil {
		return t.holder
	}
	return flight.Creator{}
}

// end is harmless a second time.
func (w *wait) end() {
	builders.Lock()
	if t := builders.at[w.place]; t != nil {
		delete(t.waits, w)
		t.tidyLocked(w.place)
	}
	builders.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.exit != nil {
		w.exit()
		w.exit = nil
	}
}

// held tells that a creator has the claim of a place now, and released that it has it no more:
// who waits for it waits for that one.
func held(at place, by flight.Creator) {
	if by == (flight.Creator{}) {
		return
	}
	for _, w := range holds(at, func(t *turnout) bool { t.holder = by; return true }) {
		if !w.follow() {
			w.circle()
		}
	}
}

func released(at place, by flight.Creator) {
	for _, w := range holds(at, func(t *turnout) bool {
		mine := t.holder == by
		if mine {
			t.holder = flight.Creator{}
		}
		return mine
	}) {
		w.follow()
	}
}

// holds changes the holder of a place, and gives who has to know if it did.
func holds(at place, change func(*turnout) bool) (waits []*wait) {
	builders.Lock()
	defer builders.Unlock()
	t := turnoutLocked(at)
	if change(t) {
		for w := range t.waits {
			waits = append(waits, w)
		}
	}
	t.tidyLocked(at)
	return waits
}
