package pipelinefile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Loaded is what a load brought. With a Reason the file was a miss and nothing
// of it was taken (SPEC V1, V5).
type Loaded struct {
	Reason fault.Reason // empty = it was taken
	Field  string       // what the reason concerns, where it concerns a field

	Entries int  // SPIR-V entries taken: those of shaders as they are registered now
	Changed int  // entries left because their shader's source is another one
	Blob    bool // the driver took its blob
}

// Load reads the file at path and joins it with what is there, the file's
// values winning. The error is ErrInvalid, ErrClosed or the context's; a file
// that cannot be used is a Reason.
func (c *Cache) Load(ctx context.Context, path string) (Loaded, error) {
	const op = "pipelinefile: load"
	if path == "" {
		return Loaded{}, fault.Invalidf(op, "the path is empty")
	}
	return c.load(ctx, op, path, func() (*layout.File, layout.Miss, error) {
		t, err := c.target(path)
		if err != nil {
			return nil, missOf(err), err
		}
		defer t.fs.Close()
		f, err := t.fs.Open(t.name)
		if err != nil {
			return nil, missOf(err), err
		}
		defer f.Close()
		return c.decode(f)
	})
}

// missOf is the reason that goes with trouble of opening a file.
func missOf(err error) layout.Miss {
	if errors.Is(err, fs.ErrNotExist) {
		return layout.Miss{Reason: fault.Absent}
	}
	miss := layout.Miss{Reason: fault.Degraded}
	if unsafe := new(vfs.Unsafe); errors.As(err, &unsafe) {
		miss.Field = unsafe.Field
	}
	return miss
}

// decode reads an open file, within the limit and of this identity.
func (c *Cache) decode(f vfs.File) (*layout.File, layout.Miss, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, missOf(err), err
	case !info.Regular():
		return nil, layout.Miss{Reason: fault.Format}, fmt.Errorf("it is no plain file: %w", fs.ErrInvalid)
	case !vfs.Believes(env.Process(), info.Owner): // the user that owns the folder is not enough
		err := &vfs.Unsafe{Field: "owner"}
		return nil, missOf(err), err
	case !c.cfg.Limit.Allows(info.Size):
		return nil, layout.Miss{Reason: fault.TooLarge}, nil
	}
	return layout.Decode(info.Size, func(offset, n int64) ([]byte, error) {
		part := make([]byte, n)
		got, err := f.ReadAt(part, offset)
		if err == io.EOF {
			err = nil
		}
		return part[:got], err
	}, &c.identity)
}

// LoadBytes is Load for a file that lies in memory, which must not be changed
// afterwards.
func (c *Cache) LoadBytes(ctx context.Context, file []byte) (Loaded, error) {
	return c.load(ctx, "pipelinefile: load", "", func() (*layout.File, layout.Miss, error) {
		if !c.cfg.Limit.Allows(int64(len(file))) {
			return nil, layout.Miss{Reason: fault.TooLarge}, nil
		}
		return layout.Decode(int64(len(file)), layout.Bytes(file), &c.identity)
	})
}

// LoadFrom is Load for a stream that begins with a file. It reads one byte behind the
// file at most. Of a stream that begins with no file it reads as much as shows that.
func (c *Cache) LoadFrom(ctx context.Context, r io.Reader) (Loaded, error) {
	const op = "pipelinefile: load"
	if r == nil {
		return Loaded{}, fault.Invalidf(op, "the reader is nil")
	}
	return c.load(ctx, op, "", func() (*layout.File, layout.Miss, error) {
		first, err := io.ReadAll(io.LimitReader(r, layout.Preamble))
		if err != nil {
			return nil, layout.Miss{Reason: fault.Degraded}, err
		}
		size, miss := layout.Announced(first)
		switch {
		case miss != (layout.Miss{}):
			return nil, miss, nil
		case size > math.MaxInt64 || !c.cfg.Limit.Allows(int64(size)):
			return nil, layout.Miss{Reason: fault.TooLarge}, nil
		}
		// The size may be a lie: the buffer grows with what comes.
		file := bytes.NewBuffer(first)
		if _, err := file.ReadFrom(io.LimitReader(r, int64(size)-int64(len(first))+1)); err != nil {
			return nil, layout.Miss{Reason: fault.Degraded}, err
		}
		return layout.Decode(int64(file.Len()), layout.Bytes(file.Bytes()), &c.identity)
	})
}

// load counts and logs what became of a load.
func (c *Cache) load(ctx context.Context, op, path string, read func() (*layout.File, layout.Miss, error)) (l Loaded, err error) {
	var miss layout.Miss
	var cause error
	err = c.during(ctx, func() error {
		var file *layout.File
		if file, miss, cause = read(); miss == (layout.Miss{}) {
			l, miss, cause, err = c.take(ctx, file)
		}
		return err
	})
	switch {
	case err != nil:
		return Loaded{}, &fault.Error{Op: op, Key: path, Err: err}
	case miss == (layout.Miss{}):
		return l, nil
	}
	c.missed(path, miss, cause)
	return Loaded{Reason: miss.Reason, Field: miss.Field}, nil
}

func (c *Cache) missed(path string, miss layout.Miss, cause error) {
	c.counters.miss(miss.Reason)
	c.log.Info("pipelinefile: file not used", "path", path, "reason", string(miss.Reason), "field", miss.Field, "cause", cause)
}

// take enters a verified file: first the driver decides on the blob, then all of
// it becomes visible at once.
func (c *Cache) take(ctx context.Context, file *layout.File) (l Loaded, miss layout.Miss, cause, err error) {
	d := &c.driver
	var next *shared
	switch {
	case len(file.Blob) == 0:
	case d.effect == Off:
		c.counters.miss(fault.Quirk)
	default:
		l.Blob = true
		if err := d.replacing.take(ctx); err != nil {
			return l, miss, nil, err
		}
		defer d.replacing.giveBack()
		if next, cause = d.prepare(ctx, file.Blob); cause != nil {
			if err := ctx.Err(); err != nil { // it is the caller who gave up, not the driver
				return l, miss, nil, err
			}
			return l, layout.Miss{Reason: fault.DriverRefused}, cause, nil
		}
	}
	if err := c.enter(file.Entries, &l); err != nil {
		if next != nil {
			next.cell.Unpin()
		}
		return l, miss, nil, err
	}
	if next != nil {
		d.adopt(next, file.Blob)
	}
	return l, miss, nil, nil
}

// enter takes the entries of shaders as they are registered at this moment.
func (c *Cache) enter(entries []layout.Entry, l *Loaded) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return fault.ErrClosed
	}
	for _, e := range entries {
		switch s := c.lookup(e.Shader); {
		case s == nil: // no longer known, or not yet
		case s.digest != e.Source:
			l.Changed++
			c.counters.miss(fault.SourceChanged)
		default:
			c.mu.spirv[e.Key] = e.Words
			l.Entries++
		}
	}
	return nil
}
