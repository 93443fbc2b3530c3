//go:build unix

package blobstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// P4: whatever lies in the directory, it opens, its store answers and heals.
// The program is a list of damages: each two bytes choose a name and what to do.
func FuzzDirectory(f *testing.F) {
	f.Add([]byte{0, 0, 1, 1, 2, 2, 3, 3})
	f.Add([]byte{4, 4, 5, 5, 6, 6, 7, 0, 8, 1, 9, 2})
	f.Add([]byte{10, 3, 11, 4, 12, 5, 13, 6, 0, 7})
	names := []string{
		"test/B/0/key.bin", "test/B/0/kernel.bin", "test/B/0", "test/B", "test", "size.txt", "lease/journal", "lease/directory/0",
		"uses/x", "tmp/x", "mark/x", "quarantine/x", "test/B/1", "lease/key/x", "test/B/18446744073709551615",
		"lease/index", "lease/owner/x",
	}
	f.Add([]byte{15, 3, 15, 2, 16, 0})
	f.Add([]byte{15, 8, 16, 3, 6, 2})
	f.Fuzz(func(t *testing.T, program []byte) {
		r := newRig(t)
		s := r.open("d", 10*kib, policy("lru"))
		s.put("k", "v")
		bucket := s.Bucket("k")
		s.shut()
		for i := 0; i+1 < len(program) && i < 12; i += 2 {
			path := filepath.Join(r.path("d"), strings.Replace(names[int(program[i])%len(names)], "B", bucket, 1))
			damage(path, program[i+1])
		}
		s.reopen()
		if got := s.get("k"); got != "v" && !strings.HasPrefix(got, "miss reason=") {
			t.Errorf("get: %s", got)
		}
		if got := s.put("k", "w"); got != "ok" {
			t.Errorf("put: %s", got)
		}
		if got := s.get("k"); got != "v" && got != "w" {
			t.Errorf("get after put: %s", got)
		}
		s.reopen()
		if got := s.get("k"); got != "v" && got != "w" {
			t.Errorf("get after reopen: %s", got)
		}
		r.want("size", s.usage().Bytes <= 10*kib, true)
	})
}

// damage does something to a path; what cannot be done is left undone.
func damage(path string, how byte) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		_ = os.Remove(path) // to read or write it would block, here and not in the store
	}
	text, _ := os.ReadFile(path)
	switch how % 9 {
	case 0:
		_ = os.RemoveAll(path)
	case 1:
		_ = os.WriteFile(path, nil, 0o600)
	case 2:
		_ = os.WriteFile(path, append(text, how), 0o600)
	case 3:
		if len(text) > 0 {
			text[int(how)%len(text)] ^= 0x40
			_ = os.WriteFile(path, text, 0o600)
		}
	case 4:
		_ = os.WriteFile(path, []byte("-1\nb\ne\ne\n+ 5 5 5 test/1/1\n"), 0o600)
	case 5:
		_ = os.RemoveAll(path)
		_ = os.Symlink("..", path)
	case 6:
		_ = os.RemoveAll(path)
		_ = syscall.Mkfifo(path, 0o600)
	case 7:
		_ = os.RemoveAll(path)
		_ = os.MkdirAll(path, 0o700)
	case 8:
		_ = os.Truncate(path, 1<<30)
	}
}
