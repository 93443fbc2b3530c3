package incumbent

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

func TestAbsentLibrary(t *testing.T) {
	if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "libdnnl.so.3")); !errors.Is(err, ErrAbsent) {
		t.Errorf("a missing file: %v, want ErrAbsent", err)
	}
	if !errors.Is(ErrAbsent, fault.ErrUnavailable) {
		t.Error("what is absent is not unavailable")
	}
	needCC(t)
	other := filepath.Join(t.TempDir(), "libdnnl.so.3")
	if err := os.WriteFile(other, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), other); !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), other) {
		t.Errorf("a file that is no library: %v, want ErrAbsent with its name", err)
	}
}

func TestOneDNN(t *testing.T) {
	needCC(t)
	const library = "../../../.cache/onednn-3.2/libdnnl.so.3"
	if _, err := os.Stat(library); err != nil {
		t.Skip("oneDNN 3.2 is not there; make fetch-onednn brings it")
	}
	n, err := Open(t.Context(), library)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	if !strings.HasPrefix(n.Version, "3.2.") {
		t.Errorf("version %q", n.Version)
	}
	if err := n.Fill(Matmuls(128), 1024); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{Kept, AllIn} {
		for _, threads := range []int{1, 2} {
			alone, err := n.Slot(mode, threads, 5*time.Millisecond, false)
			if err != nil || alone.NS <= 0 || alone.CPU <= 0 || alone.P50 != 0 || alone.Writes != 0 {
				t.Errorf("%s, %d threads: %+v, %v", mode, threads, alone, err)
			}
			crowded, err := n.Slot(mode, threads, 50*time.Millisecond, true)
			if err != nil || crowded.NS <= 0 || crowded.P50 <= 0 || crowded.P99 < crowded.P50 {
				t.Errorf("%s, %d threads beside a writer: %+v, %v", mode, threads, crowded, err)
			}
		}
	}
	if _, err := n.Slot("nope", 1, time.Millisecond, false); err == nil {
		t.Error("an unknown mode was measured")
	}
	n.process.Process.Kill() // it ended with an error by itself; Close must not report that twice
	n.process.Wait()
	n.process = nil
}

func needCC(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler named cc; install gcc")
	}
}
