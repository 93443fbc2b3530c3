//go:build cgo && linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
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
	if err := os.Setenv("POCL_CACHE_DIR", filepath.Join(dir, "pocl")); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// built is a folder with what make libkiln makes. The library has the backend of
// testdata/fake.go as well.
var built = sync.OnceValues(func() (string, error) {
	dir, overlay := filepath.Join(scratch, "bin"), filepath.Join(scratch, "overlay.json")
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	added, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "zz_fake.go"): filepath.Join(here, "testdata/fake.go")}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, added, 0o600); err != nil {
		return "", err
	}
	build := exec.Command("make", "-C", "../..", "--no-print-directory", "libkiln", "BIN="+dir, "GOFLAGS=-overlay="+overlay)
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%q: %w\n%s", build, err, said)
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
	cmd := exec.Command(name, args...)
	var logged bytes.Buffer // with what a driver's compiler prints
	cmd.Stderr = &logged
	said, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, said, logged.Bytes())
	}
	return string(said)
}

// program compiles a program of testdata with the library in dir.
func program(t *testing.T, dir, name string, more ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	source := "testdata/" + name + ".c"
	if _, err := os.Stat(source); err != nil { // and go test notes that the result depends on it
		t.Fatal(err)
	}
	run(t, "gcc", append([]string{"-Wall", "-Wextra", "-Werror", "-std=c99", "-D_DEFAULT_SOURCE", "-pthread", "-I.", "-o", path, source,
		"-L" + dir, "-lkiln", "-ldl", "-Wl,-rpath," + dir}, more...)...)
	return path
}

// B1, B2, B3, B4: a program in C calls all of the real library, also with buffers of all sizes and
// on 16 threads. A second process with its store compiles nothing and sees the same id. P5: a folder
// that cannot be a store is no error. R3: a source that does not compile is wrong input.
func TestProgramInC(t *testing.T) {
	calls := program(t, library(t), "calls")
	run(t, "gcc", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-fsyntax-only", "kiln.h")
	store := filepath.Join(t.TempDir(), "store")
	if got := run(t, calls, store, "cpu", "opencl-c"); got != "unsupported\n" {
		t.Errorf("cpu: %s", got)
	}
	needs(t, "opencl", "vulkan")
	if got := run(t, calls, store, "vulkan", "opencl-c"); got != "unsupported\n" {
		t.Errorf("vulkan, OpenCL C: %s", got)
	}
	for backend, language := range map[string]string{"opencl": "opencl-c", "vulkan": "glsl"} {
		first, second := run(t, calls, store, backend, language), run(t, calls, store, backend, language)
		if !strings.HasPrefix(first, "compiled ") || strings.Replace(first, "compiled", "stored", 1) != second {
			t.Errorf("%s: the first process says %swant compiled, the second %swant stored and the same id", backend, first, second)
		}
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
