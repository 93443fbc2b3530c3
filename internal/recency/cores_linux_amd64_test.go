package recency

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// C12: what one goroutine notes while it goes from core to core comes out in order: the
// stamps of all cores are of one clock. What is dropped is counted where no other core counts.
func TestOrderOverCores(t *testing.T) {
	if !clock {
		t.Skip("there are no stamps here")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		var all unix.CPUSet
		var cores []int
		if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() < 2 {
			t.Logf("one core, or not known: %v", err)
			return
		}
		for core := 0; len(cores) < all.Count(); core++ {
			if all.IsSet(core) {
				cores = append(cores, core)
			}
		}
		l := NewLog[int](func() {})
		l.gather(0)
		const notes = 2000
		for i := range notes {
			var one unix.CPUSet
			one.Set(cores[i%len(cores)])
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				t.Error(err)
				return
			}
			l.Note(&i, 0)
			l.drop(1)
		}
		counting := 0
		for i := range l.stripes {
			if l.stripes[i].dropped[1].Load() > 0 {
				counting++
			}
		}
		if counting < 2 || l.Dropped(1) != notes {
			t.Errorf("%d cores count what is dropped in %d stripes, %d in all", len(cores), counting, l.Dropped(1))
		}
		var out []int
		l.Drain(func(v *int) { out = append(out, *v) })
		if len(out) != notes || !slices.IsSorted(out) {
			t.Errorf("%d notes came out of %d, in order: %v", len(out), notes, slices.IsSorted(out))
		}
	}()
	<-ended
}
