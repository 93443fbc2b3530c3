package crashfs_test

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
)

func read(t *testing.T, f vfs.FS, name string) string {
	t.Helper()
	text, err := vfs.ReadFile(f, name, 100)
	if errors.Is(err, fs.ErrNotExist) {
		return "absent"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// P9: what a crash may and may not take.
func TestClone(t *testing.T) {
	f := crashfs.New(nil)
	must(t, vfs.WriteNew(f, "a", true, []byte("one")))
	if got := read(t, f.Clone(0, 1, nil), "a"); got != "absent" {
		t.Errorf("a synced file without a synced name: %s", got)
	}
	if got := read(t, f.Clone(1, 1, nil), "a"); got != "one" {
		t.Errorf("everything kept: %s", got)
	}
	must(t, f.SyncDir("."))
	must(t, vfs.WriteNew(f, "b", false, []byte("two")))
	must(t, f.SyncDir("."))
	if got := read(t, f.Clone(0, 1, nil), "b"); got != "" {
		t.Errorf("a synced name without synced content: %q", got)
	}
	must(t, f.Mkdir("d"))
	must(t, f.Rename("a", "d/a"))
	if c := f.Clone(0, 1, nil); read(t, c, "a") != "one" {
		t.Error("a rename that was not synced took the old name away")
	}
	must(t, f.SyncDir("d"))
	if c := f.Clone(0, 1, nil); read(t, c, "d/a") != "absent" || read(t, c, "a") != "absent" {
		t.Error("a rename into a folder whose own name is not durable: want neither")
	}
	must(t, f.SyncDir("."))
	if c := f.Clone(0, 1, nil); read(t, c, "d/a") != "one" {
		t.Error("all was synced")
	}
	seen := map[string]bool{}
	for seed := range uint64(64) {
		seen[read(t, f.Clone(0.5, seed, nil), "b")] = true
	}
	if !seen["two"] || !seen[""] || len(seen) != 2 {
		t.Errorf("each write apart: %v", seen)
	}
}

// P10: one call makes all durable, and a write that no sync covers may tear between
// two sectors of the disk.
func TestSyncAllAndTornSectors(t *testing.T) {
	f := crashfs.New(nil)
	must(t, f.Mkdir("d"))
	must(t, vfs.WriteNew(f, "d/a", false, []byte("one")))
	must(t, vfs.WriteNew(f, "gone", false, []byte("x")))
	must(t, f.Remove("gone"))
	must(t, f.SyncAll())
	must(t, f.Rename("d/a", "b"))
	if c := f.Clone(0, 1, nil); read(t, c, "d/a") != "one" || read(t, c, "b") != "absent" || read(t, c, "gone") != "absent" {
		t.Error("want what was there when all was synced")
	}
	must(t, vfs.WriteNew(f, "torn", false, bytes.Repeat([]byte("x"), 1024)))
	must(t, f.SyncDir("."))
	seen := map[string]bool{}
	for seed := range uint64(64) {
		text, err := vfs.ReadFile(f.Clone(0.5, seed, nil), "torn", 1024)
		must(t, err)
		seen[strings.ReplaceAll(string(text), strings.Repeat("x", 512), "X")] = true
	}
	if half := strings.Repeat("\x00", 512) + "X"; len(seen) != 4 || !seen[""] || !seen["X"] || !seen["XX"] || !seen[half] {
		t.Errorf("two sectors: %v", seen)
	}
}

// P8: a removal under a condition is in the folder that was there before that was asked.
func TestRemoveIf(t *testing.T) {
	f := crashfs.New(nil)
	must(t, f.Mkdir("d"))
	must(t, vfs.WriteNew(f, "d/x", false, []byte("old")))
	must(t, f.RemoveIf("d/x", func() bool { return false }))
	must(t, f.RemoveIf("d/x", func() bool {
		must(t, f.Rename("d", "old"))
		must(t, f.Mkdir("d"))
		must(t, vfs.WriteNew(f, "d/x", false, []byte("new")))
		return true
	}))
	if new, old := read(t, f, "d/x"), read(t, f, "old/x"); new != "new" || old != "absent" {
		t.Error(new, old)
	}
}
