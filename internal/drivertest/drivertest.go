// Package drivertest runs tests that may open drivers.
package drivertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// Main is a TestMain: PoCL has a cache for these tests alone, and no goroutine may be left.
func Main(m *testing.M) {
	cache, err := os.MkdirTemp("", "kiln-*")
	if err == nil {
		err = os.Setenv("POCL_CACHE_DIR", cache)
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(cache)
		os.Exit(code)
	}))
}

// Said runs a command that starts a test's program again, and gives what it printed between
// << and >>. An error has all that it printed.
func Said(cmd *exec.Cmd) (string, error) {
	text, err := cmd.CombinedOutput()
	_, after, begun := strings.Cut(string(text), "<<")
	said, _, ended := strings.Cut(after, ">>")
	if err == nil && (!begun || !ended) {
		err = errors.New("it said nothing")
	}
	if err != nil {
		return "", fmt.Errorf("%q: %w\n%s", cmd.Args, err, text)
	}
	return said, nil
}
