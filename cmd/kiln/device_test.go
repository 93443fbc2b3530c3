package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/manifest"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/gpuexec/opencl"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/vulkan"
)

// E2: a driver that is missing is said once, with what to install, however many items are for it.
func TestWarmWithoutADriver(t *testing.T) {
	var items []manifest.Item
	for n := range 3 {
		items = append(items, manifest.Item{Backend: opencl.Name, Op: ops.New(ops.GELU, int64(n+1), 4).String(), Uses: 1})
	}
	t.Setenv("OCL_ICD_VENDORS", t.TempDir()) // for the child, which alone opens devices
	code, text, errs := invoke("warm", "--manifest", written(t, items), "--store", filepath.Join(t.TempDir(), "store"))
	if code != exitFailed || strings.Count(text, warmFailed) != 4 || strings.Count(text, ": install ") != 1 {
		t.Errorf("exit %d, want the reason once and 3 items that failed: %s, stderr %s", code, text, errs)
	}
}

// P17: that a backend has no blobs is said once, however many of its items there are.
func TestWarmWithoutBlobs(t *testing.T) {
	if d := gpuexec.Find(onednn.Name).Devices(t.Context())[0]; !d.Available {
		t.Skip(d.Reason)
	}
	var items []manifest.Item
	for n := range 3 {
		items = append(items, manifest.Item{Backend: onednn.Name, Op: ops.New(ops.BatchMatMul, 1, 12, int64(n+100), 100, 100).String(), Uses: 1})
	}
	code, text, errs := invoke("warm", "--manifest", written(t, items), "--store", filepath.Join(t.TempDir(), "store"))
	if code != exitFailed || strings.Count(text, warmFailed) != 4 || strings.Count(text, "has no blobs") != 1 {
		t.Errorf("exit %d, want the reason once and 3 items that failed: %s, stderr %s", code, text, errs)
	}
}

// seeing runs the command in a process whose drivers are told to list two devices each;
// it gives the exit code and what was printed.
func seeing(t *testing.T, args ...string) (code int, text string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	drivers, err := filepath.Glob("/usr/share/vulkan/icd.d/lvp_icd.*.json")
	if err != nil {
		t.Fatal(err)
	}
	var twice []string
	for _, from := range drivers {
		driver, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		twice = append(twice, file(t, "a.json", string(driver)), file(t, "b.json", string(driver)))
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(cmd.Environ(), "POCL_DEVICES=basic pthread", "VK_ICD_FILENAMES="+strings.Join(twice, ":"))
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(out)
	} else if err != nil {
		t.Fatal(err)
	}
	return exitDone, string(out)
}

// second skips where a backend has no second device.
func second(t *testing.T, backend string) {
	t.Helper()
	if _, text := seeing(t, "devices"); !strings.Contains(text, backend+":1") {
		t.Skipf("no second device of %s:\n%s", backend, text)
	}
}

// E1, P12: run and warm use the device of the number that they are given: what is built for
// it is found for it, and by a device of another identity not.
func TestSecondDevice(t *testing.T) {
	for _, name := range []string{opencl.Name, vulkan.Name} {
		t.Run(name, func(t *testing.T) {
			second(t, name)
			record, store := filepath.Join(t.TempDir(), "record"), filepath.Join(t.TempDir(), "store")
			run := func(device, store string, more ...string) (compiles int64) {
				t.Helper()
				code, text := seeing(t, slices.Concat(tiny, []string{"--device", device, "--requests", "2", "--passes", "1", "--store", store, "--json"}, more)...)
				var ran report.Run
				if err := json.Unmarshal([]byte(text), &ran); code != exitDone || err != nil || ran.Device != device {
					t.Fatalf("exit %d, %v: %s", code, err, text)
				}
				return ran.Passes[0].Compiles
			}
			if n := run(name+":1", filepath.Join(t.TempDir(), "store"), "--record", record); n == 0 {
				t.Error("nothing was compiled")
			}
			if code, text := seeing(t, "warm", "--manifest", record, "--store", store, "--device", name+":1"); code != exitDone {
				t.Fatalf("exit %d: %s", code, text)
			}
			if n := run(name+":1", store); n != 0 {
				t.Errorf("%d programs compiled that kiln warm had built for the same device", n)
			}
			if n := run(name, store); n == 0 && name == opencl.Name {
				t.Error("what was built for one device was taken for another")
			}
		})
	}
}

// E1: texts are embedded on the device of the number that is given.
func TestEmbedOnSecondDevice(t *testing.T) {
	text := file(t, "text", "w7 w8\n")
	for _, name := range []string{opencl.Name, vulkan.Name} {
		t.Run(name, func(t *testing.T) {
			second(t, name)
			var e embedded
			code, line := seeing(t, "embed", "--model", tinyModel, "--device", name+":1", text)
			if err := json.Unmarshal([]byte(line), &e); code != exitDone || err != nil || len(e.Embedding) != 24 {
				t.Errorf("exit %d, %v: %s", code, err, line)
			}
		})
	}
}

// E1: a number that no device has is an error of the command line, and it lists those there are.
func TestUnknownDevice(t *testing.T) {
	manifest := file(t, "manifest", "{\"kiln_manifest\":1}\n")
	_, listed := seeing(t, "devices")
	for _, b := range ops.Names() {
		if !gpuexec.Find(b).Devices(t.Context())[0].Available {
			continue
		}
		for _, args := range [][]string{{"run", "--requests", "1"}, {"warm", "--manifest", manifest, "--store", t.TempDir()}, {"embed", "--model", tinyModel}, {"bench", "device"}} {
			if b == "cpu" && args[0] == "bench" {
				continue
			}
			code, text := seeing(t, append(args, "--device", b+":99")...)
			wanted := []string{b + ":99: no such device", b + ":0 ("}
			if strings.Contains(listed, b+":1 ") {
				wanted = append(wanted, b+":1 (")
			}
			for _, want := range wanted {
				if code != exitUsage || !strings.Contains(text, want) {
					t.Errorf("kiln %v --device %s:99: exit %d, want %q in %s", args, b, code, want, text)
				}
			}
		}
	}
	for _, wrong := range []string{"gpu", "opencl:", "opencl:-1", "opencl:01", "opencl:1:2", "opencl:x"} {
		refused(t, []string{"run", "--device", wrong}, fmt.Sprintf("--device %q: want cpu, cuda, onednn, opencl or vulkan, or one of these with a number", wrong))
	}
}
