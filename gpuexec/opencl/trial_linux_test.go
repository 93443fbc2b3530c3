//go:build linux && (amd64 || arm64)

package opencl

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// blobOf is the blob of a source as another installation makes it.
func blobOf(t testing.TB, src gpuexec.Source) []byte {
	t.Helper()
	d, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	made, err := d.Compile(bg, src)
	if err != nil {
		t.Fatal(err)
	}
	blob, err := made.Blob(bg)
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

// broken is a whole blob of a source that PoCL dies of.
func broken(t testing.TB, src gpuexec.Source) []byte {
	t.Helper()
	binary, err := format.Open(src.Key, blobOf(t, src))
	if err != nil {
		t.Fatal(err)
	}
	return format.Seal(src.Key, binary[:len(binary)/2])
}

// endless is a source whose one block never comes to an end, on zeros, and its blob. No
// process but a child runs it so.
func endless(t testing.TB) (gpuexec.Source, []byte) {
	t.Helper()
	code := gpuexec.Code{Language: Language, Entry: "k", Text: "kernel void k(global volatile int *a) { while (a[0] == 0); }"}
	param := gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 16}
	src, err := code.Source(param)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := format.Open(src.Key, blobOf(t, src))
	if err != nil {
		t.Fatal(err)
	}
	code.Block = gpuexec.Size{1}
	if src, err = code.Source(param); err != nil {
		t.Fatal(err)
	}
	return src, format.Seal(src.Key, binary)
}

// trying opens a device with a file of known blobs.
func trying(t testing.TB, file string) *device {
	t.Helper()
	d, err := New(Config{KnownBlobs: file}).Open(bg, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d.(*device)
}

// noChild has every trial fail from here on.
func noChild(t testing.TB) { t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "absent")) }

func loads(t testing.TB, d *device, src gpuexec.Source, blob []byte) {
	t.Helper()
	made, err := d.Load(bg, src, blob)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Release()
	if err := launchAlone(d, made, 4); err != nil {
		t.Error(err)
	}
}

func lines(t testing.TB, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

// P11: a blob that was not seen here is tried in a child, once, and what is compiled here
// is not; a blob that cannot be tried is not loaded, and not to blame.
func TestFirstLoadInChild(t *testing.T) {
	needDevice(t)
	file := filepath.Join(t.TempDir(), "known")
	src := sourceOf(t, 40)
	blob, other := blobOf(t, src), blobOf(t, sourceOf(t, 41))
	d := trying(t, file)
	if n := lines(t, file); n != 0 {
		t.Fatalf("%d blobs are known at first", n)
	}
	loads(t, d, src, blob)
	made, err := d.Compile(bg, sourceOf(t, 42))
	if err != nil {
		t.Fatal(err)
	}
	own, err := made.Blob(bg)
	if err != nil {
		t.Fatal(err)
	}
	if n := lines(t, file); n != 2 {
		t.Errorf("%d blobs are known, want that which was loaded and that which was made", n)
	}
	noChild(t)
	loads(t, trying(t, file), src, blob)
	loads(t, d, sourceOf(t, 42), own)
	if _, err := d.Load(bg, sourceOf(t, 41), other); !errors.Is(err, fault.ErrUnavailable) || errors.Is(err, fault.ErrRefused) {
		t.Errorf("without a child: %v, want ErrUnavailable", err)
	}
	if _, err := New(Config{KnownBlobs: filepath.Join(file, "below")}).Open(bg, 0); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a file that cannot be: %v, want ErrInvalid", err)
	}
}

// P11: a program of another build beside the library, as an upgrade leaves it, tries no blob,
// and no blob is to blame.
func TestChildOfAnotherBuild(t *testing.T) {
	needDevice(t)
	d, src := trying(t, filepath.Join(t.TempDir(), "known")), sourceOf(t, 45)
	blob := blobOf(t, src)
	defer func(own func() string) { build = own }(build)
	build = func() string { return "another" }
	if _, err := d.Load(bg, src, blob); !errors.Is(err, fault.ErrUnavailable) || errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), "kiln-child is of another build") {
		t.Errorf("%v, want ErrUnavailable, and why", err)
	}
}

// P11: a driver that dies of a blob ends a child, and the blob is refused.
func TestDriverDiesInChild(t *testing.T) {
	needDevice(t)
	d := trying(t, filepath.Join(t.TempDir(), "known"))
	src := sourceOf(t, 43)
	bad := broken(t, src)
	for range 2 {
		_, err := d.Load(bg, src, bad)
		if reason, _ := fault.ReasonOf(err); !errors.Is(err, fault.ErrRefused) || reason != fault.DriverRefused || !strings.Contains(err.Error(), "ended the child") {
			t.Errorf("%v, want ErrRefused of a driver that ended the child", err)
		}
	}
	loads(t, d, src, blobOf(t, src))
}

// P11: a driver that hangs is ended with its child; so is one that nobody waits for, whose
// blob is not to blame.
func TestDriverHangsInChild(t *testing.T) {
	needDevice(t)
	d := trying(t, filepath.Join(t.TempDir(), "known"))
	src, blob := endless(t)
	ctx, cancel := context.WithTimeout(bg, 2*time.Second)
	defer cancel()
	if _, err := d.Load(ctx, src, blob); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fault.ErrRefused) {
		t.Errorf("%v, want the context's error", err)
	}
	d.patience = time.Second
	_, err := d.Load(bg, src, blob)
	if reason, _ := fault.ReasonOf(err); !errors.Is(err, fault.ErrRefused) || reason != fault.DriverRefused || !strings.Contains(err.Error(), "within 1s") {
		t.Errorf("%v, want ErrRefused of a driver that hung", err)
	}
	if left := trials(t, os.Getpid()); len(left) > 0 {
		t.Errorf("children are left: %d", left)
	}
}

