package blobstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/vfs"
)

func init() {
	hidden.MapBlob = func(ctx context.Context, store any, backend, key string, bytes int64, room *[]byte) ([]byte, func(), error) {
		return store.(*Store).mapped(ctx, backend, key, bytes, room)
	}
	hidden.PutToMap = func(ctx context.Context, store any, backend, key string, data []byte, cost time.Duration, room *[]byte) error {
		return store.(*Store).putToMap(ctx, backend, key, data, cost, room)
	}
	hidden.RoomToMap = func(store any, bytes int64) func() { return store.(*Store).roomToMap(bytes) }
}

// line is the multiple at which data that is mapped begins: no vector of it then lies on two
// lines of the processor's cache.
const line = 64

// padding is what stands before such data, in a payload that begins there.
func padding(begins int) int { return (line - begins%line) % line }

// putToMap stores data for mapped. It runs everywhere, whatever instruction sets there are.
// The memory in room is used, and given back larger. Where mapped gives nothing, nothing is stored.
func (s *Store) putToMap(ctx context.Context, backend, key string, data []byte, cost time.Duration, room *[]byte) error {
	if s.cfg.Shared {
		return refused("store: put", backend, key, Miss{Reason: fault.Disabled}, errors.New("files of several hosts are not mapped"))
	}
	return s.put(ctx, backend, key, func(begins int) []byte {
		var zeros [line]byte
		*room = append(append((*room)[:0], zeros[:padding(begins)]...), data...)
		return *room
	}, cost, []string{})
}

// roomToMap takes room for data that is to be stored and mapped, until give is called; nil is none.
// What one opening maps has three quarters of the capacity: a program with more would store at
// each start what it evicted at the one before, and every kernel would go with it.
func (s *Store) roomToMap(bytes int64) (give func()) {
	capacity, counted := s.Stats().Capacity.Value()
	if all := s.mappedBytes.Add(bytes); counted && all > capacity/4*3 {
		s.mappedBytes.Add(-bytes)
		return nil
	}
	return sync.OnceFunc(func() { s.mappedBytes.Add(-bytes) })
}

// mapped gives the data that putToMap stored, mapped from the entry's file until unmap is
// called; nil is a miss, as where nothing can be mapped, or where the data has another length. What is mapped was verified: it
// was read for that, into room, from the file that is mapped (SPEC P3). Files of entries are
// replaced and removed, and never written again; on a file system of several hosts that is
// not relied on, and nothing is mapped.
func (s *Store) mapped(ctx context.Context, backend, key string, bytes int64, room *[]byte) (data []byte, unmap func(), err error) {
	if s.cfg.Shared {
		return nil, nil, nil
	}
	m := mapping{read: *room}
	_, _, err = s.get(ctx, backend, key, false, &m)
	*room = m.read
	m.last.drop()
	f := &m.chosen
	if data := f.payload(); int64(len(data)) == bytes {
		s.mappedBytes.Add(bytes)
		return data, sync.OnceFunc(func() {
			s.mappedBytes.Add(-bytes)
			f.unmap()
		}), nil
	}
	f.drop()
	return nil, nil, err
}

// mapping maps the files that a search reads, and keeps the one that is chosen. A nil one maps none.
type mapping struct {
	read         []byte
	last, chosen mappedFile
}

type mappedFile struct {
	content      []byte
	unmap        func()
	begins, ends int // the payload
}

// payload is what lies behind the padding.
func (f *mappedFile) payload() []byte {
	begins := min(f.begins+padding(f.begins), f.ends)
	return f.content[begins:f.ends:f.ends]
}

func (f *mappedFile) drop() {
	if f.unmap != nil {
		f.unmap()
	}
	*f = mappedFile{}
}

// room is memory to read a file into: new memory, unless it is only verified there.
func (m *mapping) room(bytes int64) []byte {
	if m == nil {
		return make([]byte, bytes)
	}
	if int64(cap(m.read)) < bytes {
		m.read = make([]byte, bytes)
	}
	return m.read[:bytes]
}

// take maps a file that was read.
func (m *mapping) take(f vfs.File, bytes int64) {
	if m == nil {
		return
	}
	m.last.drop()
	if mapper, can := f.(vfs.Mapper); can {
		if content, unmap, err := mapper.Map(bytes); err == nil { // else it is a miss
			m.last = mappedFile{content: content, unmap: unmap}
		}
	}
}

// choose keeps the file that was taken last, whose entry it is.
func (m *mapping) choose(e *frame.Entry) {
	if m == nil {
		return
	}
	m.chosen.drop()
	m.chosen, m.last = m.last, mappedFile{}
	if m.chosen.content != nil {
		m.chosen.begins, m.chosen.ends = e.Begins, e.Begins+len(e.Payload)
	}
}
