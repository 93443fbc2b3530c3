package actors

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func within(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Errorf("not within 10 s: %s", what)
	}
}

// What a turn lends runs while its actor is busy: with the turn itself, and with
// what waits in the mailbox.
func TestLentRunsBesideTheActor(t *testing.T) {
	ran := make(chan struct{})
	ref := Spawn(Config{}, func(turn int) {
		if turn == 0 {
			Go(func() { close(ran) })
		}
		within(t, "the lent goroutine runs beside the actor", ran)
	})
	for turn := range 3 {
		ref.Tell(turn)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := ref.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// A user that comes while the last one leaves keeps the pool: it is looked at
// again under the lock.
func TestPoolOutlivesANewUser(t *testing.T) {
	first := retainPool()
	gone := make(chan struct{})
	poolMu.Lock()
	go func() {
		defer close(gone)
		first.release() // waits for the lock with no user left
	}()
	for first.users.Load() != 0 {
		runtime.Gosched()
	}
	current.users.Add(1) // as retainPool does, with the lock held
	poolMu.Unlock()
	within(t, "the first user leaves", gone)
	if Idle() {
		t.Error("the pool ended under its second user")
	}
	first.mu.Lock()
	ended := first.mu.ended
	first.mu.Unlock()
	if ended {
		t.Error("the pool's workers were told to end under its second user")
	}
	first.release()
	if !Idle() {
		t.Error("the pool did not end with its last user")
	}
}

// Whoever runs on a lent goroutine is a user, whoever else comes and goes.
func TestPoolIsNeverIdleUnderAUser(t *testing.T) {
	var wrong atomic.Int64
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() {
			for range 2000 {
				ran := make(chan struct{})
				Go(func() {
					if Idle() {
						wrong.Add(1)
					}
					close(ran)
				})
				<-ran
			}
		})
	}
	done.Wait()
	if n := wrong.Load(); n != 0 {
		t.Errorf("%d ran on a pool that had ended", n)
	}
	for end := time.Now().Add(10 * time.Second); !Idle(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the pool did not end with its last user")
		}
	}
	if Parked() != 0 {
		t.Error("workers wait for work that cannot come")
	}
}

// Lent goroutines are kept for the next work while somebody uses the pool, up to a
// number; a burst beyond it ends.
func TestWorkersAreKept(t *testing.T) {
	p := retainPool()
	defer p.release()
	burst := 3 * p.most
	var running sync.WaitGroup
	running.Add(burst)
	gate := make(chan struct{})
	for range burst {
		Go(func() {
			running.Done()
			<-gate
		})
	}
	running.Wait() // all at once: nothing waits for a worker that blocks
	close(gate)
	for end := time.Now().Add(10 * time.Second); p.users.Load() != 1 || Parked() != p.most; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d workers are kept, want %d; %d users", Parked(), p.most, p.users.Load())
		}
	}
	p.mu.Lock()
	warmest := p.mu.parked[p.most-1] // others of the burst may yet take its place
	p.mu.Unlock()
	seen := make(chan struct{})
	Go(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if slices.Contains(p.mu.parked, warmest) {
			t.Error("the worker that parked last is still parked beside new work")
		}
		close(seen)
	})
	within(t, "work is given to a parked worker", seen)
}
