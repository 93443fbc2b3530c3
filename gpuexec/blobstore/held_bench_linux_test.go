package blobstore_test

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// heldFor is a file system that knows the longest hold of the lock of the directory, in the
// processor time of the thread that has it.
type heldFor struct {
	vfs.FS
	most *time.Duration
}

type heldLock struct {
	vfs.File
	most, since *time.Duration
}

// threadTime is the processor time of the calling thread, in the system and outside.
func threadTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var use syscall.Rusage
	if err := syscall.Getrusage(thread, &use); err != nil {
		panic(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

func (h heldFor) Update(name string) (vfs.File, error) {
	f, err := h.FS.Update(name)
	if err == nil && strings.HasPrefix(name, "lease/directory/") {
		none := time.Duration(-1)
		return heldLock{f, h.most, &none}, nil
	}
	return f, err
}

func (l heldLock) TryLock() (bool, error) {
	ok, err := l.File.TryLock()
	if ok {
		*l.since = threadTime()
	}
	return ok, err
}

func (l heldLock) Close() error {
	if *l.since >= 0 {
		*l.most = max(*l.most, threadTime()-*l.since)
	}
	return l.File.Close()
}

// BenchmarkHeld gives the longest hold of the exclusive lock while a store of many entries
// is used in every way, as the processor time of it in milliseconds: on a busy machine the time by
// the clock is that of others. No file is synced under it (TestNothingIsSyncedUnderTheLock).
func BenchmarkHeld(b *testing.B) {
	for _, entries := range []int{1_000, 10_000, 100_000} {
		for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU} {
			b.Run(fmt.Sprint(p, " ", entries), func(b *testing.B) {
				runtime.LockOSThread() // a hold begins and ends on this thread
				defer runtime.UnlockOSThread()
				for b.Loop() {
					held(b, entries, p)
				}
			})
		}
	}
}

func held(b *testing.B, entries int, p blobstore.Policy) {
	var most time.Duration
	step := func(what string) {
		b.ReportMetric(float64(most.Microseconds())/1000, "ms-"+what)
		most = 0
	}
	r := newRig(b)
	s := r.open("d", int64(entries)*small, policy(p), on(func(f vfs.FS) vfs.FS { return heldFor{f, &most} }))
	key := func(i int) string { return fmt.Sprintf("k%06d", i) }
	for i := range entries {
		r.want("put", s.put(key(i), "v"), "ok")
	}
	step("fill")
	for i := range 200 {
		s.put(fmt.Sprint("new", i), "v")
	}
	step("put")
	s.cfg.Capacity = limit.Of(int64(entries) * small * 99 / 100)
	s.reopen()
	step("open")
	r.must(s.Prune(background, int64(entries)*small*95/100))
	step("prune")
	for i := entries - entries/100; i < entries; i++ {
		r.flip(s.kernel(key(i)), -1)
	}
	_, err := s.Verify(background, true)
	r.must(err)
	step("repair")
	s.shut()
	step("close")
}
