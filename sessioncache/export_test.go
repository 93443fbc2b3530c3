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
	g := s.published.resident(shape)
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
	seen, _ := look(context.Background(), s, "owned", func(st *state) (n [2]int) {
		for _, groups := range st.owners {
			n[0] += len(groups)
		}
		st.published.shapes.All(func(at *table.Node[group]) bool {
			n[1] += len(at.Value.owners)
			return true
		})
		for g := range st.serving {
			n[1] += len(g.owners)
		}
		return n
	})
	return seen[0], seen[1]
}
