package sessioncache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/sessioncache"
)

// The rules of section 2 for names in a session.

// call is a Get on a goroutine of its own.
type call struct {
	v   string
	by  sessioncache.Event
	err error
}

func (b *box) start(ctx context.Context, n int, name string, o sessioncache.Options, create sessioncache.Create) <-chan call {
	done := make(chan call, 1)
	s := shape(b.t, n)
	go func() {
		v, by, err := b.try(ctx, s, name, o, create)
		done <- call{v, by, err}
	}()
	return done
}

// gated is a creator that takes until its gate opens or its context ends.
func (b *box) gated(text string, gate <-chan struct{}) (create sessioncache.Create, began <-chan struct{}, aborted *atomic.Bool) {
	started := make(chan struct{}, 64) // as many creators as a test may run
	aborted = new(atomic.Bool)
	return func(ctx context.Context) (sessioncache.Value, error) {
		started <- struct{}{}
		select {
		case <-gate:
			return b.value(text), nil
		case <-ctx.Done():
			aborted.Store(true)
			return sessioncache.Value{}, ctx.Err()
		}
	}, started, aborted
}

func receive(t testing.TB, c <-chan call) call {
	t.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(10 * time.Second):
		t.Fatal("no answer")
		return call{}
	}
}

func TestErrorsAreNotKept(t *testing.T) { // F2, F3
	boom := errors.New("boom")
	p := open(t, sessioncache.Config{})
	for name, c := range map[string]struct {
		create sessioncache.Create
		want   error
	}{
		"error": {func(context.Context) (sessioncache.Value, error) { return sessioncache.Value{}, boom }, boom},
		"panic": {func(context.Context) (sessioncache.Value, error) { panic(boom) }, boom},
		"goexit": {func(context.Context) (sessioncache.Value, error) {
			runtime.Goexit()
			return sessioncache.Value{}, nil
		}, fault.ErrGoexit},
		"negative": {func(context.Context) (sessioncache.Value, error) {
			v := p.value("negative")
			v.Bytes = -1
			return v, nil
		}, fault.ErrInvalid},
	} {
		_, _, err := p.try(bg, shape(t, 1), name, sessioncache.Options{}, c.create)
		wantError(t, name, err, c.want)
		if name == "panic" {
			var panicked *fault.PanicError
			if !errors.As(err, &panicked) || len(panicked.Stack) == 0 {
				t.Errorf("no stack in %v", err)
			}
		}
		want(t, "objects", p.Len(), 0)
		// Nothing came of the shape, and Close waits 50 ms at most for it to go.
		eventually(t, func() bool { return p.Groups() == 0 }, func() any { return p.Groups() }, "groups", 0)
	}
	p.freed("negative", 1)
	want(t, "failures", p.stats().Failures, 4)
	v, by := p.run(1, "error", "v")
	want(t, "next call", v+string(by), "vmiss")
}

