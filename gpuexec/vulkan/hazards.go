//go:build linux && (amd64 || arm64)

package vulkan

import "github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"

// hazards has what the launches since the last barrier use. The next waits for them where
// it shares a byte with one of them that one of the two writes. Pure.
type hazards struct{ used []use }

type use struct {
	vk.BufferPart
	writes bool
}

// mostUses is how many parts of buffers are looked at. Beyond it there is a barrier.
const mostUses = 64

// next reports whether a launch that uses these parts needs a barrier before it, and
// notes the launch.
func (h *hazards) next(parts []vk.BufferPart, writes []bool) (barrier bool) {
	barrier = len(h.used) > 0 && len(h.used)+len(parts) > mostUses
	for i := 0; i < len(parts) && !barrier; i++ {
		barrier = h.meets(use{parts[i], writes[i]})
	}
	if barrier {
		h.clear()
	}
	for i := range parts {
		h.used = append(h.used, use{parts[i], writes[i]})
	}
	return barrier
}

func (h *hazards) meets(n use) bool {
	for i := range h.used {
		u := &h.used[i]
		if (u.writes || n.writes) && u.Buffer == n.Buffer && u.Offset < n.Offset+n.Bytes && n.Offset < u.Offset+u.Bytes {
			return true
		}
	}
	return false
}

// clear forgets all launches: there was a barrier.
func (h *hazards) clear() { h.used = h.used[:0] }
