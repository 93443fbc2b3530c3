package tensorfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
)

// F6: a pipe in the place of a file of weights is refused at once. An opening that waits for
// the pipe's writer hangs here, and cannot be called off.
func TestPipes(t *testing.T) {
	dir := t.TempDir()
	pipe, model := filepath.Join(dir, "w"), filepath.Join(dir, "model.onnx")
	away := whole(text(plain([]uint64{1}), 13, string(text(text(nil, 1, "location"), 2, "w"))), 14, 1)
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(model, onnxOf(initialiser(away)), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() (*tensorfile.File, error){
		"safetensors":     func() (*tensorfile.File, error) { return tensorfile.Open(pipe) },
		"onnx":            func() (*tensorfile.File, error) { return tensorfile.OpenONNX(pipe) },
		"numbers of onnx": func() (*tensorfile.File, error) { return tensorfile.OpenONNX(model) },
	} {
		f, err := open()
		if f != nil || !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), pipe+": not a regular file") {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}
