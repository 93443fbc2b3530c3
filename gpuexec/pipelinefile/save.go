package pipelinefile

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Saved is what a save wrote.
type Saved struct {
	Entries int   // SPIR-V entries in the file, those of other processes included
	Bytes   int64 // of the whole file
	Blob    bool  // it carries a driver blob
}

// Save writes a file at path, whose folder must exist: a temporary file beside
// it, synced and renamed, so that path always is a whole file. Unless
// Config.NoMerge, the file that was there is joined with this cache's own: its
// entries of shaders that are not registered here, or registered with the same
// source, are kept, and several processes that save to one path reach the union.
// What does not fit this machine, or is damaged, is replaced, and counted and logged
// as a miss of Load is. An old file above Config.Limit is ErrTooLarge: others may
// well use it. The new one is mode 0600, whatever the old one was.
//
// On an error (ErrIO, ErrTooLarge, ErrClosed, ErrInvalid, the context's) the old
// file is as it was; only where the folder itself could not be synced it is the
// new one, which may not survive a power loss.
func (c *Cache) Save(ctx context.Context, path string) (Saved, error) {
	const op = "pipelinefile: save"
	if path == "" {
		return Saved{}, fault.Invalidf(op, "the path is empty")
	}
	begun := false
	var s Saved
	err := c.during(ctx, func() error {
		if err := c.saving.take(ctx); err != nil {
			return err
		}
		defer c.saving.giveBack()
		begun = true
		t, err := c.target(path)
		if err != nil {
			return err
		}
		defer t.fs.Close()
		compose := func(old *layout.File) (file []byte, err error) {
			file, s, err = c.compose(ctx, old)
			return file, err
		}
		if c.cfg.NoMerge {
			err = t.overwrite(compose)
		} else {
			err = t.join(ctx, func(f vfs.File) (*layout.File, error) { return c.earlier(path, f) }, compose)
		}
		if err == nil {
			t.sweep(c.cfg.Now())
		}
		return err
	})
	switch {
	case err == nil:
		return s, nil
	case !begun, errors.Is(err, fault.ErrTooLarge), ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return Saved{}, &fault.Error{Op: op, Key: path, Err: err}
	}
	return Saved{}, trouble(op, path, err)
}

// earlier reads the file that a save joins; nil without an error where it is to be
// replaced.
func (c *Cache) earlier(path string, f vfs.File) (*layout.File, error) {
	old, miss, err := c.decode(f)
	if miss == (layout.Miss{}) {
		return old, nil
	}
	c.missed(path, miss, err)
	if miss.Reason == fault.TooLarge {
		err = fmt.Errorf("%w: the file that is there is above the limit of %s: raise it, remove the file, or save with NoMerge", fault.ErrTooLarge, c.cfg.Limit)
	}
	return nil, err
}

// SaveBytes gives a file of what this cache has, joined with nothing.
func (c *Cache) SaveBytes(ctx context.Context) ([]byte, Saved, error) {
	const op = "pipelinefile: save"
	var file []byte
	var s Saved
	err := c.during(ctx, func() (err error) {
		file, s, err = c.compose(ctx, nil)
		return err
	})
	if err != nil {
		return nil, Saved{}, &fault.Error{Op: op, Err: err}
	}
	return file, s, nil
}

// SaveTo writes SaveBytes to w.
func (c *Cache) SaveTo(ctx context.Context, w io.Writer) (Saved, error) {
	const op = "pipelinefile: save"
	if w == nil {
		return Saved{}, fault.Invalidf(op, "the writer is nil")
	}
	file, s, err := c.SaveBytes(ctx)
	if err != nil {
		return Saved{}, err
	}
	n, err := w.Write(file)
	if err == nil && n < len(file) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return Saved{}, trouble(op, "", err)
	}
	return s, nil
}

// compose gives the bytes of a file with this cache's entries, those of old that
// are worth keeping, and the driver's blob. Where that is above the limit, first
// old's entries go, which are whoever else's, then the blob.
func (c *Cache) compose(ctx context.Context, old *layout.File) ([]byte, Saved, error) {
	f := &layout.File{Identity: c.identity}
	own, all := c.entries(old)
	blob, err := c.blobFor(ctx, old)
	if err != nil {
		return nil, Saved{}, err
	}
	for _, try := range []struct {
		entries []layout.Entry
		blob    []byte
	}{{all, blob}, {own, blob}, {own, nil}} {
		f.Entries, f.Blob = try.entries, try.blob
		size := f.Size()
		if !c.cfg.Limit.Allows(size) {
			continue
		}
		file, err := layout.Encode(f)
		return file, Saved{Entries: len(f.Entries), Bytes: size, Blob: len(f.Blob) > 0}, err
	}
	return nil, Saved{}, fmt.Errorf("%w: %d bytes of SPIR-V are above the limit of %s for a file", fault.ErrTooLarge, f.Size(), c.cfg.Limit)
}

// entries gives this cache's own, and these with those of old, both sorted.
func (c *Cache) entries(old *layout.File) (own, all []layout.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, words := range c.mu.spirv {
		own = append(own, layout.Entry{Key: k, Words: words})
	}
	layout.Sort(own)
	if old == nil {
		return own, own
	}
	all = append(all, own...)
	for _, e := range old.Entries {
		_, ours := c.mu.spirv[e.Key]
		if stale := c.lookup(e.Shader) != nil && !c.current(e.Key); !ours && !stale {
			all = append(all, e)
		}
	}
	layout.Sort(all)
	return own, all
}

// blobFor gives the driver's blob, with that of old in it where the driver takes
// it: what other processes had the driver compile is not lost. A driver that
// cannot deliver leaves old's as it is (SPEC V6). The error is the context's.
func (c *Cache) blobFor(ctx context.Context, old *layout.File) ([]byte, error) {
	d := &c.driver
	if d.effect == Off {
		return nil, nil
	}
	var before []byte
	if old != nil {
		before = old.Blob
	}
	if len(before) > 0 {
		if err := d.takeIn(ctx, before); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			c.counters.miss(fault.DriverRefused)
			c.log.Info("pipelinefile: the driver does not take the blob of the file that is there", "cause", err)
			before = nil
		}
	}
	blob, err := d.blob(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c.log.Info("pipelinefile: the driver does not deliver its blob", "cause", err)
	}
	if err != nil || len(blob) == 0 {
		return before, nil
	}
	return blob, nil
}
