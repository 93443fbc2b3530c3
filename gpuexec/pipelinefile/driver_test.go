//go:build unix

package pipelinefile_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
)

// rough is a driver that misbehaves in one place; the rest is the fake's.
type rough struct {
	*fakeDriver
	open func(blob []byte) error
	blob func() error
}

type roughCache struct {
	*fakeCache
	rough *rough
}

func (d *rough) OpenCache(ctx context.Context, blob []byte) (pipelinefile.DriverCache, error) {
	if d.open != nil {
		ended := d.called()
		err := d.open(blob)
		ended()
		if err != nil {
			return nil, err
		}
	}
	c, err := d.fakeDriver.OpenCache(ctx, blob)
	if err != nil {
		return nil, err
	}
	return &roughCache{c.(*fakeCache), d}, nil
}

func (d *rough) Build(ctx context.Context, m pipelinefile.Module, cache pipelinefile.DriverCache) (pipelinefile.Pipeline, error) {
	if c, ok := cache.(*roughCache); ok {
		cache = c.fakeCache
	}
	return d.fakeDriver.Build(ctx, m, cache)
}

func (c *roughCache) Merge(ctx context.Context, from pipelinefile.DriverCache) error {
	return c.fakeCache.Merge(ctx, from.(*roughCache).fakeCache)
}

func (c *roughCache) Blob(ctx context.Context) ([]byte, error) {
	if c.rough.blob != nil {
		if err := c.rough.blob(); err != nil {
			return nil, err
		}
	}
	return c.fakeCache.Blob(ctx)
}

func roughly(t *testing.T, d *rough, options ...option) *rig {
	return open(t, append(options, func(c *setup) {
		d.fakeDriver = c.Driver.(*fakeDriver)
		c.Driver = d
	})...)
}

// SPEC V1, V6: a driver that panics is a driver that refuses or cannot deliver.
func TestDriverPanics(t *testing.T) {
	file := sample(t)
	d := &rough{}
	v := roughly(t, d)
	v.shader("s1", "a")
	v.shader("t", "b")
	v.built("t")
	d.open = func([]byte) error { panic("blob") }
	v.misses(file, "driver_refused", "")
	d.open = nil
	if l, err := v.LoadBytes(t.Context(), file); err != nil || l.Entries != 1 || !l.Blob {
		t.Errorf("%+v, %v", l, err)
	}
	d.blob = func() error { panic("data") }
	if _, s, err := v.SaveBytes(t.Context()); err != nil || s.Blob || s.Entries != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	d.blob = nil
	d.onFree = func() { panic("free") }
	v.get(pipelinefile.Request{Shader: "t", Options: 1}, pipelinefile.Built)
	v.Clear()
	eventually(t, func() bool { return d.alive.Load() == 0 }, "pipelines are destroyed")
}

// A driver that makes no cache at all builds without one, until a file brings it
// one.
func TestNoDriverCache(t *testing.T) {
	file := sample(t)
	d := &rough{open: func(blob []byte) error {
		if blob == nil {
			return errDriver
		}
		return nil
	}}
	v := roughly(t, d)
	v.shader("s1", "a")
	v.built("s1")
	if _, s, err := v.SaveBytes(t.Context()); err != nil || s.Blob {
		t.Errorf("%+v, %v", s, err)
	}
	v.counts("driver_refused", v.Stats().Reasons["driver_refused"], 1)
	if l, err := v.LoadBytes(t.Context(), file); err != nil || !l.Blob {
		t.Errorf("%+v, %v", l, err)
	}
	if _, s, err := v.SaveBytes(t.Context()); err != nil || !s.Blob {
		t.Errorf("%+v, %v", s, err)
	}
}

// SPEC V6: a driver that refuses the blob of the file that is there costs that
// blob only.
func TestSaveOverRefusedBlob(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	v, w := open(t), open(t)
	v.shader("a", "1")
	v.built("a")
	v.save(path)
	w.shader("b", "2")
	w.built("b")
	w.driver.refuse.Store(true)
	if s := w.save(path); s.Entries != 2 || !s.Blob {
		t.Errorf("%+v", s)
	}
}

// A caller that gives up is told so, and is no refusal by the driver; what it
// had begun leaves nothing behind. Closing waits for it (F8).
func TestGivingUp(t *testing.T) {
	file := sample(t)
	d := &rough{}
	v := roughly(t, d)
	v.shader("s1", "a")
	begun, gate := make(chan struct{}), make(chan struct{})
	d.open = func(blob []byte) error { close(begun); <-gate; return context.Canceled }
	ctx, cancel := context.WithCancel(t.Context())
	loading, queued := make(chan error), make(chan error)
	go func() { loading <- second(v.LoadBytes(ctx, file)) }()
	<-begun
	go func() { queued <- second(v.LoadBytes(ctx, file)) }() // behind the first
	v.built("s1")                                            // nobody else waits (V7)
	cancel()
	if err := <-queued; !errors.Is(err, context.Canceled) {
		t.Errorf("the second: %v", err)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if err := v.Close(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("closed while the driver worked: %v", err)
	}
	close(gate)
	if err := <-loading; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	if n := v.Stats().Reasons["driver_refused"]; n != 0 {
		t.Errorf("%d refusals counted", n)
	}
	if _, err := v.LoadBytes(ctx, file); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := v.Save(ctx, "f"); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, _, err := v.Get(ctx, pipelinefile.Request{Shader: "s1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

// SPEC V6: a holder that stood still and was passed over sees it before it
// writes, and joins what the other saved.
func TestPassedOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	d := &rough{}
	v := roughly(t, d)
	v.shader("a", "1")
	v.built("a")
	v.save(path)
	w := open(t, func(c *setup) { c.Patience = time.Millisecond })
	w.shader("b", "2")
	w.built("b")
	stood := false
	d.blob = func() error { // the lock is held here
		if !stood {
			stood = true
			w.save(path)
		}
		return nil
	}
	if s := v.save(path); s.Entries != 2 || !stood {
		t.Errorf("%+v", s)
	}
	if n := len(decode(t, path).Entries); n != 2 {
		t.Errorf("%d entries, want both savers'", n)
	}
}