// TestHangForever is a process that TestChildEndsWithParent starts.
func TestHangForever(t *testing.T) {
	if flag.Lookup("child").Value.String() != "hang" {
		t.Skip("it is for a process that another test starts")
	}
	src, blob := endless(t)
	_, err := trying(t, filepath.Join(t.TempDir(), "known")).Load(bg, src, blob)
	t.Fatal(err)
}

// P11: a child ends with whoever started it, in the middle of its driver's work, and leaves
// nothing.
func TestChildEndsWithParent(t *testing.T) {
	needDevice(t)
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestHangForever$", "-child=hang")
	cmd.Env = append(cmd.Environ(), "TMPDIR="+tmp)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait := func(what string, most time.Duration, done func() bool) {
		t.Helper()
		for began := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > most {
				t.Fatal(what)
			}
		}
	}
	var pid int
	wait("no child that works", 3*time.Minute, func() bool {
		for _, pid = range trials(t, cmd.Process.Pid) {
			return ticks(pid) > 100 // it was long enough in its kernel
		}
		return false
	})
	t.Cleanup(func() {
		if ticks(pid) >= 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	if left, _ := filepath.Glob(filepath.Join(tmp, "kiln-*", "*")); len(left) == 0 {
		t.Error("the child has no cache of its own")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	wait("the child is still there", 20*time.Second, func() bool { return ticks(pid) < 0 })
	if left, _ := filepath.Glob(filepath.Join(tmp, "kiln-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// trials are the children of a process that try a blob.
func trials(t testing.TB, parent int) (all []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		line, _ := os.ReadFile(name)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if fields := stat(pid); bytes.HasPrefix(line, []byte(trialName+"\x00")) && len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			all = append(all, pid)
		}
	}
	return all
}

// stat is what the system says of a process, behind its name; empty: there is none.
func stat(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

// ticks is the time of a processor that a process took; -1: it has ended.
func ticks(pid int) int {
	fields := stat(pid)
	if len(fields) < 13 || fields[0] == "Z" {
		return -1
	}
	n, _ := strconv.Atoi(fields[11])
	return n
}

// maker is the backend with another blob for what it compiles.
type maker struct {
	backend
	blob []byte
}

func (m maker) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := m.backend.Open(ctx, index)
	return made{d, m.blob}, err
}

type made struct {
	gpuexec.Device
	blob []byte
}

func (m made) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	p, err := m.Device.Compile(ctx, src)
	return other{p, m.blob}, err
}

type other struct {
	gpuexec.Program
	blob []byte
}

func (o other) Blob(context.Context) ([]byte, error) { return o.blob, nil }

// P11, P3: a blob of a store that ends its driver is set aside, the kernel is compiled, and
// the next process finds what was compiled.
func TestStoredBlobThatEndsItsDriver(t *testing.T) {
	needDevice(t)
	dir, src := filepath.Join(t.TempDir(), "store"), sourceOf(t, 44)
	known := filepath.Join(t.TempDir(), "known")
	for _, step := range []struct {
		backend gpuexec.Backend
		want    kiln.Event
		run     bool
	}{
		{&maker{blob: broken(t, src)}, kiln.Event{Artefact: kiln.Miss, Reason: fault.Absent}, false},
		{New(Config{KnownBlobs: known}), kiln.Event{Artefact: kiln.Miss, Reason: fault.DriverRefused}, true},
		{backend{}, kiln.Event{Artefact: kiln.PersistentHit}, true},
	} {
		var got kiln.Event
		rt, err := kiln.Open(kiln.Config{StoreDir: dir, StoreRequired: true, Listen: func(e kiln.Event) { got = e }})
		if err != nil {
			t.Fatal(err)
		}
		e, err := rt.Executor(bg, step.backend, 0)
		if err != nil {
			t.Fatal(err)
		}
		session, err := rt.Session(kiln.SessionConfig{})
		if err != nil {
			t.Fatal(err)
		}
		group, err := session.Group(bg, []int64{1})
		if err != nil {
			t.Fatal(err)
		}
		kernel, err := group.Kernel(bg, "k", e, src)
		if err != nil {
			t.Fatal(err)
		}
		if got.Artefact != step.want.Artefact || got.Reason != step.want.Reason {
			t.Errorf("%s, %s, want %s, %s", got.Artefact, got.Reason, step.want.Artefact, step.want.Reason)
		}
		if step.run {
			runs(t, e, kernel)
		}
		group.Close()
		if err := rt.Close(bg); err != nil {
			t.Error(err)
		}
	}
}

// runs launches the kernel of sourceOf(t, 44) and looks at what it gives.
func runs(t testing.TB, e *gpuexec.Executor, kernel *gpuexec.Kernel) {
	t.Helper()
	a, err1 := e.Alloc(bg, 16)
	b, err2 := e.Alloc(bg, 16)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer a.Release()
	defer b.Release()
	var out [4]int32
	if err := e.Submit(bg, gpuexec.Launch{Kernel: kernel, Grid: gpuexec.Size{1},
		Args: []gpuexec.Arg{gpuexec.BufferArg(a), gpuexec.BufferArg(b), gpuexec.ValueArg(int32(1)), gpuexec.LocalArg(64)}},
		gpuexec.CopyFrom(b, 0, gpuexec.BytesOf(out[:]))); err != nil || out != [4]int32{45, 45, 45, 45} {
		t.Errorf("%v, %v", out, err)
	}
}
