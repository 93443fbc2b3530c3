//go:build linux && (amd64 || arm64)

package onednn

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// mode says what a process of this test's own is to do.
const mode = "KILN_TEST_ONEDNN_MODE"

// child runs one test in a process of its own.
func child(t *testing.T, name, what string, environment ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+name+"$", "-test.v")
	cmd.Env = append(append(cmd.Environ(), mode+"="+what, variable+"="+path()), environment...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

func is(what string) bool {
	got, _ := env.Process()(mode)
	return got == what
}

// Where OpenMP was there first, with more threads, executions have one all the same, and
// About says what was found.
func TestOpenMPWasHere(t *testing.T) {
	if !is("openmp") {
		need(t, 1)
		child(t, "TestOpenMPWasHere", "openmp", "OMP_NUM_THREADS=2")
		return
	}
	gomp, err := dlopen("libgomp.so.1")
	if err != nil {
		t.Skip(err)
	}
	var omp struct {
		Most func() int32 `c:"omp_get_max_threads"`
	}
	if err := bind(gomp, &omp); err != nil || omp.Most() != 2 {
		t.Fatal(omp.Most(), err)
	}
	r := open1(t, limit.Limit{})
	a := r.About()
	if !strings.Contains(a.OpenMP, "with 2 threads") {
		t.Errorf("About says %q", a.OpenMP)
	}
	before := threads(t)
	p := r.kernel(matmul(256, 256, 256, Dense("f32", 256, 256)))
	square := Dense("f32", 256, 256)
	for range 3 {
		r.run(p, Arg{Src, r.filled(1, square)}, Arg{Weights, r.filled(2, square)}, Arg{Bias, r.filled(3, Dense("f32", 1, 256))}, Arg{Dst, r.memory(square)})
	}
	ran := uint32(0)
	r.image.alone(func() { ran = uint32(omp.Most()) })
	if ran != 1 {
		t.Errorf("an execution has %d threads", ran)
	}
	t.Log(before, threads(t)) // Go's own come and go
	var all sync.WaitGroup    // what was told to a thread is true of that thread: the goroutine stays there
	for range 16 {
		all.Go(func() {
			r.image.alone(func() {
				first := unix.Gettid()
				for range 50 {
					time.Sleep(50 * time.Microsecond)
					if now := unix.Gettid(); now != first {
						t.Errorf("an execution that began on thread %d goes on on %d", first, now)
						return
					}
				}
			})
		})
	}
	all.Wait()
}

// Where OpenMP was there first, an implementation is looked for, a primitive made and run with
// one thread each: what is chosen for three does not fit an execution that has one.
func TestOneThreadForEveryCall(t *testing.T) {
	if !is("openmp calls") {
		need(t, 1)
		child(t, "TestOneThreadForEveryCall", "openmp calls", "OMP_NUM_THREADS=3")
		return
	}
	gomp, err := dlopen("libgomp.so.1")
	if err != nil {
		t.Skip(err)
	}
	var omp struct {
		Most func() int32        `c:"omp_get_max_threads"`
		Set  func(threads int32) `c:"omp_set_num_threads"`
	}
	if err := bind(gomp, &omp); err != nil || omp.Most() != 3 {
		t.Fatal(omp.Most(), err)
	}
	r := open1(t, limit.Limit{})
	l := r.Library
	first, next := matmul(4, 8, 16, Dense("f32", 8, 16)), 0
	p := r.kernel(first)
	runtime.LockOSThread() // the number is the thread's own
	defer runtime.UnlockOSThread()
	reorder, err := primitive.Reorder([]tensor{Dense("f32", 3, 5), {Type: "f32", Dims: []int64{3, 5}, Strides: []int64{1, 3}}})
	if err != nil {
		t.Fatal(err)
	}
	c := l.c
	plan, create, execute := c.ReorderPlan, c.Make, c.Execute
	defer func() { c.ReorderPlan, c.Make, c.Execute = plan, create, execute }()
	c.Make = func(h *handle, pd handle) int32 {
		if n := omp.Most(); n != 1 {
			t.Errorf("a primitive is made with %d threads", n)
		}
		return create(h, pd)
	}
	c.Execute = func(h, stream handle, n uintptr, args *execArg) int32 {
		if n := omp.Most(); n != 1 {
			t.Errorf("a primitive runs with %d threads", n)
		}
		return execute(h, stream, n, args)
	}
	c.ReorderPlan = func(h *handle, src *memoryDesc, from handle, dst *memoryDesc, to, attr handle) int32 {
		if n := omp.Most(); n != 1 {
			t.Errorf("an implementation is looked for with %d threads", n)
		}
		return plan(h, src, from, dst, to, attr)
	}
	omp.Set(3)
	for _, err := range l.walk(bg, &reorder) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range l.walk(bg, &first) {
		if n := omp.Most(); err != nil || n != 1 {
			t.Fatalf("implementation %d is looked for with %d threads: %v", next, n, err)
		}
		next++
		omp.Set(3)
	}
	if next < 2 {
		t.Errorf("%d implementations", next)
	}
	omp.Set(3)
	built, err := l.Create(bg, p.Descriptor())
	if err != nil {
		t.Fatal(err)
	}
	built.Free()
	omp.Set(3)
	r.run(p, Arg{Src, r.filled(1, Dense("f32", 4, 8))}, Arg{Weights, r.filled(2, Dense("f32", 8, 16))}, Arg{Bias, r.filled(3, Dense("f32", 1, 16))},
		Arg{Dst, r.memory(Dense("f32", 4, 16))})
}

func threads(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

type disposition struct {
	handler, flags, restorer, mask uint64
}

func dispositions() (all [65]disposition) {
	for n := 1; n <= 64; n++ {
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), 0, uintptr(unsafe.Pointer(&all[n])), 8, 0, 0)
	}
	return all
}

