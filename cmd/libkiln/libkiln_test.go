//go:build cgo && linux

package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
)

// B1, B2, B3, B4: a program in C calls all of the real library, also with buffers of all sizes and
// on 16 threads. A second process with its store compiles nothing and sees the same id.
func TestProgramInC(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a library")
	}
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		said, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, said)
		}
		return string(said)
	}
	program := filepath.Join(dir, "calls")
	run("go", "build", "-trimpath", "-buildmode=c-shared", "-ldflags=-extldflags=-Wl,-soname,libkiln.so", "-o", filepath.Join(dir, "libkiln.so"), ".")
	run("go", "build", "-trimpath", "-o", filepath.Join(dir, "kiln-child"), "./child")
	run("gcc", "-Wall", "-Wextra", "-Werror", "-std=c99", "-pthread", "-I.", "-o", program, "testdata/calls.c", "-L"+dir, "-lkiln", "-Wl,-rpath,"+dir)
	run("gcc", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-fsyntax-only", "kiln.h")
	store := filepath.Join(dir, "store")
	if got := run(program, store, "cpu"); got != "unsupported\n" {
		t.Errorf("cpu: %s", got)
	}
	for _, name := range []string{"opencl", "vulkan"} {
		if devices := gpuexec.Find(name).Devices(context.Background()); len(devices) == 0 || !devices[0].Available {
			t.Skip("no device of " + name)
		}
	}
	if got := run(program, store, "vulkan"); got != "unsupported\n" {
		t.Errorf("vulkan, OpenCL C: %s", got)
	}
	first, second := run(program, store, "opencl"), run(program, store, "opencl")
	if !strings.HasPrefix(first, "compiled ") || strings.Replace(first, "compiled", "stored", 1) != second {
		t.Errorf("the first process says %swant compiled, the second %swant stored and the same id", first, second)
	}
}
