package tiers

import (
	"context"
	"errors"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
)

// DefaultMemory is the size of the memory tier in bytes where none is given.
const DefaultMemory = 64 << 20

// Config of Tiers. The zero value has a memory tier of DefaultMemory.
type Config struct {
	Memory int64 // bytes of blobs kept in memory; 0 = DefaultMemory, below 0 = none

	limit *pressure.Watch // the memory limit of the process; nil = none
}

func init() { hidden.Field(func(c *Config, w *pressure.Watch) { c.limit = w }) }

// Tiers implements artefacts.Store on a blobstore.Store, which stays its
// opener's to close, after Close.
type Tiers struct {
	store  *blobstore.Store
	memory *memory // nil = none
}

var _ artefacts.Store = (*Tiers)(nil)

// Open puts a memory tier in front of a store.
func Open(store *blobstore.Store, cfg Config) (*Tiers, error) {
	t := &Tiers{store: store}
	if cfg.Memory < 0 {
		return t, nil
	}
	if cfg.Memory == 0 {
		cfg.Memory = DefaultMemory
	}
	var err error
	t.memory, err = newMemory(cfg.Memory, cfg.limit)
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
	c := &claim{store: t.store, memory: t.memory, sub: sub, name: nameOf(sub)}
	if sub.Identity != nil {
		c.store = t.store.For(*sub.Identity)
	}
	if b, ok := t.memory.get(c.name); ok {
		if t.store.Reuse(b).None() {
			return c.found(ctx, b)
		}
		t.memory.forget(c.name)
	}
	b, right, miss, err := c.store.Obtain(ctx, sub.Backend, sub.Key)
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
	store  *blobstore.Store // for the device of sub
	memory *memory
	sub    artefacts.Subject
	name   string           // of sub in memory
	right  *blobstore.Claim // to build; nil = others may as well
	blob   blobstore.Blob
	leave  func() // nil = nobody is inside the driver

	refused bool // a blob before this one
}

// found hands out a blob, unless it killed somebody before.
func (c *claim) found(ctx context.Context, b blobstore.Blob) artefacts.Found {
	leave, miss, err := c.store.Enter(ctx, c.sub.Backend, b)
	if err != nil && !errors.Is(err, fault.ErrClosed) {
		return artefacts.Found{Reason: fault.Busy}
	}
	if miss.None() {
		c.blob, c.leave = b, leave
		return artefacts.Found{Blob: b.Payload, Cost: b.Cost, Claim: c}
	}
	c.memory.forget(c.name)
	if miss.Reason == fault.Quarantined {
		return c.successor(ctx, b, miss)
	}
	return artefacts.Found{Reason: miss.Reason, Field: miss.Field, Claim: c}
}

// successor gives what another process has built in the place of a blob that was
// set aside, or takes the right to build it: one process of the host does (SPEC P8).
func (c *claim) successor(ctx context.Context, old blobstore.Blob, why blobstore.Miss) artefacts.Found {
	fresh, right, _ := c.store.Succeed(ctx, c.sub.Backend, c.sub.Key, old)
	if fresh != nil {
		return c.found(ctx, *fresh)
	}
	c.right = right // nil: the context has ended, or nothing can be stored
	return artefacts.Found{Reason: why.Reason, Field: why.Field, Claim: c}
}

func (c *claim) left() {
	if c.leave != nil {
		c.leave()
		c.leave = nil
	}
}

// Loaded keeps the blob for the next time.
func (c *claim) Loaded() {
	c.left()
	c.memory.put(c.name, c.blob)
}

// Refused sets the blob aside and looks for another, once: a driver that refuses
// that, too, builds without waiting for others, whose blobs it cannot use.
func (c *claim) Refused(ctx context.Context) artefacts.Found {
	c.left()
	c.memory.forget(c.name)
	_ = c.store.Refuse(context.WithoutCancel(ctx), c.blob) // closed: nothing can be set aside any more
	why := blobstore.Miss{Reason: fault.DriverRefused}
	if c.refused {
		return artefacts.Found{Reason: why.Reason, Claim: c}
	}
	c.refused = true
	return c.successor(ctx, c.blob, why)
}

// Save stores what was built.
func (c *claim) Save(ctx context.Context, blob []byte, cost time.Duration, requires []string) error {
	c.left()
	if c.right != nil {
		return c.right.Save(ctx, blob, cost, requires...)
	}
	return c.store.Put(ctx, c.sub.Backend, c.sub.Key, blob, cost, requires...)
}

// Abandon ends the claim with nothing saved.
func (c *claim) Abandon() {
	c.left()
	if c.right != nil {
		c.right.Release()
	}
}
