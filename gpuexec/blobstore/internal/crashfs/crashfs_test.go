package crashfs_test

import (
	"errors"
	"io/fs"
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
	if got := read(t, f.Clone(0, 1), "a"); got != "absent" {
		t.Errorf("a synced file without a synced name: %s", got)
	}
	if got := read(t, f.Clone(1, 1), "a"); got != "one" {
		t.Errorf("everything kept: %s", got)
	}
	must(t, f.SyncDir("."))
	must(t, vfs.WriteNew(f, "b", false, []byte("two")))
	must(t, f.SyncDir("."))
	if got := read(t, f.Clone(0, 1), "b"); got != "" {
		t.Errorf("a synced name without synced content: %q", got)
	}
	must(t, f.Mkdir("d"))
	must(t, f.Rename("a", "d/a"))
	if c := f.Clone(0, 1); read(t, c, "a") != "one" {
		t.Error("a rename that was not synced took the old name away")
	}
	must(t, f.SyncDir("d"))
	if c := f.Clone(0, 1); read(t, c, "d/a") != "absent" || read(t, c, "a") != "absent" {
		t.Error("a rename into a folder whose own name is not durable: want neither")
	}
	must(t, f.SyncDir("."))
	if c := f.Clone(0, 1); read(t, c, "d/a") != "one" {
		t.Error("all was synced")
	}
	seen := map[string]bool{}
	for seed := range uint64(64) {
		seen[read(t, f.Clone(0.5, seed), "b")] = true
	}
	if !seen["two"] || !seen[""] || len(seen) != 2 {
		t.Errorf("each write apart: %v", seen)
	}
}
