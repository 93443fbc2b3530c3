package forward

import (
	"context"
	"fmt"
	"time"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/hidden"
)

// shelf is where a model that is prepared finds weights that were packed before, by any process:
// entries of the store, mapped. Processes share their pages. Only cpu reads memory that is not
// its own. A weight that the constant cache lets go later is packed: a request waits for it, and
// to verify an entry takes longer. The zero value has none.
type shelf struct {
	store  *blobstore.Store // nil: none
	room   *[]byte          // to verify entries in; nil: the model is not being prepared
	missed []packed
}

// packed is a weight that this model has packed, since it was not in the store.
type packed struct {
	place
	name string
	cost time.Duration
}

// smallest is the size of the smallest weight that is stored, in bytes: below it there is
// little to share, and a file for each.
const smallest = 64 << 10

// shelfOf has weights of the list kept in the store, if all of them take at most half of it:
// the rest is for kernels, which cost more to make again.
func shelfOf(store *blobstore.Store, exec *gpuexec.Executor, list *oplist.Model) (s shelf) {
	if store == nil || exec.Info().Backend != cpu.Name {
		return s
	}
	all := int64(0)
	for _, w := range list.Weights {
		if w.Role == oplist.Kernel {
			all += 4 * int64(w.Elements())
		}
	}
	if most, counted := store.Stats().Capacity.Value(); !counted || all <= most/2 {
		s.store = store
	}
	return s
}

// begin begins a preparing, and end ends it.
func (s *shelf) begin() (end func()) {
	s.room = new([]byte)
	return func() { s.room = nil }
}

// place is where a packed weight is looked for. The zero value is nowhere.
type place struct {
	store *blobstore.Store
	key   string
	room  *[]byte
}

func (s *shelf) place(identity string, form ops.Prepared, w oplist.Weight) place {
	if s.store == nil || s.room == nil || w.Role != oplist.Kernel || form.Bytes < smallest {
		return place{}
	}
	key := fmt.Sprintf("%s, %v as %s, little endian %t", identity, w.Shape, form.Format, littleEndian)
	return place{s.store, key, s.room}
}

// take gives the weight as it lies in the store, or nil.
func (p place) take(ctx context.Context, exec *gpuexec.Executor, bytes int64) *gpuexec.Buffer {
	if p.store == nil {
		return nil
	}
	data, unmap, err := hidden.MapBlob(ctx, p.store, hidden.Weights, p.key, bytes, p.room)
	if err != nil || data == nil {
		return nil
	}
	b, err := hidden.Adopt(ctx, exec, data, unmap)
	if err != nil {
		unmap()
		return nil
	}
	return b.(*gpuexec.Buffer)
}

// miss notes a weight that was packed, for Keep.
func (s *shelf) miss(p place, name string, cost time.Duration) {
	if p.store != nil {
		s.missed = append(s.missed, packed{p, name, cost})
	}
}

// Keep gives what stores the weights that this model packed when it was prepared, off the path of
// requests, and puts the mapped ones in their place in the constant cache: models take them from
// there at their next run, and those that Watch are told. Weights for which the store has no room
// beside those of other models are left out. It may run on any goroutine, also after
// Close; it ends early with ctx, and at the first weight that the store does not take, of which
// the store tells. It is to be called once.
func (m *Model) Keep() func(ctx context.Context) {
	ts := &m.tensors
	missed := ts.shelf.missed
	ts.shelf.missed = nil
	type kept struct {
		packed
		key  constants.Key
		held *constants.Held
		give func() // room in the store
	}
	var all []kept
	for _, p := range missed {
		t := ts.held[p.name]
		if t == nil {
			continue // it was let go
		}
		give := hidden.RoomToMap(p.store, t.buffer().Bytes())
		if give == nil {
			continue // other models have it
		}
		if held, _ := t.lease.Hold(nil); held != nil {
			all = append(all, kept{p, t.key, held, give})
		} else {
			give()
		}
	}
	k := keeper{engine: ts.engine, exec: ts.exec}
	return func(ctx context.Context) {
		failed := false
		for _, w := range all {
			if b, there := w.held.Use(); there && !failed && ctx.Err() == nil {
				failed = k.keep(ctx, w.packed, w.key, b.(*gpuexec.Buffer)) != nil
			}
			w.held.Drop()
			w.give()
		}
	}
}

// keeper keeps weights, one after the other.
type keeper struct {
	engine     *constants.Engine
	exec       *gpuexec.Executor
	data, room []byte
}

func (k *keeper) keep(ctx context.Context, p packed, key constants.Key, b *gpuexec.Buffer) error {
	err := hidden.Fill(ctx, b, func(memory []byte) error { // which is there until this returns
		gone, err := guard.Reading(memory, func() error { // it may be mapped by now, if it was flushed since
			k.data = append(k.data[:0], memory...)
			return nil
		})
		if gone {
			return fault.ErrIO
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := hidden.PutToMap(ctx, p.store, hidden.Weights, p.key, k.data, p.cost, &k.room); err != nil {
		return err
	}
	p.room = &k.room
	if mapped := p.take(ctx, k.exec, b.Bytes()); mapped != nil {
		return k.replace(ctx, key, mapped)
	}
	return nil
}

// replace puts the mapped weight in the place of the packed one, if that is still there.
func (k *keeper) replace(ctx context.Context, key constants.Key, mapped *gpuexec.Buffer) error {
	if was, err := k.engine.Remove(ctx, key); err != nil || !was {
		mapped.Release()
		return err
	}
	taken := false
	lease, _, err := k.engine.Get(ctx, key, mapped.Bytes(), constants.Options{}, func(context.Context) (constants.Value, error) {
		taken = true
		return constants.Value{Any: mapped, Bytes: mapped.Bytes(), Free: mapped.Release}, nil
	})
	if !taken { // there was an error, or a request came between and packed the weight
		mapped.Release()
	}
	if lease != nil {
		lease.End()
	}
	return err
}
