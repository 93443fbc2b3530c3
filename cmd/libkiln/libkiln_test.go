//go:build cgo && linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
)

var scratch string // of the tests

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "libkiln")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	scratch = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// built is a folder with the library, its header and its child, as make libkiln makes it.
var built = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "bin")
	for _, c := range [][]string{
		{"go", "build", "-trimpath", "-buildmode=c-shared", "-ldflags=-extldflags=-Wl,-soname,libkiln.so", "-o", filepath.Join(dir, "libkiln.so"), "."},
		{"go", "build", "-trimpath", "-o", filepath.Join(dir, "kiln-child"), "./child"},
		{"cp", "kiln.h", dir},
	} {
		if said, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%q: %w\n%s", c, err, said)
		}
	}
	return dir, nil
})

func library(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds a library")
	}
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func needs(t *testing.T, backends ...string) {
	t.Helper()
	for _, name := range backends {
		if devices := gpuexec.Find(name).Devices(context.Background()); len(devices) == 0 || !devices[0].Available {
			t.Skip("no device of " + name)
		}
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	said, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, said)
	}
	return string(said)
}

// program compiles a program of testdata with the library in dir.
func program(t *testing.T, dir, name string, more ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	run(t, "gcc", append([]string{"-Wall", "-Wextra", "-Werror", "-std=c99", "-pthread", "-I.", "-o", path, "testdata/" + name + ".c",
		"-L" + dir, "-lkiln", "-ldl", "-Wl,-rpath," + dir}, more...)...)
	return path
}

// B1, B2, B3, B4: a program in C calls all of the real library, also with buffers of all sizes and
// on 16 threads. A second process with its store compiles nothing and sees the same id.
func TestProgramInC(t *testing.T) {
	calls := program(t, library(t), "calls")
	run(t, "gcc", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-fsyntax-only", "kiln.h")
	store := filepath.Join(t.TempDir(), "store")
	if got := run(t, calls, store, "cpu"); got != "unsupported\n" {
		t.Errorf("cpu: %s", got)
	}
	needs(t, "opencl", "vulkan")
	if got := run(t, calls, store, "vulkan"); got != "unsupported\n" {
		t.Errorf("vulkan, OpenCL C: %s", got)
	}
	first, second := run(t, calls, store, "opencl"), run(t, calls, store, "opencl")
	if !strings.HasPrefix(first, "compiled ") || strings.Replace(first, "compiled", "stored", 1) != second {
		t.Errorf("the first process says %swant compiled, the second %swant stored and the same id", first, second)
	}
}

// B4, P6: the program of docs/c.md, compiled and run by the commands that stand there, says what
// stands there: the first run compiles, the second finds what it stored.
func TestProgramOfThePage(t *testing.T) {
	bin := library(t)
	needs(t, "opencl")
	page, err := os.ReadFile("../../docs/c.md")
	if err != nil {
		t.Fatal(err)
	}
	text := make(map[string][]string) // by the language of the block
	for _, b := range regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		text[b[1]] = append(text[b[1]], b[2])
	}
	if len(text["sh"]) != 1 || len(text["c"]) != 1 || len(text["text"]) != 2 {
		t.Fatalf("want a block of sh, one of C and two outputs, has %q", text)
	}
	dir := t.TempDir()
	if err := os.Symlink(bin, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hello.c"), []byte(text["c"][0]), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, want := range text["text"] {
		sh := exec.Command("sh", "-ec", text["sh"][0])
		sh.Dir = dir
		if said, err := sh.CombinedOutput(); err != nil || string(said) != want {
			t.Errorf("run %d: %v, it says\n%swant\n%s", i+1, err, said, want)
		}
	}
}
