package sessioncache

import (
	"unsafe"

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
