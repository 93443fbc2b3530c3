//go:build unix

package pipelinefile_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/limit"
)

// SPEC V9: a file above the limit is refused before it is read.
func TestLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 257<<20); err != nil {
		t.Fatal(err)
	}
	v := open(t)
	v.shader("s", "a")
	v.built("s")
	if l, err := v.Load(t.Context(), path); err != nil || l.Reason != "too_large" {
		t.Errorf("%+v, %v", l, err)
	}
	if err := os.Truncate(path, 255<<20); err != nil { // within, and no file of ours: nothing of it is allocated
		t.Fatal(err)
	}
	if spent := allocated(func() {
		if l, err := v.Load(t.Context(), path); err != nil || l.Reason != "format" {
			t.Errorf("%+v, %v", l, err)
		}
	}); spent > 1<<20 {
		t.Errorf("a foreign file cost %d bytes", spent)
	}
	file := v.bytes()
	tight := func(most int64) option { return func(c *setup) { c.Limit = limit.Of(most) } }
	w := open(t, tight(int64(len(file))-1))
	w.shader("s", "a")
	w.misses(file, "too_large", "")
	if l, err := w.LoadFrom(t.Context(), io.MultiReader(bytes.NewReader(file[:layout.Preamble]), iotest.ErrReader(errors.New("read on")))); err != nil || l.Reason != "too_large" {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := w.LoadFrom(t.Context(), io.MultiReader(bytes.NewReader(file[:50]), iotest.ErrReader(errors.New("gone")))); err != nil || l.Reason != "degraded" {
		t.Errorf("%+v, %v", l, err)
	}
	w.built("s") // its file is written without the blob
	if _, s, err := w.SaveBytes(t.Context()); err != nil || s.Blob || s.Entries != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	x := open(t, tight(64))
	x.shader("s", "a")
	x.built("s")
	if _, _, err := x.SaveBytes(t.Context()); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("%v", err)
	}
}

// SPEC V9: where the union is above the limit the entries of others go before the driver's blob.
func TestLimitOfAUnion(t *testing.T) {
	dir := t.TempDir()
	v := open(t)
	v.shader("a", "1")
	v.shader("b", "2")
	v.built("a", "b")
	save := func(name string, options ...option) (pipelinefile.Saved, error) {
		path := filepath.Join(dir, name)
		v.save(path)
		w := open(t, options...)
		w.shader("c", "3")
		w.built("c")
		return w.Save(t.Context(), path)
	}
	all, err := save("all")
	if err != nil || all.Entries != 3 || !all.Blob {
		t.Fatalf("%+v, %v", all, err)
	}
	own, err := save("own", func(c *setup) { c.Limit = limit.Of(all.Bytes - 1) })
	if err != nil || own.Entries != 1 || !own.Blob {
		t.Errorf("%+v, %v", own, err)
	}
}

// A save that does not begin says why, and blames no file.
func TestSaveThatDoesNotBegin(t *testing.T) {
	v := open(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "f")
	if _, err := v.Save(ended, path); !errors.Is(err, context.Canceled) || errors.Is(err, fault.ErrIO) {
		t.Errorf("ended: %v", err)
	}
	if err := v.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Save(t.Context(), path); !errors.Is(err, fault.ErrClosed) || errors.Is(err, fault.ErrIO) {
		t.Errorf("closed: %v", err)
	}
}

// endless gives zeros for ever, and counts them.
type endless struct{ given int64 }

func (e *endless) Read(p []byte) (int, error) {
	clear(p)
	e.given += int64(len(p))
	return len(p), nil
}

// SPEC V9, V2: a stream is read as far as its file goes, and as far as shows
// that it holds none, with the reasons of a file.
func TestEndlessStreams(t *testing.T) {
	file := sample(t)
	format, err := layout.Forge(file, "format", 2)
	if err != nil {
		t.Fatal(err)
	}
	lie := bytes.Clone(file[:layout.Preamble])
	lie[19] = 15 // a little less than 256 MiB
	v := open(t, func(c *setup) { c.Limit = limit.Of(1<<28 - 1) })
	w := open(t, func(c *setup) { c.Limit = limit.Of(int64(len(file))) })
	for _, c := range []struct {
		head   []byte
		ends   bool
		reason string
		most   int64 // bytes read behind the head
	}{
		{nil, false, "format", layout.Preamble}, {[]byte("something else"), false, "format", layout.Preamble},
		{format, false, "format", 0}, {file, false, "trailing", 1}, {lie, true, "truncated", 0},
		{file, true, "", 0}, {file[:len(file)-1], true, "truncated", 0}, {file[:30], true, "truncated", 0}, {nil, true, "truncated", 0},
	} {
		for _, r := range []*rig{v, w} {
			behind := &endless{}
			stream := io.MultiReader(bytes.NewReader(c.head), behind)
			if c.ends {
				stream = bytes.NewReader(c.head)
			}
			want := c.reason
			if r == w && len(c.head) == len(lie) {
				want = "too_large"
			}
			if spent := allocated(func() {
				if l, err := r.LoadFrom(t.Context(), stream); err != nil || string(l.Reason) != want {
					t.Errorf("%d bytes, ends %v: %+v, %v, want %q", len(c.head), c.ends, l, err, want)
				}
			}); spent > 1<<20 || behind.given > c.most {
				t.Errorf("%d bytes, ends %v: it cost %d bytes, and %d were read behind it", len(c.head), c.ends, spent, behind.given)
			}
		}
	}
}