func TestBadArguments(t *testing.T) {
	p := open(t, sessioncache.Config{})
	h, err := p.Group(bg, shape(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	_, _, err = h.Get(bg, "n", sessioncache.Options{}, nil)
	wantError(t, "no creator", err, fault.ErrInvalid)
	_, _, err = h.Get(bg, "", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { panic("unreachable") })
	wantError(t, "empty name", err, fault.ErrInvalid)
	wantError(t, "empty name", p.Set(bg, shape(t, 1), "", p.value("a"), sessioncache.Options{}), fault.ErrInvalid)
	v := p.value("a")
	v.Cost = -1
	wantError(t, "negative cost", p.Set(bg, shape(t, 1), "n", v, sessioncache.Options{}), fault.ErrInvalid)
	p.freed("a", 2)
	ended, cancel := context.WithCancel(bg)
	cancel()
	_, err = p.Group(ended, shape(t, 1))
	wantError(t, "ended context", err, context.Canceled)
	wantError(t, "ended context", p.Set(ended, shape(t, 1), "n", p.value("b"), sessioncache.Options{}), context.Canceled)
	p.freed("b", 1)
	want(t, "objects", p.Len(), 0)
}

func TestWaiterLeavesAlone(t *testing.T) { // F4
	p := open(t, sessioncache.Config{})
	gate := make(chan struct{})
	create, began, aborted := p.gated("v", gate)
	first, leaveFirst := context.WithCancel(bg)
	a := p.start(first, 1, "n", sessioncache.Options{}, create)
	<-began
	waiting, leave := context.WithCancel(bg)
	b := p.start(waiting, 1, "n", sessioncache.Options{}, create)
	c := p.start(bg, 1, "n", sessioncache.Options{}, create)
	p.waiting(1, 3)
	leave()
	wantError(t, "left", receive(t, b).err, context.Canceled)
	leaveFirst() // the one whose creator runs: it goes on for the other
	wantError(t, "left", receive(t, a).err, context.Canceled)
	want(t, "aborted", aborted.Load(), false)
	close(gate)
	r := receive(t, c)
	want(t, "joined", r, call{"v", sessioncache.Joined, nil})
	want(t, "get", p.get(1, "n"), "v")
}

// waiting waits until so many handles of the shape are open and their asks had
// their turn.
func (b *box) waiting(n, handles int) {
	b.t.Helper()
	s := shape(b.t, n)
	got := func() any { return sessioncache.Handles(b.Session, s) }
	eventually(b.t, func() bool { return got() == handles }, got, "handles", handles)
	for range 20 { // the asks follow at once: give them time to be sent
		time.Sleep(time.Millisecond)
		b.stats()
	}
}

func TestNobodyIsLeft(t *testing.T) { // F4
	p := open(t, sessioncache.Config{})
	create, began, aborted := p.gated("v", nil)
	ctx, cancel := context.WithCancel(bg)
	a := p.start(ctx, 1, "n", sessioncache.Options{}, create)
	<-began
	cancel()
	wantError(t, "left", receive(t, a).err, context.Canceled)
	v, by := p.run(1, "n", "v2") // waits for the end of the other
	want(t, "next", v+string(by), "v2miss")
	want(t, "aborted", aborted.Load(), true)
}

func TestCycle(t *testing.T) { // F5
	p, q := open(t, sessioncache.Config{}), open(t, sessioncache.Config{})
	var a, b sessioncache.Create
	a = func(ctx context.Context) (sessioncache.Value, error) {
		_, _, err := q.try(ctx, shape(t, 1), "b", sessioncache.Options{}, b)
		return p.value("a"), err
	}
	b = func(ctx context.Context) (sessioncache.Value, error) {
		_, _, err := p.try(ctx, shape(t, 1), "a", sessioncache.Options{}, a)
		return q.value("b"), err
	}
	_, _, err := p.try(bg, shape(t, 1), "a", sessioncache.Options{}, a)
	wantError(t, "through another session", err, fault.ErrCycle)
	want(t, "objects", p.Len()+q.Len(), 0)

	v, _, err := p.try(bg, shape(t, 1), "whole", sessioncache.Options{}, func(ctx context.Context) (sessioncache.Value, error) {
		_, _, err := p.try(ctx, shape(t, 2), "part", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { return p.value("part"), nil })
		return p.value("whole"), err
	})
	want(t, "nested", v, "whole")
	if err != nil {
		t.Error(err)
	}
	want(t, "objects", p.Len(), 2)
}

func TestNothingWaitsForACreator(t *testing.T) { // F6
	p := open(t, sessioncache.Config{})
	p.set(1, "old", "v0")
	gate := make(chan struct{})
	create, began, _ := p.gated("v", gate)
	a := p.start(bg, 1, "n", sessioncache.Options{}, create)
	<-began
	want(t, "old", p.get(1, "old"), "v0")
	p.run(1, "new", "v1")
	p.run(2, "new", "v1")
	want(t, "running", p.stats().Running, 1)
	if err := errors.Join(p.SetGroups(bg, sessioncache.LimitOf(9)), p.Reset(bg, "X"), p.Hold("X"), p.Announce()); err != nil {
		t.Fatal(err)
	}
	want(t, "objects", p.Len(), 3)
	close(gate)
	want(t, "made", receive(t, a), call{"v", sessioncache.Miss, nil})
}

func TestLanesAreMadeApart(t *testing.T) { // G6, F1: one flight waits for another
	p := open(t, sessioncache.Config{})
	lanes := []sessioncache.Lane{0, sessioncache.Worker(0), sessioncache.Worker(1)}
	var create func(at int) sessioncache.Create
	create = func(at int) sessioncache.Create {
		return func(ctx context.Context) (sessioncache.Value, error) {
			if next := at + 1; next < len(lanes) {
				if _, _, err := p.try(ctx, shape(t, 1), "n", sessioncache.Options{Lane: lanes[next]}, create(next)); err != nil {
					return sessioncache.Value{}, err
				}
			}
			return p.value(fmt.Sprint("v", at)), nil
		}
	}
	v, by, err := p.try(bg, shape(t, 1), "n", sessioncache.Options{Lane: lanes[0]}, create(0))
	want(t, "made", call{v, by, err}, call{"v0", sessioncache.Miss, nil})
	want(t, "objects", p.Len(), 3)
}

func TestClearedWhileMade(t *testing.T) { // F7
	X := sessioncache.Options{Owner: "X"}
	for name, clear := range map[string]func(*box) error{
		"reset all":  func(p *box) error { return p.ResetAll(bg) },
		"reset":      func(p *box) error { return p.Reset(bg, "X") },
		"set groups": func(p *box) error { return p.SetGroups(bg, sessioncache.LimitOf(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, fifo(1))
			gate := make(chan struct{})
			create, began, _ := p.gated("v", gate)
			a := p.start(bg, 1, "n", X, create)
			<-began
			if err := clear(p); err != nil {
				t.Fatal(err)
			}
			if err := p.SetGroups(bg, sessioncache.LimitOf(2)); err != nil {
				t.Fatal(err)
			}
			handles := sessioncache.Handles(p.Session, shape(t, 1)) // none where the group went
			b := p.start(bg, 1, "n", X, create)                     // joins: one flight a key (F1, C4)
			p.waiting(1, handles+1)
			close(gate)
			want(t, "maker", receive(t, a), call{"v", sessioncache.Miss, nil})
			want(t, "waiter", receive(t, b), call{"v", sessioncache.Joined, nil})
			want(t, "get", p.get(1, "n"), "absent")
			p.freed("v", 1)
			v, by := p.run(1, "n", "v2")
			want(t, "again", v+string(by), "v2miss")
		})
	}
}

func TestSetWhileMade(t *testing.T) { // the later write stays
	p := open(t, sessioncache.Config{})
	gate := make(chan struct{})
	create, began, _ := p.gated("old", gate)
	a := p.start(bg, 1, "n", sessioncache.Options{}, create)
	<-began
	p.set(1, "n", "new")
	want(t, "get", p.get(1, "n"), "new")
	close(gate)
	want(t, "maker", receive(t, a).v, "old")
	want(t, "get", p.get(1, "n"), "new")
	p.freed("old", 1)
	p.freed("new", 0)
}

func TestTooLargeIsHandedOut(t *testing.T) { // S3
	c := fifo(4)
	c.Bytes = sessioncache.LimitOf(100)
	p := open(t, c)
	if err := p.sized(1, "n", "v", 60); err != nil {
		t.Fatal(err)
	}
	make := func(text string, bytes int64) sessioncache.Create {
		return func(context.Context) (sessioncache.Value, error) {
			v := p.value(text)
			v.Bytes = bytes
			return v, nil
		}
	}
	h, err := p.Group(bg, shape(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	r, by, err := h.Get(bg, "n", sessioncache.Options{}, make("big", 101))
	if err != nil || by != sessioncache.Miss || r.Value() != "big" || r.Resident() {
		t.Errorf("%v %s %v", r.Value(), by, err)
	}
	want(t, "has 1", p.has(1), 1)
	p.freed("big", 0) // its handle is open
	// A group that alone is above the capacity begins anew with what is written.
	for _, name := range []string{"a", "b"} {
		if _, _, err := h.Get(bg, name, sessioncache.Options{}, make(name, 70)); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "bytes", p.Bytes(), 70)
	want(t, "b", p.get(2, "b"), "b")
	want(t, "a", p.get(2, "a"), "absent")
	want(t, "has 1", p.has(1), 0)
	ref, by, err := h.Get(bg, "b", sessioncache.Options{}, nil) // found where it is now
	if err == nil || ref.Value() != nil {
		t.Errorf("a nil creator: %s, %v", by, err)
	}
	_, by, err = h.Get(bg, "b", sessioncache.Options{}, make("x", 1))
	if err != nil || by != sessioncache.Hit {
		t.Errorf("%s, %v", by, err)
	}
	p.freed("a", 0)
	h.Close()
	p.freed("a", 1)
	p.freed("big", 1)
	p.freed("b", 0)
}

func TestClose(t *testing.T) { // F8
	p := open(t, sessioncache.Config{})
	p.set(9, "n", "kept")
	l := p.lease(9, "n")
	h, err := p.Group(bg, shape(t, 9))
	if err != nil {
		t.Fatal(err)
	}
	stubborn := make(chan struct{})
	began := make(chan struct{})
	a := p.start(bg, 1, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		close(began)
		<-stubborn // heeds no context
		return p.value("late"), nil
	})
	<-began
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	wantError(t, "close waits for the creator", p.Close(ctx), context.DeadlineExceeded)
	wantError(t, "caller", receive(t, a).err, fault.ErrClosed)
	want(t, "get", p.get(9, "n"), "absent")
	want(t, "groups", p.Groups(), 0)
	want(t, "objects", p.Len(), 0)
	_, err = p.Group(bg, shape(t, 1))
	wantError(t, "acquire", err, fault.ErrClosed)
	wantError(t, "set", p.Set(bg, shape(t, 1), "n", p.value("x"), sessioncache.Options{}), fault.ErrClosed)
	wantError(t, "reset", p.ResetAll(bg), fault.ErrClosed)
	wantError(t, "hold", p.Hold("X"), fault.ErrClosed)
	wantError(t, "announce", p.Announce(shape(t, 1)), fault.ErrClosed)
	wantError(t, "set groups", p.SetGroups(bg, sessioncache.LimitOf(3)), fault.ErrClosed)
	_, err = p.Stream(bg)
	wantError(t, "stream", err, fault.ErrClosed)
	want(t, "groups", p.Stats().Groups, 0)
	_, _, err = h.Get(bg, "other", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { panic("unreachable") })
	wantError(t, "create", err, fault.ErrClosed)
	want(t, "intern", p.Intern("n").String(), "n")
	close(stubborn)
	for range 2 {
		if err := p.Close(bg); err != nil {
			t.Error(err)
		}
	}
	p.freed("late", 1)
	p.freed("x", 1)
	r, ok := h.Lookup("n", 0) // what is held goes on
	want(t, "held", ok && r.Value() == "kept", true)
	h.Close()
	p.freed("kept", 0)
	l.End()
	p.freed("kept", 1)
}
