package pipelinefile

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/internal/lease"
)

// driverSide is the driver with its own cache, of which there is one at a time.
//
// Taking in a blob never changes the cache that builds use: the blob becomes a
// new cache, the present one is merged into it, and it takes over. So a driver
// that fails half-way leaves the present one as it was (SPEC V5), no build waits,
// and the rule that nobody may use what is merged into holds by itself.
type driverSide struct {
	driver    Driver
	effect    Effect // of the quirk table
	id        layout.Identity
	serial    token // held for each call where calls are serialised, else nil
	replacing token // who is about to change the present cache
	retire    func(what string, release func())

	mu struct {
		sync.Mutex
		closed  bool
		present *shared // nil = none
		known   [][sha256.Size]byte
	}
}

// shared is a driver cache and who uses it.
type shared struct {
	cell  lease.Cell
	cache DriverCache
	used  bool // a build had it; under driverSide.mu
}

// mostKnown bounds how many blobs are remembered as contained in the present
// cache: those of the files that a process loads and saves, with room.
const mostKnown = 32

func (d *driverSide) open(ctx context.Context, cfg Config, retire func(string, func())) error {
	d.driver, d.id, d.effect = cfg.Driver, cfg.Identity.layout(), effectOn(&cfg.Identity, cfg.Quirks)
	d.retire = retire
	d.replacing = newToken()
	if d.effect == Serialise {
		d.serial = newToken()
	}
	if d.effect == Off {
		return nil
	}
	s, err := d.make(ctx, nil)
	d.mu.present = s
	return err
}

// calling runs a call of the driver: alone, where that is necessary.
func (d *driverSide) calling(ctx context.Context, call func() error) error {
	if d.serial == nil {
		return guard.Guarded(call)
	}
	if d.inside(ctx) {
		return fault.ErrCycle
	}
	if err := d.serial.take(ctx); err != nil {
		return err
	}
	defer d.serial.giveBack()
	return guard.Guarded(call)
}

// inside reports whether ctx is that of a call of the driver which holds the turn that
// this one would wait for.
func (d *driverSide) inside(ctx context.Context) bool {
	return d.serial != nil && flight.Marked(ctx, d) != nil
}

// within is ctx for the driver, in a call of calling.
func (d *driverSide) within(ctx context.Context) context.Context {
	return flight.With(ctx, d, true)
}

// make has the driver make a cache; the caller has its one pin.
func (d *driverSide) make(ctx context.Context, blob []byte) (*shared, error) {
	s := &shared{}
	err := d.calling(ctx, func() (err error) {
		s.cache, err = d.driver.OpenCache(d.within(ctx), blob)
		if err == nil && s.cache == nil {
			err = errNothing
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.cell.Init(func() { d.retire("driver cache", s.cache.Destroy) })
	return s, nil
}

// pinned gives the present cache with a pin, or nil.
func (d *driverSide) pinned(toBuild bool) *shared {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.mu.present
	if s == nil || !s.cell.Pin() {
		return nil
	}
	s.used = s.used || toBuild
	return s
}

func (d *driverSide) build(ctx context.Context, m Module) (p Pipeline, err error) {
	var cache DriverCache // an untyped nil for the driver where there is none
	if s := d.pinned(true); s != nil {
		defer s.cell.Unpin()
		cache = s.cache
	}
	err = d.calling(ctx, func() (err error) {
		p, err = d.driver.Build(d.within(ctx), m, cache)
		if err == nil && p == nil {
			err = errNothing
		}
		return err
	})
	return p, err
}

// prepare makes the cache that is to take over with a blob in it. The caller
// holds replacing and calls adopt, or unpins it. Errors are the driver's
// refusals, or the context's.
func (d *driverSide) prepare(ctx context.Context, blob []byte) (*shared, error) {
	next, err := d.make(ctx, blob)
	if err != nil {
		return nil, err
	}
	present := d.pinned(false)
	if present == nil {
		return next, nil
	}
	defer present.cell.Unpin()
	d.mu.Lock()
	empty := !present.used
	d.mu.Unlock()
	if empty { // taken over as it is
		return next, nil
	}
	if err := d.calling(ctx, func() error { return next.cache.Merge(ctx, present.cache) }); err != nil {
		next.cell.Unpin()
		return nil, err
	}
	next.used = true
	return next, nil
}

// adopt makes next the present cache, which contains that blob.
func (d *driverSide) adopt(next *shared, blob []byte) {
	d.mu.Lock()
	old := d.mu.present
	closed := d.mu.closed
	if closed {
		old = next
	} else {
		d.mu.present = next
		next.used = true // it holds what no other does
		d.knowLocked(blob)
	}
	d.mu.Unlock()
	if old != nil {
		old.cell.Unpin()
	}
}

func (d *driverSide) knowLocked(blob []byte) {
	sum := sha256.Sum256(blob)
	if slices.Contains(d.mu.known, sum) {
		return
	}
	if len(d.mu.known) == mostKnown {
		d.mu.known = slices.Delete(d.mu.known, 0, 1)
	}
	d.mu.known = append(d.mu.known, sum)
}

// holds reports whether the present cache contains this blob for certain.
func (d *driverSide) holds(blob []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.mu.known, sha256.Sum256(blob))
}

// takeIn adds a blob to the present cache, unless it is in it.
func (d *driverSide) takeIn(ctx context.Context, blob []byte) error {
	if d.holds(blob) {
		return nil
	}
	if err := d.replacing.take(ctx); err != nil {
		return err
	}
	defer d.replacing.giveBack()
	next, err := d.prepare(ctx, blob)
	if err != nil {
		return err
	}
	d.adopt(next, blob)
	return nil
}

// blob asks the driver for the content of the present cache; nil without an
// error if there is none.
func (d *driverSide) blob(ctx context.Context) (blob []byte, err error) {
	s := d.pinned(false)
	if s == nil {
		return nil, nil
	}
	defer s.cell.Unpin()
	err = d.calling(ctx, func() (err error) {
		blob, err = s.cache.Blob(ctx)
		return err
	})
	if err != nil || len(blob) == 0 {
		return nil, err
	}
	if miss := layout.CheckBlob(blob, &d.id); miss != (layout.Miss{}) {
		return nil, fmt.Errorf("%w: the driver's own blob has a header that does not fit: %s", fault.ErrRefused, miss)
	}
	d.mu.Lock()
	d.knowLocked(blob)
	d.mu.Unlock()
	return blob, nil
}

// close lets go of the present cache: its last user destroys it.
func (d *driverSide) close() {
	d.mu.Lock()
	s := d.mu.present
	d.mu.present, d.mu.closed = nil, true
	d.mu.Unlock()
	if s != nil {
		s.cell.Unpin()
	}
}
