package forward

import (
	"errors"
	"testing"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	_ "github.com/kiln-cache/kiln/gpuexec/cuda"
	_ "github.com/kiln-cache/kiln/gpuexec/onednn"
	_ "github.com/kiln-cache/kiln/gpuexec/vulkan"
)

// E2: a program that has more rights than whoever starts it, and writes its environment, runs
// none of its code; the name of a device is no code.
func TestRaisedProgramLoadsNoLibraryOfTheEnvironments(t *testing.T) {
	defer func(own func() bool) { raised = own }(raised)
	for _, rights := range []bool{false, true} {
		raised = func() bool { return rights }
		for name, backend := range map[string]string{"KILN_NVRTC": "cuda", "KILN_CUBLAS": "cuda", "KILN_ONEDNN_LIBRARY": "onednn", "KILN_VULKAN_DEVICE": "vulkan", "none": "cuda"} {
			settings := env.Table(env.Read(func(asked string) (string, bool) { return "/tmp/library.so", asked == name }))
			_, err := Library(backend, 0, settings)
			if refused := rights && (backend == "onednn" || name == "KILN_NVRTC" || name == "KILN_CUBLAS"); errors.Is(err, fault.ErrInvalid) != refused || !refused && err != nil {
				t.Errorf("%s, raised %t: %v", name, rights, err)
			}
		}
	}
}
