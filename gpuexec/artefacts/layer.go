package artefacts

import "github.com/kiln-cache/kiln/internal/flight"

// layer is the kernel layer below the artefacts (C11): part of the pure core. A
// kernel in use never leaves it by eviction, so finding a victim needs the
// unused ones only.
type layer struct {
	resident map[string]*node
	flights  flight.Desk[string, *making]
	unused   order // residents that no artefact holds, by when they became so
}

// landKernel has what a kernel's flight made become resident.
func (s *state) landKernel(n *node) {
	n.Value.resident.Store(true)
	s.kernels.resident[n.Key] = n
	s.trimKernels()
	s.gauges.kernels.Store(int64(len(s.kernels.resident)))
}

// useKernel gives a resident kernel, which is about to be held, or nil.
func (s *state) useKernel(key string) *node {
	n := s.kernels.resident[key]
	if n != nil {
		s.kernels.unused.remove(n)
	}
	return n
}

// idleKernel notes that nobody holds n now. The layer gives it up if it has more
// kernels than the cache may have entries.
func (s *state) idleKernel(n *node) {
	if n.Value.resident.Load() && n.Value.in == nil {
		s.kernels.unused.push(n)
		s.trimKernels()
	}
}

func (s *state) tooManyKernels() bool {
	return s.kernels.unused.oldest != nil && !s.entries.Allows(int64(len(s.kernels.resident)))
}

// trimKernels is for one kernel more: where a trim is under way, that does the rest.
func (s *state) trimKernels() {
	for range 2 {
		if s.tooManyKernels() {
			s.evictKernel(s.kernels.unused.oldest)
		}
	}
}

func (s *state) evictKernel(n *node) {
	s.touched.Add(1)
	s.kernels.unused.remove(n)
	delete(s.kernels.resident, n.Key)
	n.Value.resident.Store(false)
	s.gauges.kernels.Store(int64(len(s.kernels.resident)))
	s.dropped = append(s.dropped, n)
}

// emptyKernels forgets as many kernels as a turn may, and reports whether none is left;
// those in use live on until their artefacts go.
func (s *state) emptyKernels() (over bool) {
	for _, n := range s.kernels.resident {
		if !s.touched.Left() {
			return false
		}
		s.past.cleared(n.Key, kernel)
		s.evictKernel(n)
	}
	return true
}
