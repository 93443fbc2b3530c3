package capi

import (
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	_ "github.com/kiln-cache/kiln/gpuexec/cuda"
	_ "github.com/kiln-cache/kiln/gpuexec/onednn"
	_ "github.com/kiln-cache/kiln/gpuexec/vulkan"
)

// E2: what a program in C opens is what the settings of backends say, as in the commands.
func TestSettingsOfBackendsAreHeeded(t *testing.T) {
	t.Setenv("KILN_NVRTC", "/nowhere/libnvrtc.so.13")
	t.Setenv("KILN_ONEDNN_LIBRARY", "/nowhere/libdnnl.so.3")
	t.Setenv("KILN_VULKAN_DEVICE", "no such device")
	t.Setenv("KILN_CPU_ISA", "generic")
	rt, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := Close(rt, -1); err != nil {
			t.Error(err)
		}
	}()
	for _, backend := range []string{"cuda", "onednn"} {
		if _, err := OpenDevice(rt, backend, 0, -1); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("%s, from a file that is not there: %v", backend, err)
		}
	}
	if _, err := OpenDevice(rt, "vulkan", 0, -1); !errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("a Vulkan device that nobody has: %v", err)
	}
	h, err := OpenDevice(rt, "cpu", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := find[device](h); err != nil || !strings.Contains(d.exec.Info().Driver, "generic") {
		t.Errorf("the processor is %s (%v), want its generic instruction set", d.exec.Info().Driver, err)
	}
	if _, err := OpenDevice(rt, "cpu", 0, 0); err != nil {
		t.Errorf("a device that is open, without waiting: %v", err)
	}
	if _, err := OpenDevice(rt, "none", 0, -1); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("no backend: %v", err)
	}
}
