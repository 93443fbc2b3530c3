package tensorfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
)

// K5: a stamp is of one state of one file, whatever the file's times were set to, and a file
// that was written just now has none.
func TestStamp(t *testing.T) {
	const header = `{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}`
	path := filepath.Join(t.TempDir(), "w.safetensors")
	old := time.Unix(1, 0)
	write := func(path string, first float32) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, pack(header, floats(first, 2, 3)), 0o600), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	changed := func() time.Time {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix())
	}
	stamp := func(now time.Time) string {
		t.Helper()
		f, err := tensorfile.OpenAt(path, now)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return f.Stamp()
	}
	write(path, 1)
	first := changed()
	later := first.Add(time.Hour)
	want := stamp(later)
	if again := stamp(later.Add(time.Hour)); want == "" || again != want {
		t.Errorf("stamps %q and %q of a file that nobody touched", want, again)
	}
	for _, age := range []time.Duration{time.Second, 0, -time.Hour} {
		if got := stamp(first.Add(age)); got != "" {
			t.Errorf("stamp %q, %v after the file was written", got, age)
		}
	}
	if got := stamp(later); got != "" {
		t.Errorf("stamp %q of a file that was opened without one before", got)
	}
	for !changed().After(first) { // a tick of the clock
		write(path, 4)
	}
	written := stamp(later)
	write(path+".new", 1)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if replaced := stamp(later); written == "" || written == want || replaced == want || replaced == written {
		t.Errorf("stamps %q, %q once written into and %q once replaced", want, written, replaced)
	}
	if f, err := tensorfile.Read("w", pack(header, floats(1, 2, 3))); err != nil || f.Stamp() != "" {
		t.Errorf("%v, or a file in memory has a stamp", err)
	}
}
