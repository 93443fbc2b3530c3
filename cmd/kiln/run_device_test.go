package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// mostPrograms bounds what a model compiles on a device whose programs serve every shape.
const mostPrograms = 15

// P6, E8: on each device that is here the model runs in several sessions, cold and warm,
// from a store, with announced requests, and from a store that kiln warm filled: programs
// are compiled once for all shapes and sessions, and the bits of outputs are the same.
func TestRunOnDevices(t *testing.T) {
	for _, name := range ops.Names() {
		if name == cpu.Name {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if d := gpuexec.Find(name).Devices(t.Context())[0]; !d.Available {
				t.Skip(d.Reason)
			}
			if name == onednn.Name {
				t.Skip("a program for each shape, and no blobs: TestRunOnOneDNN")
			}
			dir := t.TempDir()
			record, plot := filepath.Join(dir, "record"), filepath.Join(dir, "run.png")
			run := func(store string, more ...string) (passes []passOf) {
				t.Helper()
				args := slices.Concat(tiny, []string{"--device", name, "--requests", "24", "--store", filepath.Join(dir, store)}, more)
				for _, p := range replayed(t, args...).Passes {
					if p.Errors > 0 || p.Requests != 24 {
						t.Fatalf("%d of %d requests failed", p.Errors, p.Requests)
					}
					passes = append(passes, passOf{p.Compiles, p.Hits.Disk, p.OutputSHA256})
				}
				return passes
			}
			first := run("a", "--sessions", "3", "--announce", "4", "--record", record, "--plot", plot)
			if n := first[0].compiles; n < 1 || n > mostPrograms || first[1].compiles > 0 || first[1].bits != first[0].bits {
				t.Errorf("compiles, hits on disk and bits %v", first)
			}
			if _, err := os.Stat(plot); err != nil {
				t.Error(err)
			}
			if again := run("a", "--sessions", "1"); again[0].compiles > 0 || again[0].disk != first[0].compiles || again[0].bits != first[0].bits {
				t.Errorf("%v from the store, after %v", again, first)
			}
			counted := make(map[string]int64)
			for line := range strings.Lines(done(t, "warm", "--manifest", record, "--store", filepath.Join(dir, "b"), "--json")) {
				var w warmed
				if err := json.Unmarshal([]byte(line), &w); err != nil {
					t.Fatal(err)
				}
				counted[w.Result]++
			}
			if counted[warmBuilt] != first[0].compiles || counted[warmHit] == 0 || len(counted) != 2 {
				t.Errorf("warmed %v, want %d programs built and the other shapes hits", counted, first[0].compiles)
			}
			if warm := run("b"); warm[0].compiles > 0 || warm[0].bits != first[0].bits {
				t.Errorf("%v from a store that was warmed, after %v", warm, first)
			}
		})
	}
}

// E7, P17: on oneDNN the model runs in several sessions, cold and warm, with outputs that
// kiln run has held against float64; programs are for a shape each; of a store that is
// there a warning says that nothing is in it, and why; kiln warm fails for the same reason.
func TestRunOnOneDNN(t *testing.T) {
	if d := gpuexec.Find(onednn.Name).Devices(t.Context())[0]; !d.Available {
		t.Skip(d.Reason)
	}
	dir := t.TempDir()
	record := filepath.Join(dir, "record")
	run, warnings := warned(t, slices.Concat(tiny, []string{"--device", onednn.Name, "--requests", "24", "--sessions", "3", "--announce", "4",
		"--store", dir, "--record", record})...)
	if len(run.Passes) != 2 || len(warnings) != 1 || !strings.Contains(warnings[0], "nothing native of this backend is stored: it gives no blobs") || !strings.Contains(warnings[0], "oneDNN has no blobs on processors") {
		t.Errorf("%d passes, warnings %q", len(run.Passes), warnings)
	}
	for i, p := range run.Passes {
		if p.Errors > 0 || p.Requests != 24 || (p.Compiles == 0) != (i > 0) || p.Hits.Disk > 0 || !(p.MaxAbsError > 0 && p.MaxAbsError < 1e-4) {
			t.Errorf("pass %s: %+v", p.Name, p)
		}
	}
	code, text, errs := invoke("warm", "--manifest", record, "--store", filepath.Join(dir, "b"))
	if code != exitFinding && code != exitFailed || !strings.Contains(text+errs, "oneDNN has no blobs on processors") {
		t.Errorf("kiln warm: exit %d, %s%s", code, text, errs)
	}
}

// passOf is what a pass compiled, found on disk and gave.
type passOf struct {
	compiles, disk int64
	bits           string
}

// A device whose driver is not installed says what to install, as an error of the work;
// its backend is known by name, and nothing of it is stored or found without a driver.
func TestAbsentDevice(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, key := t.TempDir(), file(t, "key", "k")
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"run", "--device", "opencl", "--requests", "1"}, exitFailed},
		{[]string{"cache", "get", "--backend", "opencl", "--store", dir, "--key-file", key}, exitUsage},
		{[]string{"cache", "explain", "--backend", "opencl", "--store", dir, "--key-file", key}, exitUsage},
	} {
		cmd := exec.CommandContext(t.Context(), self, c.args...)
		cmd.Env = append(cmd.Environ(), "OCL_ICD_VENDORS="+dir) // a loader without a driver; there may be none at all
		text, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(text), "unavailable: ") || !strings.Contains(string(text), ": install ") {
			t.Errorf("kiln %v: %v, %s", c.args, err, text)
		}
	}
}

