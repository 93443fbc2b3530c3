// Package drivertest runs tests that may open drivers.
package drivertest

import (
	"os"
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
