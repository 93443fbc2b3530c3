package pipelinefile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/layout"
)

// shader is one registered source. Immutable.
type shader struct {
	source []byte
	digest [sha256.Size]byte
}

// Register makes a shader known, or changes its source: then its stored SPIR-V
// goes, and nobody else's (SPEC V3). Pipelines in use stay usable.
func (c *Cache) Register(name string, source []byte) error {
	const op = "pipelinefile: register"
	if name == "" {
		return fault.Invalidf(op, "the shader has no name")
	}
	s := &shader{bytes.Clone(source), sha256.Sum256(source)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return &fault.Error{Op: op, Key: name, Err: fault.ErrClosed}
	}
	c.shaders.Store(name, s)
	c.dropSPIRVLocked(func(k layout.Key) bool { return k.Shader == name && k.Source != s.digest })
	return nil
}

// Unregister forgets a shader and its SPIR-V in memory; ErrNotFound if there is
// none of that name. A file that is saved to keeps what it has of it.
func (c *Cache) Unregister(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.shaders.LoadAndDelete(name); !known {
		return &fault.Error{Op: "pipelinefile: unregister", Key: name, Err: fault.ErrNotFound}
	}
	c.dropSPIRVLocked(func(k layout.Key) bool { return k.Shader == name })
	return nil
}

func (c *Cache) dropSPIRVLocked(which func(layout.Key) bool) {
	for k := range c.mu.spirv {
		if which(k) {
			delete(c.mu.spirv, k)
		}
	}
}

// lookup gives the shader of that name as it is now, or nil.
func (c *Cache) lookup(name string) *shader {
	if s, ok := c.shaders.Load(name); ok {
		return s.(*shader)
	}
	return nil
}

// current reports whether the entry is of a shader as it is registered now.
func (c *Cache) current(k layout.Key) bool {
	s := c.lookup(k.Shader)
	return s != nil && s.digest == k.Source
}

// compiled gives the SPIR-V of a shader: a stored entry, or the result of the
// one compilation of it at a time. origin says which.
func (c *Cache) compiled(ctx context.Context, name string, s *shader, options uint64) (words []uint32, origin Origin, err error) {
	key := layout.Key{Shader: name, Options: options, Source: s.digest}
	role, err := c.compiles.Ride(ctx, flight.Want[layout.Key, []uint32]{
		Key: key, Name: name,
		Look: func() (bool, error) {
			if c.mu.closed {
				return false, fault.ErrClosed
			}
			words = c.mu.spirv[key]
			return words != nil, nil
		},
		Make: func(ctx context.Context) ([]uint32, error) { return c.compile(ctx, name, s, options) },
		Keep: func(made []uint32) {
			if c.current(key) {
				c.mu.spirv[key] = made
			}
		},
		Take: func(made []uint32) { words = made },
	})
	if role == flight.Found {
		return words, SPIRV, err
	}
	return words, Built, err
}

func (c *Cache) compile(ctx context.Context, name string, s *shader, options uint64) ([]uint32, error) {
	if c.cfg.FrontEnd == nil {
		return nil, fmt.Errorf("%w: there is no front end to compile the shader", fault.ErrUnsupported)
	}
	c.counters.compiles.Add(1)
	words, err := c.cfg.FrontEnd.Compile(ctx, name, s.source, options)
	if err == nil && len(words) == 0 {
		err = fmt.Errorf("%w: the front end made no words", fault.ErrInvalid)
	}
	return words, err
}
