package vfs_test

import (
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// P13: a Close beside the first call leaves nothing open: without the garbage collector
// nobody else would close it.
func TestCloseDuringFirstCall(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	dir := t.TempDir()
	folders := make([]vfs.FS, 20000)
	var spun atomic.Int64
	for i := range folders {
		f := vfs.Dir(dir)
		folders[i] = f // reachable until the end
		var start, done sync.WaitGroup
		start.Add(1)
		done.Go(func() {
			start.Wait()
			for range i % 1000 {
				spun.Add(1) // to close at another moment each time
			}
			_ = f.Close() // never fails
		})
		done.Go(func() {
			start.Wait()
			_, _ = f.Lstat(".") // works or answers fs.ErrClosed
		})
		start.Done()
		done.Wait()
	}
	open := 0
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, dir) {
			open++
		}
	}
	if open > 0 {
		t.Errorf("%d of %d folders are open after Close", open, len(folders))
	}
}
