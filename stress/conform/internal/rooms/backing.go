package rooms

import (
	"context"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/tiers"
)

// backing is what lies below an artefact cache that was opened with store=: the
// tiers over the script's store, anew each time that is opened again.
type backing struct {
	store *store

	mu    sync.Mutex
	over  *blobstore.Store
	tiers *tiers.Tiers
}

var _ artefacts.Store = (*backing)(nil)

// Find asks the tiers over the store as it is open now.
func (b *backing) Find(ctx context.Context, s artefacts.Subject) artefacts.Found {
	t, err := b.now(ctx)
	if err != nil {
		return artefacts.Found{Reason: fault.Degraded}
	}
	return t.Find(ctx, s)
}

func (b *backing) now(ctx context.Context) (*tiers.Tiers, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if over := b.store.now(); over != b.over {
		if err := b.closeLocked(ctx); err != nil {
			return nil, err
		}
		t, err := tiers.Open(over, tiers.Config{})
		if err != nil {
			return nil, err
		}
		b.over, b.tiers = over, t
	}
	return b.tiers, nil
}

// Close ends the tiers; the store is the script's to close.
func (b *backing) Close(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closeLocked(ctx)
}

func (b *backing) closeLocked(ctx context.Context) error {
	t := b.tiers
	b.over, b.tiers = nil, nil
	if t == nil {
		return nil
	}
	return t.Close(ctx)
}
