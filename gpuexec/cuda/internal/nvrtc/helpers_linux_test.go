//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"context"
	"encoding/gob"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
	for deadline := time.Now().Add(time.Minute); !errors.Is(syscall.Kill(p.cmd.Process.Pid, 0), syscall.ESRCH); time.Sleep(time.Millisecond) {
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
	_ = gob.NewEncoder(to).Encode(kernel(1)) // fails where nobody reads
	var r reply
	err := gob.NewDecoder(from).Decode(&r)
	_, _ = to.Close(), from.Close()
	_ = cmd.Wait()
	return err == nil
}
