package tiers

import (
	"context"
	"sync"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/fault"
)

// memory is a byte-bounded tier of verified blobs. A nil *memory holds nothing.
//
// INVARIANT: Set, Del and Close of the library are called in turns of owner only
// (it panics and races otherwise).
type memory struct {
	blobs *ristretto.Cache[string, held]
	owner *actors.Ref[change]
	life  sync.RWMutex // read-held by lookups
	ended bool
	shut  sync.Once
}

// held is a blob with its full key: the library knows only hashes of it.
type held struct {
	sub  artefacts.Subject
	blob blobstore.Blob
}

// change is a message to the owner: a blob to keep, or a subject to forget.
type change struct {
	held
	forget bool
	done   *actors.Reply[struct{}] // answered when a reader sees it; nil = nobody waits
}

func newMemory(bytes int64) (*memory, error) {
	const typical = 16 << 10 // of a compiled kernel; ten counters an entry, as the library advises
	blobs, err := ristretto.NewCache(&ristretto.Config[string, held]{
		NumCounters: 10 * max(bytes/typical, 100), MaxCost: bytes, BufferItems: 64, IgnoreInternalCost: true,
	})
	if err != nil {
		return nil, fault.Invalidf("tiers: open", "memory tier of %d bytes: %v", bytes, err)
	}
	m := &memory{blobs: blobs}
	m.owner = actors.Spawn(actors.Config{Name: "blob memory"}, m.turn)
	return m, nil
}

func (m *memory) turn(c change) {
	if c.forget {
		m.blobs.Del(name(c.sub))
	} else {
		m.blobs.Set(name(c.sub), c.held, int64(len(c.blob.Payload)+len(c.sub.Key))+256)
	}
	if c.done != nil {
		m.blobs.Wait()
		c.done.Send(struct{}{})
	}
}

func name(sub artefacts.Subject) string { return sub.Backend + "\x00" + sub.Key }

func (m *memory) get(sub artefacts.Subject) (blobstore.Blob, bool) {
	if m == nil {
		return blobstore.Blob{}, false
	}
	m.life.RLock()
	defer m.life.RUnlock()
	if m.ended {
		return blobstore.Blob{}, false
	}
	h, ok := m.blobs.Get(name(sub))
	if !ok || h.sub != sub {
		return blobstore.Blob{}, false
	}
	return h.blob, true
}

func (m *memory) put(sub artefacts.Subject, b blobstore.Blob) {
	if m != nil {
		m.owner.Tell(change{held: held{sub, b}})
	}
}

// forget returns when no reader can see the blob any more.
func (m *memory) forget(sub artefacts.Subject) {
	if m == nil {
		return
	}
	// An error means that the tier has been closed, so nobody sees anything.
	_, _ = actors.Ask(context.Background(), m.owner, func(r actors.Reply[struct{}]) change {
		return change{held: held{sub: sub}, forget: true, done: &r}
	})
}

// close ends the owner first, so that nothing is set in a closed library.
func (m *memory) close(ctx context.Context) error {
	m.life.Lock()
	m.ended = true
	m.life.Unlock()
	if err := m.owner.Stop(ctx); err != nil {
		return err
	}
	m.shut.Do(m.blobs.Close)
	return nil
}
