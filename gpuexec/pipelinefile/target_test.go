//go:build unix

package pipelinefile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// SPEC V6, V9, R1: a file that this cache may not read is not replaced; one that
// is of no use to it is, and either is counted.
func TestSaveOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	big := open(t)
	for i := range 50 {
		big.shader(fmt.Sprint("s", i), "source")
		big.built(fmt.Sprint("s", i))
	}
	big.save(path)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v := open(t, func(c *setup) { c.Limit = limit.Of(int64(len(old)) - 1) })
	v.shader("a", "1")
	v.built("a")
	if _, err := v.Save(t.Context(), path); !errors.Is(err, fault.ErrTooLarge) || errors.Is(err, fault.ErrIO) {
		t.Errorf("over a file above the limit: %v", err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, old) || files(t, filepath.Dir(path)) != 1 {
		t.Errorf("it was changed, or something left beside it: %v", err)
	}
	v.counts("too_large", v.Stats().Reasons[fault.TooLarge], 1)

	other := open(t, withIdentity(func() pipelinefile.Identity { id := machine(); id.Device++; return id }()))
	for reason, file := range map[fault.Reason][]byte{fault.DeviceMismatch: other.bytes(), fault.Format: []byte("garbage"), fault.Truncated: old[:100]} {
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		if s := v.save(path); s.Entries != 1 {
			t.Errorf("%s: %+v", reason, s)
		}
		v.counts(string(reason), v.Stats().Reasons[reason], 1)
	}
}

// SPEC V6: somebody who holds the target's lock and stands still is waited for
// within the context only, even where both it and the patience have ended.
func TestHeldTarget(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opened := func() {}
	v := open(t, func(c *setup) { c.Patience = time.Nanosecond }, faulty(func(op string) error {
		if op == "open" {
			opened()
		}
		return nil
	}))
	v.shader("s", "a")
	v.built("s")
	v.save(path)
	holder, err := vfs.Dir(filepath.Dir(path)).Open("f")
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if locked, err := holder.TryLock(); !locked || err != nil {
		t.Skip("no file locks here:", err)
	}
	looks := 0
	opened = func() {
		if looks++; looks == 2 { // the first saw who holds it
			cancel()
		}
	}
	if _, err := v.Save(ctx, path); !errors.Is(err, context.Canceled) || errors.Is(err, fault.ErrIO) {
		t.Errorf("%v, want the context's error", err)
	}
	v.save(path) // passes over the holder after a while
	if n := files(t, filepath.Dir(path)); n != 1 {
		t.Errorf("%d files, want 1", n)
	}
}

// SPEC P13: root takes files of its own and of the user who called it, in whoever's folder.
func TestRootTakesNoUsersFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	v := open(t)
	v.shader("s", "a")
	v.built("s")
	v.save(path)
	for _, name := range []string{dir, path} {
		if err := os.Chown(name, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	for caller, want := range map[string]fault.Reason{"": fault.Degraded, "1": fault.Degraded, "65534": ""} {
		t.Setenv("SUDO_UID", caller)
		if l, err := v.Load(t.Context(), path); err != nil || l.Reason != want || want != "" && l.Field != "owner" {
			t.Errorf("called by %q: %+v, %v", caller, l, err)
		}
		if _, err := v.Save(t.Context(), path); errors.Is(err, fault.ErrIO) != (want != "") {
			t.Errorf("called by %q: joined with it: %v", caller, err)
		}
	}
}

// SPEC V6: the folders of files are held open during a call only.
func TestFoldersAreClosed(t *testing.T) {
	opened, closed := 0, 0
	v := open(t, func(c *setup) {
		c.fs = func(root string) vfs.FS { opened++; return closing{vfs.Dir(root), &closed} }
	})
	v.shader("s", "a")
	v.built("s")
	path := filepath.Join(t.TempDir(), "f")
	for range 2 {
		if _, err := v.Load(t.Context(), path); err != nil {
			t.Error(err)
		}
		v.save(path)
	}
	if opened != 4 || closed != 4 {
		t.Errorf("%d folders were opened and %d closed, want 4", opened, closed)
	}
}

type closing struct {
	vfs.FS
	closed *int
}

func (c closing) Close() error {
	*c.closed++
	return c.FS.Close()
}

// SPEC V6: what a living process writes is not swept, however far the clock has jumped.
func TestSweepOfTheLiving(t *testing.T) {
	dir := t.TempDir()
	other := open(t, func(c *setup) { c.Now = func() time.Time { return time.Now().Add(3 * time.Hour) } })
	other.shader("b", "2")
	other.built("b")
	var stops atomic.Bool
	v := open(t, faulty(func(op string) error {
		if op == "rename" && stops.Swap(false) {
			other.save(filepath.Join(dir, "another"))
		}
		return nil
	}))
	v.shader("a", "1")
	v.built("a")
	stops.Store(true)
	v.save(filepath.Join(dir, "f"))
	if n := files(t, dir); n != 2 || stops.Load() {
		t.Errorf("%d files, want 2", n)
	}
}

// SPEC V6: a saver that stood still between its last look at the target and its rename puts
// back what another one has saved meanwhile, and joins it.
func TestStoppedBeforeItsRename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	other := open(t, func(c *setup) { c.Patience = time.Millisecond })
	other.shader("b", "2")
	other.built("b")
	stops := false
	v := open(t, faulty(func(op string) error {
		if op == "rename" && stops {
			stops = false
			other.save(path)
		}
		return nil
	}))
	v.shader("a", "1")
	v.built("a")
	v.save(path)
	v.shader("c", "3")
	v.built("c")
	stops = true
	if s := v.save(path); s.Entries != 3 || stops {
		t.Errorf("%+v", s)
	}
	if n := len(decode(t, path).Entries); n != 3 {
		t.Errorf("%d entries, want both savers'", n)
	}
	if n := files(t, filepath.Dir(path)); n != 1 {
		t.Errorf("%d files, want 1", n)
	}
}

// SPEC V6: where names cannot be exchanged, a save replaces what it has joined.
func TestNoExchange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	v := open(t, func(c *setup) { c.fs = func(root string) vfs.FS { return unexchanged{vfs.Dir(root)} } })
	for i, name := range []string{"a", "b"} {
		v.shader(name, "1")
		v.built(name)
		if s := v.save(path); s.Entries != i+1 {
			t.Errorf("%+v", s)
		}
	}
	if n := files(t, filepath.Dir(path)); n != 1 {
		t.Errorf("%d files, want 1", n)
	}
}

type unexchanged struct{ vfs.FS }

func (unexchanged) Exchange(string, string) error { return errors.ErrUnsupported }