// E4: neither loading nor using the library changes a signal's handler, and a nil
// dereference is recovered as ever.
func TestSignals(t *testing.T) {
	if !is("signals") {
		need(t, 1)
		child(t, "TestSignals", "signals")
		return
	}
	before := dispositions()
	if err := life(imageOf(t)); err != nil {
		t.Fatal(err)
	}
	if now := dispositions(); now != before {
		t.Error("handlers of signals have changed")
	}
	defer func() {
		if recover() == nil {
			t.Error("a nil dereference was not recovered")
		}
	}()
	var nowhere *int
	*nowhere = 1
}

func imageOf(t *testing.T) *image {
	t.Helper()
	im, err := load(path())
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// A process has one library; E2: what is none is unavailable, with what to install.
func TestAnotherLibrary(t *testing.T) {
	if !is("absent") {
		need(t, 1)
		for wrong, want := range map[string]error{"/none/libdnnl.so.3": fault.ErrUnavailable, "libc.so.6": fault.ErrInvalid} {
			if _, err := Open(Config{Path: wrong}); !errors.Is(err, want) {
				t.Errorf("%s behind another: %v, want %v", wrong, err, want)
			}
		}
		if _, err := Open(Config{Path: path(), Workers: -1}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("-1 workers: %v", err)
		}
		child(t, "TestAnotherLibrary", "absent")
		return
	}
	for _, wrong := range []string{"/none/libdnnl.so.3", "libc.so.6"} {
		_, err := Open(Config{Path: wrong})
		if !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "libdnnl2") {
			t.Errorf("%s: %v, want ErrUnavailable with what to install", wrong, err)
		}
		d := New(wrong).Devices(bg)
		if len(d) != 1 || d[0].Available || !strings.Contains(d[0].Reason, "install") {
			t.Errorf("%+v", d)
		}
	}
	need(t, 1) // it is not too late
}

// E2: another name of the file that is loaded, such as a link, is not another library.
func TestLinkToTheLoadedLibrary(t *testing.T) {
	l := need(t, 1)
	link := filepath.Join(t.TempDir(), "libdnnl.so")
	if err := os.Symlink(l.About().Path, link); err != nil {
		t.Fatal(err)
	}
	other, err := Open(Config{Path: link, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
}
