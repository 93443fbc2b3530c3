//go:build linux && (amd64 || arm64)

package dl

import (
	"strings"
	"sync"
	"testing"
)

// The reason is there, whoever else runs.
func TestReason(t *testing.T) {
	const name = "libKilnHasNone.so.1"
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if _, err := Open(name, Local); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%v, want a reason with the name", err)
				}
			}
		})
	}
	all.Wait()
}
