//go:build !linux

package kernels

import "os"

// DefaultMemoryBytes is the memory an engine reserves if its config says
// nothing. Without Linux's promise not to count untouched pages it is smaller.
const DefaultMemoryBytes = 512 << 20

func reserve(size uint64) ([]byte, error) { return make([]byte, size), nil }

func release([]byte) error { return nil }

// discard only clears: the pages belong to the Go heap.
func discard(b []byte) error {
	clear(b)
	return nil
}

// sharedMemory is on a disk for all we know.
var sharedMemory = os.TempDir()

// hold holds nothing, so nothing is swept.
func hold(string) (*os.File, error) { return nil, nil }
