package actors_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// Hazard: a PID that somebody keeps pins everything the stopped actor had.
func TestRetainedRefPinsNoState(t *testing.T) {
	collected := make(chan struct{})
	ref := func() *actors.Ref[request] {
		type room struct {
			counter
			big [1 << 20]byte
		}
		r := new(room)
		r.big[0] = 1
		runtime.AddCleanup(r, func(done chan struct{}) { close(done) }, collected)
		r.ref = actors.Spawn(actors.Config{}, r.handle)
		if _, err := r.ask(background, request{add: 1}); err != nil {
			t.Fatal(err)
		}
		return r.ref
	}()
	if err := ref.Stop(background); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the room's state is collected", func() bool {
		runtime.GC()
		select {
		case <-collected:
			return true
		default:
			return false
		}
	})
	if ref.Tell(request{}) {
		t.Error("Tell to a stopped actor reports true")
	}
	runtime.KeepAlive(ref)
}

// Hazard: a message to a stopped actor starts a timer goroutine. Here neither
// messages that arrive after the end nor any number of actors leave one.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := goleak.IgnoreCurrent()
	for range 200 {
		c := &counter{}
		c.ref = actors.Spawn(actors.Config{}, c.handle)
		var wg sync.WaitGroup
		for range 4 { // some of these overtake the end and are dropped by the library
			wg.Go(func() {
				for c.ref.Tell(request{add: 1}) {
					runtime.Gosched()
				}
			})
		}
		if _, err := c.ask(background, request{}); err != nil {
			t.Error(err)
		}
		if err := c.ref.Stop(background); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
	if !actors.Idle() {
		t.Error("goroutines are lent after the last Stop")
	}
	goleak.VerifyNone(t, before)
}

// runtime.Goexit in a lent goroutine ends that goroutine and nothing else.
func TestGoexitInLentGoroutine(t *testing.T) {
	c := spawn(t, actors.Config{})
	for range 500 {
		ended := make(chan struct{})
		actors.Go(func() {
			defer close(ended)
			runtime.Goexit()
		})
		<-ended
		if _, err := c.ask(background, request{add: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if c.total != 500 {
		t.Errorf("total %d", c.total)
	}
}

// GoOn comes back as often as the goroutine is ended, and no more.
func TestGoOn(t *testing.T) {
	runs, ended := 0, make(chan struct{})
	actors.GoOn(func() {
		if runs++; runs < 4 {
			runtime.Goexit()
		}
		close(ended)
	})
	<-ended
	eventually(t, "no goroutine is lent", actors.Idle)
	if runs != 4 {
		t.Errorf("run %d times, want 4", runs)
	}
}

// A burst of lent goroutines ends again: only a few are kept for later.
func TestBurstEnds(t *testing.T) {
	keep := spawn(t, actors.Config{}) // so that the pool lives on
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	block := make(chan struct{})
	for range 500 {
		wg.Add(1)
		actors.Go(func() { defer wg.Done(); <-block })
	}
	close(block)
	wg.Wait()
	most := before + 2*runtime.GOMAXPROCS(0) + 6
	eventually(t, "the burst has ended", func() bool { return runtime.NumGoroutine() <= most })
	if _, err := keep.ask(background, request{}); err != nil {
		t.Error(err)
	}
}

// Time in a bubble is fake: an hour's deadline costs nothing, and an actor that
// nobody stops is found.
func TestBubble(t *testing.T) {
	for range 3 { // no bubble uses another's goroutines
		actorstest.Bubble(t, func(t *testing.T) {
			c := &counter{}
			c.ref = actors.Spawn(actors.Config{}, c.handle)
			release := c.hold(t)
			began := time.Now()
			ctx, cancel := context.WithTimeout(background, time.Hour)
			defer cancel()
			if _, err := c.ask(ctx, request{add: 1}); err != context.DeadlineExceeded {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took != time.Hour {
				t.Errorf("waited %v, want an hour", took)
			}
			release()
			if n, err := c.ask(background, request{}); err != nil || n != 1 {
				t.Errorf("the abandoned request was not handled: %d, %v", n, err)
			}
			if err := c.ref.Stop(background); err != nil {
				t.Error(err)
			}
		})
	}
}

// Messages of one sender are handled in the order sent.
func TestOrderOfOneSender(t *testing.T) {
	type numbered struct{ sender, n int }
	next := make([]int, 4)
	ref := actors.Spawn(actors.Config{}, func(m numbered) {
		if m.n != next[m.sender] {
			t.Errorf("sender %d: %d came, want %d", m.sender, m.n, next[m.sender])
		}
		next[m.sender] = m.n + 1
	})
	var wg sync.WaitGroup
	for s := range next {
		wg.Go(func() {
			for n := range 5000 {
				ref.Tell(numbered{s, n})
			}
		})
	}
	wg.Wait()
	if err := ref.Stop(background); err != nil {
		t.Error(err)
	}
	for s, n := range next {
		if n != 5000 {
			t.Errorf("sender %d: %d messages handled", s, n)
		}
	}
}
