package hostlock_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// dawdling is a file system on which a process stands still before and after each step,
// mostly for a short while.
type dawdling struct {
	vfs.FS
	random *rand.Rand // one process's own
}

func (d dawdling) pause() {
	most := int64(5 * time.Millisecond)
	for range 3 {
		most = d.random.Int64N(most + 1)
	}
	time.Sleep(time.Duration(most))
}

func (d dawdling) Open(name string) (vfs.File, error) {
	d.pause()
	f, err := d.FS.Open(name)
	d.pause()
	return f, err
}

func (d dawdling) ReadDir(name string) ([]vfs.Info, error) {
	d.pause()
	list, err := d.FS.ReadDir(name)
	d.pause()
	return list, err
}

func (d dawdling) Mkdir(name string) error              { d.pause(); return d.FS.Mkdir(name) }
func (d dawdling) Create(name string) (vfs.File, error) { d.pause(); return d.FS.Create(name) }
func (d dawdling) Link(from, to string) error           { d.pause(); return d.FS.Link(from, to) }
func (d dawdling) Remove(name string) error             { d.pause(); return d.FS.Remove(name) }

// P8: whatever the order of their steps, of those that want a lease one has it at a time.
func TestOneOfManyHolds(t *testing.T) {
	for seed := range uint64(250) {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			var holders, two atomic.Int32
			var all sync.WaitGroup
			for i := range uint64(8) {
				all.Go(func() {
					random := rand.New(rand.NewPCG(seed, i))
					l := leases(dawdling{f, random}, seed%4 > 0)
					for range 3 {
						lease := acquire(t, l)
						if holders.Add(1) > 1 {
							two.Add(1)
						}
						time.Sleep(time.Duration(random.Int64N(int64(20 * time.Millisecond))))
						holders.Add(-1)
						_ = lease.Release()
					}
				})
			}
			all.Wait()
			if n := two.Load(); n > 0 {
				t.Errorf("seed %d: %d times two held it", seed, n)
			}
		})
	}
}
