package forward_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	_ "github.com/kiln-cache/kiln/gpuexec/cuda"
	_ "github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/vulkan"
	"github.com/kiln-cache/kiln/internal/forward"
)

// What was asked for in vain is not kept: a program may have device numbers from its users.
func TestLibraryOfNoDevice(t *testing.T) {
	lib, err := forward.Library("vulkan", 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	made := weak.Make(lib.(*vulkan.Backend))
	lib = nil
	if runtime.GC(); made.Value() != nil {
		t.Error("the library for a device that no machine has is kept")
	}
}

// The encoder and the command have the backends that the settings choose, and equal ones
// for equal choices, so that weights are prepared once.
func TestLibrary(t *testing.T) {
	settings := func(set map[string]string) []env.Row {
		return env.Table(env.Read(func(name string) (string, bool) { v, ok := set[name]; return v, ok }))
	}
	library := func(backend string, device int, set map[string]string) ops.Library {
		lib, err := forward.Library(backend, device, settings(set))
		if again, _ := forward.Library(backend, device, settings(set)); err != nil || again != lib {
			t.Errorf("%s:%d with %v: %v, or another one the second time", backend, device, set, err)
		}
		return lib
	}
	for backend, variable := range map[string]string{"cuda": "KILN_NVRTC", "onednn": "KILN_ONEDNN_LIBRARY"} {
		lib := library(backend, 0, map[string]string{variable: "/nowhere/library.so"})
		if reason := lib.Devices(bg)[0].Reason; !strings.Contains(reason, "/nowhere") {
			t.Errorf("%s with another library: %q", backend, reason)
		}
		if library(backend, 0, nil) != ops.Find(backend) {
			t.Errorf("%s without settings is not the registered one", backend)
		}
	}
	if with := library("cuda", 0, map[string]string{"KILN_CUBLAS": "/nowhere/libcublas.so"}); with == ops.Find("cuda") ||
		with == library("cuda", 0, map[string]string{"KILN_CUBLAS": "/nowhere/libcublas.so", "KILN_NVRTC": "/nowhere/library.so"}) {
		t.Error("cuda with cuBLAS is the registered one, or that with another compiler")
	}
	if driver := library("cpu", 0, map[string]string{"KILN_CPU_ISA": "generic"}).Devices(bg)[0].Driver; !strings.Contains(driver, "generic") {
		t.Errorf("cpu with another instruction set: %s", driver)
	}
	if library("opencl", 1, nil) == library("opencl", 0, nil) {
		t.Error("another device of OpenCL has the operations of the first")
	}
	if lib := library("none", 0, nil); lib != nil {
		t.Errorf("%s is no backend", lib.Name())
	}
	if lib := library("vulkan", 0, map[string]string{"KILN_VULKAN_DEVICE": "no such device"}); lib.Devices(bg)[0].Available {
		if _, err := lib.Open(bg, 0); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("a Vulkan device that nobody has: %v", err)
		}
	}
	// Device 0 of tests is a processor, and device 99 is not there.
	first, other := library("vulkan", 0, nil), library("vulkan", 99, nil)
	if !first.Devices(bg)[0].Available {
		t.Skip("no Vulkan")
	}
	norm := ops.New(ops.LayerNorm, 2, 8)
	norm.Epsilon = 1e-5
	a, errA := first.Source(norm)
	b, errB := other.Source(norm)
	if errA != nil || errB != nil || a.Key == b.Key {
		t.Errorf("%v, %v, or another device has the shaders of the first", errA, errB)
	}
}
