//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cuda"
)

// The kernel of the reduction compiles, where NVRTC is: no GPU is needed for that.
func TestReductionCompiles(t *testing.T) {
	path := must(filepath.Abs("../../.cache/nvrtc/libnvrtc.so.13"))
	if _, err := os.Stat(path); err != nil {
		path = ""
	}
	blob, _, err := cuda.Compile(t.Context(), cuda.Config{NVRTC: path}, total(), 80)
	if errors.Is(err, fault.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil || len(blob) == 0 {
		t.Errorf("%d bytes, %v", len(blob), err)
	}
}
