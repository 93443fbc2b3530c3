//go:build cgo && linux

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
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
