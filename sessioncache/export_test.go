package sessioncache

import (
	"context"
	"unsafe"

	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/shapegroups"
)

// EntrySize is the heap's size class for an entry with its node, in bytes.
const EntrySize = (unsafe.Sizeof(node{}) + 15) / 16 * 16

// Handles is the number of open handles of a registered shape.
func Handles(s *Session, shape shapegroups.Shape) int {
	g := s.published.lookup(shape)
	if g == nil {
		return 0
	}
	return int(g.grace.handles[0].Load() + g.grace.handles[1].Load())
}

// Ended reports whether the session's actor is sent nothing more.
func Ended(s *Session) bool {
	s.sending.RLock()
	defer s.sending.RUnlock()
	return s.sending.shut
}

// Owned is in how many groups the owners of a session are looked for by Reset, and in
// how many they have names.
func Owned(s *Session) (indexed, there int) {
	_, _ = look(context.Background(), s, "owned", func(st *state) struct{} {
		for _, groups := range st.owners {
			indexed += len(groups)
		}
		st.published.shapes.All(func(at *table.Node[group]) bool {
			there += len(at.Value.owners)
			return true
		})
		for _, g := range st.serving {
			there += len(g.owners)
		}
		return struct{}{}
	})
	return indexed, there
}

// InTurn calls f in a turn of the session's actor.
func InTurn(s *Session, f func()) {
	_, _ = look(context.Background(), s, "in turn", func(*state) struct{} {
		f()
		return struct{}{}
	})
}

// Stall has a turn of the session last until the result is called.
func Stall(s *Session) (end func()) {
	began, gate := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = look(context.Background(), s, "stall", func(*state) struct{} {
			close(began)
			<-gate
			return struct{}{}
		})
	}()
	<-began
	return func() { close(gate) }
}

// Slots is how many slots a group has for names by id.
func Slots(v View) int {
	s := v.g.slots.Load()
	return len(s.at) + s.parts*manyFarSlots
}

// HasSlot reports whether a name is found by its id alone.
func HasSlot(v View, id NameID) bool {
	at := v.g.slots.Load().of(id.slot)
	return at != nil && at.Load() != nil
}

// Adopted is how many values a group keeps that its shape's group does not hold for it.
func Adopted(h *Group) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.adopted)
}

// Waiting is how many values wait until other sessions have made room for them.
func Waiting(s *Session) int {
	n, _ := look(context.Background(), s, "waiting", func(st *state) int { return st.share.held })
	return n
}
