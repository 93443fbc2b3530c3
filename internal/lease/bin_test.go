package lease_test

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
)

// lend counts the goroutines at work.
type lender struct {
	sync.WaitGroup
	now, most, lent atomic.Int64
}

func (l *lender) lend(fn func()) {
	l.lent.Add(1)
	l.Add(1)
	go func() {
		defer l.Done()
		defer l.now.Add(-1)
		l.most.Store(max(l.most.Load(), l.now.Add(1)))
		fn()
	}()
}

func soon[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(5 * time.Second):
		t.Fatal("the fence was not passed")
	}
	return v
}

// Things are freed in the order they were thrown in, and a fence is passed in its
// place, whatever a Free does.
func TestBinKeepsOrder(t *testing.T) {
	var l lender
	var bin lease.Bin[int]
	var freed []int
	var failures []error
	bin.Init(l.lend, func(n int) {
		freed = append(freed, n)
		switch n {
		case 2:
			panic("two")
		case 4:
			runtime.Goexit()
		case 6:
			bin.Throw(7)
		}
	}, func(err error) { failures = append(failures, err) })
	bin.Throw()
	if l.lent.Load() != 0 {
		t.Error("nothing was thrown, and a goroutine lent")
	}
	passed := make(chan int, 1)
	bin.Throw(1, 2, 3)
	bin.Throw(4, 5, 6)
	bin.Fence(func() { passed <- len(freed) })
	if n := soon(t, passed); n != 6 {
		t.Errorf("the fence was passed after %d things", n)
	}
	bin.Fence(func() { passed <- len(freed) })
	soon(t, passed)
	l.Wait()
	if want := []int{1, 2, 3, 4, 5, 6, 7}; !slices.Equal(freed, want) {
		t.Errorf("freed %v, want %v", freed, want)
	}
	var panicked *fault.PanicError
	if len(failures) != 2 || !errors.As(failures[0], &panicked) || !errors.Is(failures[1], fault.ErrGoexit) {
		t.Errorf("told of %v", failures)
	}
}

// Throwing does not wait for a Free, and one goroutine frees at a time.
func TestBinDoesNotWait(t *testing.T) {
	var l lender
	var bin lease.Bin[func()]
	var told atomic.Int64
	bin.Init(l.lend, func(f func()) { f() }, func(error) { told.Add(1) })
	gate := make(chan struct{})
	bin.Throw(func() { <-gate })
	var freed atomic.Int64
	var throwers sync.WaitGroup
	for range 8 {
		throwers.Go(func() {
			for i := range 100 {
				bin.Throw(func() {
					freed.Add(1)
					if i%10 == 0 {
						runtime.Goexit()
					}
				})
			}
		})
	}
	throwers.Wait()
	if freed.Load() != 0 {
		t.Error("freed out of order")
	}
	close(gate)
	done := make(chan struct{})
	bin.Fence(func() { close(done) })
	soon(t, done)
	l.Wait()
	if freed.Load() != 800 || told.Load() != 80 {
		t.Errorf("%d freed, told of %d that ended their goroutine", freed.Load(), told.Load())
	}
}

// A lease ends once, whoever ends it how often, and a zero one not at all.
func TestLease(t *testing.T) {
	var ends atomic.Int64
	var l lease.Lease[string]
	l.End()
	l.Init("value", func(v string) {
		if v != "value" {
			t.Errorf("ended %q", v)
		}
		ends.Add(1)
	})
	if l.Value() != "value" || l.Ended() {
		t.Error("a fresh lease")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(l.End)
	}
	wg.Wait()
	if ends.Load() != 1 || !l.Ended() {
		t.Errorf("ended %d times", ends.Load())
	}
}

// A fence in a bin that has nothing to free passes, too.
func TestFenceOfAnEmptyBin(t *testing.T) {
	var b lease.Bin[int]
	b.Init(func(fn func()) { go fn() }, func(int) {}, func(err error) { t.Error(err) })
	for range 2 {
		passed := make(chan struct{})
		b.Fence(func() { close(passed) })
		soon(t, passed)
	}
}
