//go:build cgo && linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// says runs a program of testdata, which prints ok where all is as it should be.
func says(t *testing.T, path string, args ...string) {
	t.Helper()
	if said, logged := ran(t, path, args...); said != "ok\n" {
		t.Errorf("%s %q says %s\n%s", filepath.Base(path), args, said, logged[max(0, len(logged)-3000):])
	}
}

// ran gives what a program prints and what the library logs beside that.
func ran(t *testing.T, path string, args ...string) (said, logged string) {
	t.Helper()
	var out, log strings.Builder
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Errorf("%s %q: %v", filepath.Base(path), args, err)
	}
	return out.String(), log.String()
}

// B4, G12, F8: a runtime, a device or a kernel is freed by three threads at once while 16 others
// call every function on it, and while a kernel is being made. Each call ends well or says
// KILN_CLOSED, and all that come later say that.
func TestFreedWhileInUse(t *testing.T) {
	closing := program(t, library(t), "closing")
	says(t, closing, "fake", "fake", "6")
	says(t, closing, "cpu", "none", "3")
	needs(t, "opencl")
	says(t, closing, "opencl", "opencl-c", "3")
}

// B4, E3, R3: handles of another kind, null pointers, absurd lengths and counts, and parameters
// that cannot be are KILN_INVALID; a zero byte in a text is a part of it.
func TestArgumentsInC(t *testing.T) {
	limits := program(t, library(t), "limits")
	says(t, limits, "cpu")
	needs(t, "opencl")
	says(t, limits, "opencl")
}

// F3, F4, E1, R3: a panic in a backend, an error without end, a compile that takes longer than its
// caller waits, and a lost device are a status with a text.
func TestFaultsInC(t *testing.T) {
	says(t, program(t, library(t), "faults"), filepath.Join(t.TempDir(), "store"))
}

// B4, C1: a handle keeps its kernel, also with a capacity of 0; a blob that has grown since its size
// was asked for is a short buffer.
func TestBlobThatGrows(t *testing.T) {
	t.Setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0")
	says(t, program(t, library(t), "grows"))
}

// B4: 100,000 handles and as many errors leave no memory behind, and with 100,000 handles open a
// call costs what it does with 100.
func TestMemoryInC(t *testing.T) {
	says(t, program(t, library(t), "memory"))
}

// B4: a program may fork while its threads call, for exec and _exit, and dlclose does nothing.
func TestProcessInC(t *testing.T) {
	bin := library(t)
	says(t, program(t, bin, "process"), filepath.Join(bin, "libkiln.so"))
}

// P5, P13: a store that cannot be used, or becomes full, is logged with its cause, and fails nothing.
func TestStoreThatFails(t *testing.T) {
	store := program(t, library(t), "store")
	fails := func(dir, want string) {
		t.Helper()
		if said, logged := ran(t, store, dir); said != "KILN_OK \n" || !strings.Contains(logged, want) {
			t.Errorf("it says %slogged is %q, want %q", said, logged, want)
		}
	}
	dir := t.TempDir()
	file, open, full := filepath.Join(dir, "file"), filepath.Join(dir, "open"), filepath.Join(dir, "full")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fails(file, "is no folder")
	for _, folder := range []string{open, full} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	fails(open, "others can write it")
	if os.Getuid() != 0 {
		t.Skip("only root gives a folder to another user, or mounts one that is small")
	}
	if err := os.Chmod(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(open, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	fails(open, "belongs to user 12345")
	if err := syscall.Mount("tmpfs", full, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Skip("no tmpfs can be mounted here: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(full, 0); err != nil {
			t.Error(err)
		}
	})
	fails(full, "no space left on device")
}

// B4: the programs are clean under the sanitizers of gcc, and leave no memory behind. ThreadSanitizer
// does not see how Go's threads wait for each other, but sees what C does with what it was given.
func TestSanitizers(t *testing.T) {
	bin := library(t)
	for _, sanitizer := range []string{"address,undefined", "thread"} {
		t.Run(sanitizer, func(t *testing.T) {
			flag := "-fsanitize=" + sanitizer
			probe := exec.Command("gcc", flag, "-x", "c", "-o", filepath.Join(t.TempDir(), "probe"), "-")
			probe.Stdin = strings.NewReader("int main(void) { return 0; }")
			if said, err := probe.CombinedOutput(); err != nil {
				t.Skipf("gcc lacks the library of %s: %s", flag, said)
			}
			for _, run := range [][]string{{"faults", filepath.Join(t.TempDir(), "store")}, {"limits", "cpu"}, {"closing", "fake", "fake", "3"}} {
				says(t, program(t, bin, run[0], flag, "-fno-sanitize-recover=all", "-g"), run[1:]...)
			}
		})
	}
}