// A device without a driver is not measured, and says what to install; --gate does not hold then.
func TestBenchOfAbsentDevices(t *testing.T) {
	benchWithoutDrivers(t, exitDone, "not measured: ")
	benchWithoutDrivers(t, exitFinding, "not measured: ", "--gate")
}

// One that was asked for is an error of the work, whichever its number.
func TestBenchOfAnAbsentDevice(t *testing.T) {
	for _, device := range []string{"vulkan", "vulkan:1"} {
		benchWithoutDrivers(t, exitFailed, device+": unavailable: ", "--device", device)
	}
}

// What kiln bench device measures runs on cpu and on oneDNN, where that is here.
func TestWhatBenchDeviceRuns(t *testing.T) {
	names := []string{cpu.Name}
	if gpuexec.Find(onednn.Name).Devices(t.Context())[0].Available {
		names = append(names, onednn.Name)
	}
	err := withMiniLM(t.Context(), 1, func(m miniLM) error {
		m.ids[0] = m.ids[0][:8]
		for _, name := range names {
			b, err := m.on(t.Context(), gpuexec.Find(name).(ops.Library), 0)
			if err != nil {
				return err
			}
			defer b.close()
			if err := errors.Join(b.exec.Submit(t.Context(), b.products[0]), b.run(t.Context(), 0, m.ids), b.hit(t.Context())); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func benchWithoutDrivers(t *testing.T, want int, word string, args ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append([]string{"bench", "device"}, args...)...)
	none := filepath.Join(t.TempDir(), "none")
	cmd.Env = append(cmd.Environ(), "OCL_ICD_VENDORS="+t.TempDir(), "VK_ICD_FILENAMES="+none, "KILN_ONEDNN_LIBRARY="+none)
	text, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != want || !strings.Contains(string(text), word) || !strings.Contains(string(text), "install ") {
		t.Errorf("%v: exit %d, want %d, %v: %s", args, code, want, err, text)
	}
}

// P12: explain and get know the backends that are registered, whether or not they run
// operations.
func TestCacheKnowsBackends(t *testing.T) {
	dir, key := t.TempDir(), file(t, "key", "k")
	for _, b := range gpuexec.Backends() {
		args := []string{"--backend", b.Name(), "--store", dir, "--key-file", key}
		get, explain := exitNotFound, exitDone
		if !b.Devices(context.Background())[0].Available {
			get, explain = exitUsage, exitUsage
		}
		if code, _, errs := invoke(append([]string{"cache", "get"}, args...)...); code != get {
			t.Errorf("get of %s: exit %d, %s", b.Name(), code, errs)
		}
		if code, _, errs := invoke(append([]string{"cache", "explain"}, args...)...); code != explain {
			t.Errorf("explain of %s: exit %d, %s", b.Name(), code, errs)
		}
	}
}

// KILN_DRIVER_CACHES=1 puts what drivers keep of their own below the store's directory,
// which is as whole a store as before, and a second process finds it there. kiln warm,
// which runs nothing but what PoCL is to keep, does so too.
func TestDriverCaches(t *testing.T) {
	folders := map[string]string{"opencl": "pocl", "vulkan": "mesa"} // of the drivers that tests have
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range ops.Names() {
		if folders[name] == "" || !gpuexec.Find(name).Devices(t.Context())[0].Available {
			continue
		}
		// kept is how much the driver has in a store after a command, whose home is empty.
		kept := func(store string, args ...string) int {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), self, append(args, "--store", store)...)
			cmd.Env = slices.DeleteFunc(cmd.Environ(), func(v string) bool {
				return strings.HasPrefix(v, "POCL_CACHE_DIR=") || strings.HasPrefix(v, "MESA_SHADER_CACHE_")
			})
			cmd.Env = append(cmd.Env, "KILN_DRIVER_CACHES=1", "XDG_CACHE_HOME="+t.TempDir())
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			paths, err := filepath.Glob(filepath.Join(store, ".drivers", "*", folders[name], "*", "*"))
			if err != nil {
				t.Fatal(err)
			}
			return len(paths)
		}
		dir, other, record := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "record")
		run := slices.Concat(tiny, []string{"--device", name, "--requests", "2", "--record", record})
		counts := []int{kept(dir, run...), kept(dir, run...)}
		for len(counts) < 6 && counts[len(counts)-1] != counts[len(counts)-2] { // Mesa drops what it did not come to write
			counts = append(counts, kept(dir, run...))
		}
		if last := len(counts) - 1; counts[0] == 0 || counts[last] != counts[last-1] {
			t.Errorf("%s keeps %d files or folders after each process: want the last two equal", name, counts)
		}
		if n := kept(other, "warm", "--manifest", record); n == 0 && name == "opencl" {
			t.Error("opencl keeps nothing of what was warmed")
		}
		done(t, "cache", "verify", "--store", dir)
		if list := done(t, "cache", "ls", "--store", dir); strings.Contains(list, "drivers") {
			t.Errorf("%s: the caches are listed as entries: %s", name, list)
		}
	}
}
