//go:build linux && (amd64 || arm64)

package fakecuda

import "slices"

// graph is what a stream was given while it was captured, and plan an instantiated one.
type (
	graph struct {
		of   *primary
		work []func() int32
	}
	plan graph
)

func (s *stream) captures() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.graph != nil
}

func (d *Driver) beginCapture(on uintptr, mode int32) int32 {
	s, p, code := object[*stream](d, on)
	switch {
	case code != success:
		return code
	case mode < 0 || mode > 2:
		return invalidValue
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.graph != nil {
		return illegalState
	}
	s.graph = &graph{of: p}
	return success
}

func (d *Driver) endCapture(on uintptr, into *uintptr) int32 {
	s, _, code := object[*stream](d, on)
	if code != success {
		return code
	}
	s.mu.Lock()
	g := s.graph
	s.graph = nil
	s.mu.Unlock()
	if g == nil {
		return illegalState
	}
	return d.make(into, func(*primary) any { return g })
}

func (d *Driver) instantiate(into *uintptr, from uintptr, flags uint64) int32 {
	g, _, code := object[*graph](d, from)
	switch {
	case code != success:
		return code
	case flags != 0:
		return invalidValue
	}
	return d.make(into, func(p *primary) any { return &plan{p, slices.Clone(g.work)} })
}

func (d *Driver) launchGraph(handle, on uintptr) int32 {
	g, _, code := object[*plan](d, handle)
	if code != success {
		return code
	}
	s, _, code := object[*stream](d, on)
	if code != success {
		return code
	}
	return s.add(g.work...)
}
