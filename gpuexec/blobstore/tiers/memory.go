package tiers

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/pressure"
)

// memory is a byte-bounded tier of verified blobs. A nil *memory holds nothing.
//
// INVARIANT: Set, Del, Clear and Close of the library are called in turns of owner
// only (it panics and races otherwise).
type memory struct {
	blobs *ristretto.Cache[string, held]
	owner *actors.Ref[change]
	limit *pressure.Watch
	leave func()       // the limit
	bytes atomic.Int64 // of the blobs, also of those that the library is still to refuse
	life  sync.RWMutex // read-held by lookups
	ended bool
	shut  sync.Once
}

// held is a blob with its full name: the library knows only hashes of it.
type held struct {
	name string // see nameOf
	blob blobstore.Blob
}

// size in bytes, of nothing 0.
func (h held) size() int64 {
	const around = 256 // the entry itself
	if h.name == "" {
		return 0
	}
	return int64(len(h.blob.Payload)+len(h.name)) + around
}

// change is a message to the owner: a blob to keep, one to forget, or with an
// empty name all.
type change struct {
	held
	forget bool
	done   *actors.Reply[struct{}] // answered when a reader sees it; nil = nobody waits
}

func newMemory(bytes int64, limit *pressure.Watch) (*memory, error) {
	const typical = 16 << 10 // of a compiled kernel; ten counters an entry, as the library advises
	m := &memory{limit: limit}
	var err error
	m.blobs, err = ristretto.NewCache(&ristretto.Config[string, held]{
		NumCounters: 10 * max(bytes/typical, 100), MaxCost: bytes, BufferItems: 64, IgnoreInternalCost: true,
		OnExit: func(h held) { m.count(-h.size()) }, // also of what is refused or replaced, and of the nothing that Del finds
	})
	if err != nil {
		return nil, fault.Invalidf("tiers: open", "memory tier of %d bytes: %v", bytes, err)
	}
	m.owner = actors.Spawn(actors.Config{Name: "blob memory"}, m.turn)
	m.leave = limit.Join(pressure.Room{Rank: pressure.Blobs, Offer: m.offer, Shrink: m.shrink})
	return m, nil
}

// offer gives the tier as one item that costs nothing to make again: each of its
// blobs lies on the disk.
func (m *memory) offer(context.Context) []pressure.Item {
	if bytes := m.bytes.Load(); bytes > 0 {
		return []pressure.Item{{Bytes: bytes}}
	}
	return nil
}

// shrink empties the tier, whatever part of it was asked for.
func (m *memory) shrink(_ context.Context, _ int64, tier pressure.Tier) pressure.Freed {
	if tier != pressure.Spare {
		return pressure.Freed{}
	}
	before := m.bytes.Load()
	m.forget("")
	return pressure.Freed{Bytes: max(0, before-m.bytes.Load())}
}

func (m *memory) turn(c change) {
	switch {
	case !c.forget:
		if m.blobs.Set(c.name, c.held, c.size()) {
			m.count(c.size()) // after what it replaces was counted off
		}
	case c.name == "":
		m.life.Lock() // it does not stand lookups meanwhile
		m.blobs.Clear()
		m.life.Unlock()
	default:
		m.blobs.Del(c.name)
	}
	if c.done != nil {
		m.blobs.Wait()
		c.done.Send(struct{}{})
	}
}

func (m *memory) count(bytes int64) {
	m.bytes.Add(bytes)
	m.limit.Add(bytes)
}

// nameOf says all that two blobs may differ in: their device is part of it.
func nameOf(sub artefacts.Subject) string {
	name := sub.Backend + "\x00" + sub.Key
	if id := sub.Identity; id != nil {
		name += "\x00" + strings.Join(append([]string{id.Library, id.Build, id.Compiler, id.Driver, id.Device}, id.ISA...), "\x00")
	}
	return name
}

func (m *memory) get(name string) (blobstore.Blob, bool) {
	if m == nil {
		return blobstore.Blob{}, false
	}
	m.life.RLock()
	defer m.life.RUnlock()
	if m.ended {
		return blobstore.Blob{}, false
	}
	h, ok := m.blobs.Get(name)
	if !ok || h.name != name {
		return blobstore.Blob{}, false
	}
	return h.blob, true
}

func (m *memory) put(name string, b blobstore.Blob) {
	if m != nil {
		m.owner.Tell(change{held: held{name, b}})
	}
}

// forget returns when no reader can see the blob any more, or with an empty name
// none at all.
func (m *memory) forget(name string) {
	if m == nil {
		return
	}
	// An error means that the tier has been closed, so nobody sees anything.
	_, _ = actors.Ask(context.Background(), m.owner, func(r actors.Reply[struct{}]) change {
		return change{held: held{name: name}, forget: true, done: &r}
	})
}

// close ends the owner first, so that nothing is set in a closed library.
func (m *memory) close(ctx context.Context) error {
	m.leave()
	m.life.Lock()
	m.ended = true
	m.life.Unlock()
	if err := m.owner.Stop(ctx); err != nil {
		return err
	}
	m.shut.Do(m.blobs.Close)
	return nil
}
