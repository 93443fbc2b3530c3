package hostlock_test

import (
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
)

// P8: generations of long ago go the lowest first, though there are more than go at once:
// of those that had one nobody believes to have it still.
func TestManyGenerationsGoInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		var all []*hostlock.Directory
		for range 150 {
			still, next := passOver(t, keeping{f, "lock/"})
			next.Unlock()
			all = append(all, still)
		}
		still, next := passOver(t, f)
		next.Unlock()
		list, err := f.ReadDir("lock")
		if err != nil || len(list) < 20 || len(list) > 60 {
			t.Errorf("%d generations are left, want some: %v", len(list), err)
		}
		for i, d := range append(all, still) {
			if d.Held() {
				t.Errorf("number %d believes to have the lock", i)
			}
			d.Unlock()
		}
	})
}
