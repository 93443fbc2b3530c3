package tiers

import (
	"context"
	"errors"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/fault"
)

// DefaultMemory is the size of the memory tier in bytes where none is given.
const DefaultMemory = 64 << 20

// Config of Tiers. The zero value has a memory tier of DefaultMemory.
type Config struct {
	Memory int64 // bytes of blobs kept in memory; 0 = DefaultMemory, below 0 = none

	// Requires gives the instruction sets without which a blob of a backend that
	// was built here must not run (SPEC K7). nil = all that are present, which is
	// safe and shares least.
	Requires func(backend string) []string
}

// Tiers implements artefacts.Store on a blobstore.Store, which stays its
// opener's to close, after Close.
type Tiers struct {
	cfg    Config
	store  *blobstore.Store
	memory *memory // nil = none
}

var _ artefacts.Store = (*Tiers)(nil)

// Open puts a memory tier in front of a store.
func Open(store *blobstore.Store, cfg Config) (*Tiers, error) {
	t := &Tiers{cfg: cfg, store: store}
	if cfg.Memory < 0 {
		return t, nil
	}
	if cfg.Memory == 0 {
		cfg.Memory = DefaultMemory
	}
	var err error
	t.memory, err = newMemory(cfg.Memory)
	return t, err
}

// Close empties the memory tier. Later finds go to the store alone.
func (t *Tiers) Close(ctx context.Context) error {
	if t.memory == nil {
		return nil
	}
	return t.memory.close(ctx)
}

// Find looks for a blob and waits, within ctx, for another process of the host
// that builds it.
func (t *Tiers) Find(ctx context.Context, sub artefacts.Subject) artefacts.Found {
	c := &claim{t: t, sub: sub}
	if b, ok := t.memory.get(sub); ok {
		if t.store.Trusted(b).None() {
			t.store.Touch(b)
			return c.found(ctx, b)
		}
		t.memory.forget(sub)
	}
	b, right, miss, err := t.store.Obtain(ctx, sub.Backend, sub.Key)
	switch {
	case errors.Is(err, fault.ErrInvalid):
		return artefacts.Found{Reason: fault.KeyRefused, Field: "key"}
	case errors.Is(err, fault.ErrClosed):
		return artefacts.Found{Reason: fault.Disabled}
	case err != nil: // the context's end
		return artefacts.Found{Reason: fault.Busy}
	case miss.None():
		return c.found(ctx, b)
	case miss.Reason == fault.Disabled:
		return artefacts.Found{Reason: miss.Reason}
	}
	c.right = right
	return artefacts.Found{Reason: miss.Reason, Field: miss.Field, Claim: c}
}

// claim is what the artefact cache brings to an end.
type claim struct {
	t     *Tiers
	sub   artefacts.Subject
	right *blobstore.Claim // to build; nil = others may as well
	blob  blobstore.Blob
	leave func() // nil = nobody is inside the driver
}

// found hands out a blob, unless it killed somebody before.
func (c *claim) found(ctx context.Context, b blobstore.Blob) artefacts.Found {
	leave, miss, err := c.t.store.Enter(ctx, c.sub.Backend, b)
	if err != nil && !errors.Is(err, fault.ErrClosed) {
		return artefacts.Found{Reason: fault.Busy}
	}
	if miss.None() {
		c.blob, c.leave = b, leave
		return artefacts.Found{Blob: b.Payload, Claim: c}
	}
	c.t.memory.forget(c.sub)
	if miss.Reason == fault.Quarantined {
		// It is gone from the disk, so one process builds it anew.
		fresh, right, err := c.t.successor(ctx, c.sub, b)
		switch {
		case err != nil && ctx.Err() != nil:
			return artefacts.Found{Reason: fault.Busy}
		case fresh != nil:
			return c.found(ctx, *fresh)
		}
		c.right = right
	}
	return artefacts.Found{Reason: miss.Reason, Field: miss.Field, Claim: c}
}

// successor gives what another process has built in the place of a bad blob, or
// the claim to build it.
func (t *Tiers) successor(ctx context.Context, sub artefacts.Subject, old blobstore.Blob) (fresh *blobstore.Blob, right *blobstore.Claim, err error) {
	stored := func() bool {
		b, miss, err := t.store.Get(ctx, sub.Backend, sub.Key)
		if err == nil && miss.None() && !b.Created.Equal(old.Created) { // equal: it could not be set aside
			fresh = &b
		}
		return fresh != nil
	}
	right, err = t.store.Claim(ctx, sub.Backend, sub.Key, stored)
	if err == nil && right != nil && fresh == nil && stored() { // before the claim was ours
		right.Release()
		right = nil
	}
	return fresh, right, err
}

func (c *claim) left() {
	if c.leave != nil {
		c.leave()
		c.leave = nil
	}
}

// Loaded takes the driver's verdict.
func (c *claim) Loaded(err error) {
	c.left()
	if err == nil {
		c.t.memory.put(c.sub, c.blob)
		return
	}
	c.t.memory.forget(c.sub)
	_ = c.t.store.Refuse(context.Background(), c.blob) // closed: nothing can be set aside any more
}

// Save stores what was built.
func (c *claim) Save(ctx context.Context, blob []byte, cost time.Duration) error {
	c.left()
	requires := c.t.requires(c.sub.Backend)
	if c.right != nil {
		return c.right.Save(ctx, blob, cost, requires...)
	}
	return c.t.store.Put(ctx, c.sub.Backend, c.sub.Key, blob, cost, requires...)
}

// Abandon ends the claim with nothing saved.
func (c *claim) Abandon() {
	c.left()
	if c.right != nil {
		c.right.Release()
	}
}

func (t *Tiers) requires(backend string) []string {
	if t.cfg.Requires != nil {
		return t.cfg.Requires(backend)
	}
	id, _ := t.store.Identity(backend)
	return id.ISA
}
