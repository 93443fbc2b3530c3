//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// A call whose context has ended costs no helper.
func TestEndedContextEndsNoHelper(t *testing.T) {
	h := helpers(t, 1)
	if _, err := h.Compile(bg, kernel(1)); err != nil {
		t.Fatal(err)
	}
	ended, stop := context.WithCancel(bg)
	stop()
	for i := range 40 {
		if _, err := h.Compile(ended, kernel(i)); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the context's error", err)
		}
	}
	if n := h.mu.started; n > 1 {
		t.Errorf("%d processes were started for one compile and 40 that nobody waits for", n)
	}
}

// A helper that nobody uses is ended and waited for: it is no zombie.
func TestIdleHelperGoes(t *testing.T) {
	h := helpers(t, 1)
	h.patience = time.Millisecond
	p, err := h.take()
	if err != nil {
		t.Fatal(err)
	}
	h.keep(p)
	for deadline := time.Now().Add(time.Minute); !errors.Is(syscall.Kill(p.Cmd.Process.Pid, 0), syscall.ESRCH); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is still there after a minute")
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.mu.idle) > 0 {
		t.Error("it may be taken")
	}
}

// A helper that has grown too large is ended after its compile, and another one serves.
func TestLargeHelperIsReplaced(t *testing.T) {
	h := helpers(t, 1)
	h.memory = 1
	for i := range 2 {
		if out, err := h.Compile(bg, kernel(i)); err != nil || len(out.Cubin) == 0 {
			t.Fatal(err)
		}
		if len(h.mu.idle) > 0 || h.mu.started != i+1 {
			t.Errorf("%d helpers are kept, %d were started", len(h.mu.idle), h.mu.started)
		}
	}
	h.memory = mostMemory
	for i := range 2 {
		if _, err := h.Compile(bg, kernel(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := h.mu.idle[0].memory(); h.mu.started != 3 || n < 1<<20 || n > mostMemory/2 {
		t.Errorf("%d were started, the last one has %d bytes", h.mu.started, n)
	}
}

// Who compiles with one compiler shares its helpers, which end with the last of them.
func TestShare(t *testing.T) {
	l := need(t)
	a, b := Share(l.Path), Share(l.Path)
	if a != b || cap(a.slots) != runtime.GOMAXPROCS(0) {
		t.Fatalf("%d helpers at most, or not the same ones", cap(a.slots))
	}
	if other := Share("/nowhere/libnvrtc.so.13"); other == a {
		t.Error("two compilers have the same helpers")
	} else {
		other.Leave()
	}
	a.Leave()
	b.patience = time.Hour
	if _, err := b.Compile(bg, kernel(1)); err != nil || len(b.mu.idle) != 1 {
		t.Fatalf("once the other has left: %v, %d wait", err, len(b.mu.idle))
	}
	p := b.mu.idle[0].Cmd.Process.Pid
	b.Leave()
	if err := syscall.Kill(p, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("its process after all have left: %v", err)
	}
	if c := Share(l.Path); c == b {
		t.Error("what was closed is given again")
	} else {
		c.Leave()
	}
}

// A helper that is killed while it compiles is replaced, and the request goes on. It ends
// with its context, and so does one whose helper hangs.
func TestKilledAtWork(t *testing.T) {
	h := helpers(t, 1)
	if _, err := h.Compile(bg, kernel(1)); err != nil {
		t.Fatal(err)
	}
	p := h.mu.idle[0]
	state := func() (idle, started int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.mu.idle), h.mu.started
	}
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() {
		_, err := h.Compile(ctx, long())
		done <- err
	}()
	for idle := 1; idle > 0; idle, _ = state() {
		runtime.Gosched()
	}
	p.Kill()
	for started := 1; started < 2; _, started = state() {
		select {
		case err := <-done:
			t.Fatalf("%v, want another process", err)
		default:
			runtime.Gosched()
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
	if _, err := h.Compile(bg, kernel(1)); err != nil {
		t.Fatal(err)
	}
	p = h.mu.idle[0]
	if err := p.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	within, stop := context.WithDeadline(bg, time.Now().Add(10*time.Millisecond))
	defer stop()
	if _, err := h.Compile(within, kernel(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("by a process that is stopped: %v, want the deadline", err)
	}
	if out, err := h.Compile(bg, kernel(1)); err != nil || len(out.Cubin) == 0 {
		t.Errorf("the next one: %v", err)
	}
}

// atWork waits for another helper of this process than that one, which has opened the
// compiler: it has said then that it got its request. A process that is being started has
// this one's name, and its compiler too, until it is a helper. done is the end of the compile.
func atWork(t *testing.T, other int, done <-chan error) (pid int) {
	t.Helper()
	for len(done) == 0 {
		list, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range list {
			text, _ := os.ReadFile(path)
			if _, err := fmt.Sscan(string(text), &pid); err != nil || pid == other {
				continue
			}
			about := func(what string) string {
				text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, what))
				return string(text)
			}
			if strings.HasPrefix(about("cmdline"), helperName) && strings.Contains(about("maps"), "libnvrtc.so") {
				return pid
			}
		}
		runtime.Gosched()
	}
	t.Fatalf("the compile has ended: %v", <-done)
	return 0
}

// R3: a text whose processes others have killed is not invalid: it may be tried again.
func TestKilledByOthers(t *testing.T) {
	h := helpers(t, 1)
	for sig, want := range map[syscall.Signal]error{
		syscall.SIGKILL: fault.ErrOverloaded, syscall.SIGTERM: fault.ErrOverloaded, syscall.SIGSEGV: fault.ErrInvalid,
		syscall.SIGINT: fault.ErrOverloaded, syscall.SIGHUP: fault.ErrOverloaded, // of a terminal, for all its processes
	} {
		if signal.Ignored(sig) { // as behind nohup: helpers have that from this process
			t.Logf("LEFT OUT: %v, which whoever started this test ignores", sig)
			continue
		}
		done := make(chan error, 1)
		go func() {
			_, err := h.Compile(bg, long())
			done <- err
		}()
		first := atWork(t, 0, done)
		if err := syscall.Kill(first, sig); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(atWork(t, first, done), sig); err != nil { // the one that is started instead
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, want) || errors.Is(err, fault.ErrInvalid) != (want == fault.ErrInvalid) {
			t.Errorf("%v: %v, want %v", sig, err, want)
		}
	}
}

// untold has nobody tell how processes end, until what it gives is called.
func untold() (again func()) {
	signal.Ignore(syscall.SIGCHLD)
	return func() {
		handled := make(chan os.Signal, 1)
		signal.Notify(handled, syscall.SIGCHLD) // Reset alone would leave it ignored
		signal.Stop(handled)
	}
}

// R3: where nobody tells how processes end, as in a host in C that ignores SIGCHLD, a text is not
// to blame, and nothing hangs.
func TestEndThatNobodyTells(t *testing.T) {
	defer untold()()
	h := helpers(t, 1)
	if _, err := h.Compile(bg, kernel(1)); err != nil {
		t.Errorf("a compile while SIGCHLD is ignored: %v", err)
	}
	h.Close()
	h = helpers(t, 1)
	done := make(chan error, 1)
	go func() {
		_, err := h.Compile(bg, long())
		done <- err
	}()
	first := atWork(t, 0, done)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(atWork(t, first, done), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, fault.ErrOverloaded) || errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "SIGCHLD") {
		t.Errorf("killed twice: %v, want ErrOverloaded, and why no more is known", err)
	}
	other := NewHelpers("early: exit 0", 1)
	defer other.Close()
	if _, err := other.Compile(bg, kernel(1)); !errors.Is(err, fault.ErrOverloaded) || !strings.Contains(err.Error(), "InProcess") {
		t.Errorf("ended early: %v, want ErrOverloaded, and what to do", err)
	}
}

// R3: a library whose program is of another build, as an upgrade leaves it, says so, and what is
// compiled is of one build.
func TestHelperOfAnotherBuild(t *testing.T) {
	defer func(own func() string) { build = own }(build)
	build = func() string { return "another" }
	large := kernel(1)
	large.Text += "//" + strings.Repeat("x", 1<<20) // more than a pipe takes: it cannot be sent
	for _, told := range []bool{true, false} {
		if !told {
			defer untold()()
		}
		for _, r := range []Request{kernel(1), large} {
			h := helpers(t, 1)
			if _, err := h.Compile(bg, r); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "kiln-child is of another build") || h.mu.started != 1 {
				t.Errorf("%v, and %d were started, want ErrUnavailable of one, and why", err, h.mu.started)
			}
			h.Close()
		}
	}
}

// A text that makes the compiler take memory without an end ends a helper, and not the machine.
func TestHelperIsBounded(t *testing.T) {
	h := helpers(t, 1)
	if _, err := h.Compile(bg, kernel(1)); err != nil {
		t.Fatal(err)
	}
	read := func(file, line string) (n int64) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", h.mu.idle[0].Cmd.Process.Pid, file))
		found := regexp.MustCompile(line + `\s+(\d+)`).FindSubmatch(text)
		if err != nil || found == nil {
			t.Fatalf("%v, no line %q in %s", err, line, text)
		}
		n, err = strconv.ParseInt(string(found[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if most, has := read("limits", "Max data size"), read("status", "VmData:")<<10; most < mostAtWork || most > mostAtWork+2*has {
		t.Errorf("a helper that has %d bytes may have %d, want %d more", has, most, mostAtWork)
	}
}

// A program that has more rights than whoever starts it does not load what it is told to.
func TestRaisedProgramServesNobody(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, who makes a program with its rights for others")
	}
	dir, err := os.MkdirTemp("", "raised")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for mode, want := range map[os.FileMode]bool{0o755: true, 0o755 | os.ModeSetuid: false} {
		path := filepath.Join(dir, mode.String())
		if err := errors.Join(os.Chmod(dir, 0o755), copyOf(path), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		if served := serves(t, path); served != want {
			t.Errorf("%v: serves %v, want %v", mode, served, want)
		}
	}
}

func copyOf(path string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, self)
	return errors.Join(err, f.Close())
}

// serves reports whether a program answers another user as a helper. One that does not
// runs no tests, and ends.
func serves(t *testing.T, path string) bool {
	t.Helper()
	requests, to, err1 := os.Pipe()
	from, replies, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Args, cmd.ExtraFiles = []string{helperName, "-test.run=^$"}, []*os.File{requests, replies}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = requests.Close(), replies.Close()
	enc := gob.NewEncoder(to)
	_, _ = enc.Encode(build()), enc.Encode(kernel(1)) // fail where nobody reads
	var r reply
	var theirs string
	dec := gob.NewDecoder(from)
	err := errors.Join(dec.Decode(&theirs), dec.Decode(&r))
	_, _ = to.Close(), from.Close()
	_ = cmd.Wait()
	return err == nil
}
