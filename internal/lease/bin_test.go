package lease_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	synctest.Test(t, func(t *testing.T) { // so that no Free is stuck, however late this is
		var l lender
		var bin lease.Bin[int]
		var freed []int
		var failures []error
		gate := make(chan struct{}) // until all are thrown
		bin.Init(l.lend, func(n int) {
			freed = append(freed, n)
			switch n {
			case 1:
				<-gate
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
		close(gate)
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
	})
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
	close(gate)
	done := make(chan struct{})
	bin.Fence(func() { close(done) })
	soon(t, done)
	l.Wait()
	if freed.Load() != 800 || told.Load() != 80 {
		t.Errorf("%d freed, told of %d that ended their goroutine", freed.Load(), told.Load())
	}
}

// F6: a Free that blocks keeps neither others from being freed nor a caller that asked
// for what can be freed soon; one that asked for all waits for it. Its place in the
// order is the only one that is lost.
func TestStuckFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bin lease.Bin[func()]
		var mu sync.Mutex
		var freed []int
		lent := 0
		bin.Init(func(fn func()) { lent++; go fn() }, func(f func()) { f() }, func(error) {})
		free := func(n int) func() {
			return func() {
				mu.Lock()
				defer mu.Unlock()
				freed = append(freed, n)
			}
		}
		var soon, all atomic.Int32
		gates := make([]chan struct{}, 5)
		for i := range gates {
			gates[i] = make(chan struct{})
			bin.Throw(func() { <-gates[i] })
			bin.Throw(func() { runtime.Goexit() }, free(2*i), free(2*i+1))
			bin.Soon(func() { soon.Add(1) })
			bin.Fence(func() { all.Add(1) })
		}
		began := time.Now()
		for soon.Load() < 5 {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > 5*100*time.Millisecond+time.Millisecond {
			t.Errorf("others waited %v for five Frees that block", took)
		}
		began = time.Now()
		bin.Throw(free(10), free(11))
		bin.Soon(func() { soon.Add(1) })
		synctest.Wait()
		if soon.Load() != 6 || time.Since(began) > 0 {
			t.Errorf("what came later waited for Frees that are known to block")
		}
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; !slices.Equal(freed, want) {
			t.Errorf("freed %v, want %v", freed, want)
		}
		for i := range gates {
			if all.Load() != int32(i) {
				t.Errorf("%d fences were passed with %d of the Frees before them done", all.Load(), i)
			}
			close(gates[i])
			synctest.Wait()
		}
		if all.Load() != 5 {
			t.Errorf("%d of 5 fences were passed in the end", all.Load())
		}
		if lent > 5+12 {
			t.Errorf("%d goroutines for five Frees that block and five that end theirs", lent)
		}
	})
}

// Frees that block take 65 goroutines at most; what comes later then waits for one of them.
func TestStuckFreesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bin lease.Bin[func()]
		var l lender
		bin.Init(l.lend, func(f func()) { f() }, func(error) {})
		gate := make(chan struct{})
		for range 70 {
			bin.Throw(func() { <-gate })
		}
		var freed atomic.Int32
		for range 100 {
			bin.Throw(func() { freed.Add(1) })
		}
		time.Sleep(time.Minute)
		if n := l.now.Load(); n != 65 || freed.Load() != 0 {
			t.Errorf("%d goroutines, %d freed", n, freed.Load())
		}
		gate <- struct{}{} // six of them end
		for range 5 {
			gate <- struct{}{}
		}
		time.Sleep(time.Minute)
		if n := l.now.Load(); n != 64 || freed.Load() != 100 {
			t.Errorf("%d goroutines, %d freed when there is room", n, freed.Load())
		}
		close(gate)
		l.Wait()
		if n := l.most.Load(); n > 65 {
			t.Errorf("%d goroutines at a time", n)
		}
	})
}

// Beside Frees that block for a while now and then, each thing is freed once, one at
// a time that is not stuck, and every fence is passed after what came before it.
func TestBinHammer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		var bin lease.Bin[func()]
		var l lender
		bin.Init(l.lend, func(f func()) { f() }, func(error) {})
		var thrown, freed, passed atomic.Int64
		for range 300 {
			for range rnd.IntN(20) {
				thrown.Add(1)
				long, exits := rnd.IntN(5) == 0, rnd.IntN(7) == 0
				pause := time.Duration(rnd.IntN(400)) * time.Millisecond
				bin.Throw(func() {
					if long {
						time.Sleep(pause)
					}
					freed.Add(1)
					if exits {
						runtime.Goexit()
					}
				})
			}
			before := thrown.Load()
			bin.Fence(func() {
				if freed.Load() < before {
					t.Errorf("a fence was passed after %d of %d", freed.Load(), before)
				}
				passed.Add(1)
			})
			time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
		}
		time.Sleep(time.Hour)
		if freed.Load() != thrown.Load() || passed.Load() != 300 || l.now.Load() != 0 {
			t.Errorf("%d of %d freed, %d fences passed, %d goroutines left", freed.Load(), thrown.Load(), passed.Load(), l.now.Load())
		}
	})
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
		wg.Go(func() { l.End() })
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

// A bin that tells never goes ahead of what is stuck: one thing at a time, in order,
// however long one takes and however it ends.
func TestBinInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bin := lease.Bin[int]{InOrder: true}
		var l lender
		var seen, want []int
		bin.Init(l.lend, func(n int) {
			seen = append(seen, n)
			time.Sleep(time.Minute)
			seen = append(seen, -n)
			if n%2 == 0 {
				runtime.Goexit()
			}
		}, func(error) {})
		for n := range 8 {
			bin.Throw(n)
			want = append(want, n, -n)
		}
		passed := make(chan int, 1)
		bin.Soon(func() { passed <- len(seen) })
		if n := <-passed; n != len(want) || !slices.Equal(seen, want) {
			t.Errorf("began and ended %v, want %v; a fence was passed after %d", seen, want, n)
		}
		l.Wait()
	})
}

// F6: what is offered while so many wait is refused.
func TestOfferIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bin lease.Bin[int]
		var freed []int
		gate := make(chan struct{})
		bin.InOrder = true
		bin.Init(func(fn func()) { go fn() }, func(n int) { <-gate; freed = append(freed, n) }, func(error) {})
		bin.Throw(0)
		synctest.Wait() // it is stuck with that
		for i, want := range []bool{true, true, false, false} {
			if bin.Offer(1+i, 2) != want {
				t.Errorf("offer %d: %v", i, !want)
			}
		}
		close(gate)
		synctest.Wait()
		if !bin.Offer(9, 2) {
			t.Error("refused while nothing waits")
		}
		synctest.Wait()
		if want := []int{0, 1, 2, 9}; !slices.Equal(freed, want) {
			t.Errorf("freed %v, want %v", freed, want)
		}
	})
}
