package artefacts

import (
	"context"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Kernel gives a compiled kernel out of the layer below the artefacts, or
// compiles it with r.Create; concurrent asks for one key compile once. It is for
// creators, with the context they were given: the artefact that is being made
// under it holds the kernel until it is freed itself, so there is no lease to
// end. Called anywhere else it is ErrInvalid. Kernels raise no events; an
// artefact made from kernels that were all there is a KernelHit (SPEC C11).
func (c *Cache) Kernel(ctx context.Context, r Request) (any, error) {
	const op = "artefacts: kernel"
	if err := r.check(op); err != nil {
		return nil, err
	}
	if r.Create == nil {
		return nil, fault.Invalidf(op, "no creator: want a function that compiles the kernel")
	}
	m, _ := flight.Marked(ctx, makingKey{}).(*making)
	if m == nil || m.call.cache != c {
		return nil, fault.Invalidf(op, "the context is not that of a creator of this cache: want the one that Create was given")
	}
	n, built, err := c.kernel(ctx, r)
	if err != nil {
		return nil, &fault.Error{Op: op, Key: r.Key, Backend: r.Backend, Err: err}
	}
	if !m.hold(n, built) {
		c.unpinKernel(n)
		return nil, fault.Invalidf(op, "the creator of this context has returned already")
	}
	return n.Value.value, nil
}

// kernel gives a kernel with a pin on it, and whether this call compiled it.
func (c *Cache) kernel(ctx context.Context, r Request) (n *node, built bool, err error) {
	k := &call{Request: r, cache: c, kind: kernel}
	_, err = flight.Ride(ctx, k)
	return k.n, k.role == started, err
}

// hold ties a pinned kernel to what m makes; it reports false after m's end.
func (m *making) hold(n *node, built bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.over {
		return false
	}
	m.mu.kernels = append(m.mu.kernels, n)
	m.mu.built = m.mu.built || built
	return true
}

// takeKernels ends the asking for kernels. fromLayer says that there were some,
// and all were there.
func (m *making) takeKernels() (kernels []*node, fromLayer bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kernels = m.mu.kernels
	m.mu.kernels, m.mu.over = nil, true
	return kernels, len(kernels) > 0 && !m.mu.built
}

// giveBack ends the hold on kernels, of an artefact that is no more or never was.
func (c *Cache) giveBack(kernels []*node) {
	guard.Each(kernels, c.unpinKernel) // a Free may end the goroutine
}

// unpinKernel takes one pin of a kernel away. While the kernel is in the layer
// that is never the last pin: the layer then looks whether it wants to keep it.
func (c *Cache) unpinKernel(n *node) {
	c.unpin(n)
	c.ref.Tell(idle{n})
}
