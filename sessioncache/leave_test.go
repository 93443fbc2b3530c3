package sessioncache_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/sessioncache"
)

// TestLeavingAtAnyMoment: callers whose contexts end at any point of their call
// leave nothing behind: no waiter that keeps a creator alive, no handle that
// keeps a group. // F4, S3
func TestLeavingAtAnyMoment(t *testing.T) {
	p := open(t, sessioncache.Config{})
	for round := range 300 {
		create, began, aborted := p.gated("v", nil)
		first, leave := context.WithCancel(bg)
		a := p.start(first, 1, "n", sessioncache.Options{}, create)
		<-began
		var others sync.WaitGroup
		for w := range 4 {
			others.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(w)))
				ctx, cancel := context.WithCancel(bg)
				done := p.start(ctx, 1+w%2, "n", sessioncache.Options{}, create)
				for range rnd.IntN(8) {
					runtime.Gosched()
				}
				cancel()
				wantError(t, "left", receive(t, done).err, context.Canceled)
			})
		}
		others.Wait()
		leave()
		wantError(t, "left", receive(t, a).err, context.Canceled)
		// Close waits 50 ms at most for its group to go, which a busy machine may take longer for.
		eventually(t, func() bool { return p.Groups() == 0 }, func() any { return p.Groups() }, "groups once all have left", 0)
		eventually(t, func() bool { return aborted.Load() && p.stats().Running == 0 }, func() any { return aborted.Load() }, "aborted", true)
	}
}

// F4, G9: a creator that heeds no context is no reason to count a group that
// nobody waits for. What it makes is for whoever comes next, who waits for it, and
// is kept.
func TestForsakenGroupIsGone(t *testing.T) {
	p := open(t, sessioncache.Config{})
	began, gate := make(chan struct{}), make(chan struct{})
	forsaken := func() {
		t.Helper()
		ctx, leave := context.WithCancel(bg)
		left := p.start(ctx, 1, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
			began <- struct{}{}
			<-gate
			return p.value("late"), nil
		})
		<-began
		leave()
		wantError(t, "left", receive(t, left).err, context.Canceled)
		eventually(t, func() bool { return p.Groups() == 0 }, func() any { return p.Groups() }, "groups", 0)
	}
	forsaken()
	create, again, _ := p.gated("new", gate)
	next := p.start(bg, 1, "n", sessioncache.Options{}, create)
	eventually(t, func() bool { return p.Groups() == 1 }, func() any { return p.Groups() }, "groups", 1)
	p.waiting(1, 1)
	gate <- struct{}{}
	want(t, "next", receive(t, next), call{"late", sessioncache.Joined, nil})
	select {
	case <-again:
		t.Error("a second creator ran") // F1
	default:
	}
	want(t, "groups", p.Groups(), 1)
	want(t, "kept", p.get(1, "n"), "late")

	if err := p.ResetAll(bg); err != nil {
		t.Fatal(err)
	}
	p.freed("late", 1)
	forsaken() // and nobody comes
	gate <- struct{}{}
	eventually(t, func() bool { return p.Len() == 1 }, func() any { return p.Len() }, "objects", 1)
	want(t, "kept", p.get(1, "n"), "late")
	want(t, "groups", p.Groups(), 1)

	if err := p.ResetAll(bg); err != nil {
		t.Fatal(err)
	}
	forsaken() // F7: what was cleared meanwhile is not kept
	if err := p.ResetAll(bg); err != nil {
		t.Fatal(err)
	}
	gate <- struct{}{}
	p.freed("late", 3)
	want(t, "groups", p.Groups(), 0)
}

// S3, G9: a value that can never fit may be leased; its group is not registered
// for that.
func TestLeaseOfWhatWasNotKept(t *testing.T) {
	p := open(t, sessioncache.Config{Bytes: sessioncache.LimitOf(100)})
	h, err := p.Group(bg, shape(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := h.Get(bg, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		v := p.value("big")
		v.Bytes = 101
		return v, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l, ok := r.Acquire()
	h.Close()
	want(t, "leased", ok, true)
	want(t, "groups", p.Groups(), 0)
	p.freed("big", 0)
	l.End()
	p.freed("big", 1)
}

// F7, G7: what was being made when everything was reset serves who asked for it,
// and is found by nobody, not even through a handle from before.
func TestResetUnderAnOpenHandle(t *testing.T) {
	p := open(t, sessioncache.Config{})
	h, err := p.Group(bg, shape(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	create, began, _ := p.gated("old", gate)
	made := make(chan sessioncache.Ref, 1)
	go func() {
		r, _, err := h.Get(bg, "n", sessioncache.Options{}, create)
		if err != nil {
			t.Error(err)
		}
		made <- r
	}()
	<-began
	if err := p.ResetAll(bg); err != nil {
		t.Fatal(err)
	}
	close(gate)
	r := <-made
	want(t, "made", r.Value(), any("old"))
	want(t, "resident", r.Resident(), false)
	again, event, err := h.Get(bg, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		return p.value("new"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "again", again.Value(), any("new"))
	want(t, "event", event, sessioncache.Miss)
	h.Close()
	p.freed("old", 1)
}

func TestForeignID(t *testing.T) { // G11, K2
	p, q := open(t, sessioncache.Config{}), open(t, sessioncache.Config{})
	p.Intern("a")
	early := p.Intern("b")
	q.Intern("b")
	foreign := q.Intern("a") // p's id of b
	p.set(1, "a", "va")
	p.set(1, "b", "vb")
	late := p.Intern("c")
	p.set(1, "c", "vc")
	p.set(2, "z", "vz")
	after := p.Intern("z") // interned when a group had it
	for n, ids := range map[int][]sessioncache.NameID{1: {foreign, early, late}, 2: {after}} {
		g, _ := p.View(shape(t, n))
		for _, id := range ids {
			r, ok := g.LookupID(id)
			if !ok || r.Value() != "v"+id.String() {
				t.Errorf("%s: %v", id, r.Value())
			}
		}
	}
	g, _ := p.View(shape(t, 2))
	for _, id := range []sessioncache.NameID{early, {}} {
		if _, ok := g.LookupID(id); ok {
			t.Errorf("%q was found", id)
		}
	}
	if _, ok := (sessioncache.View{}).LookupID(early); ok {
		t.Error("found in no group")
	}
	p.set(2, "z", "again", sessioncache.Options{Owner: "X"})
	r, _ := g.LookupID(after)
	want(t, "overwritten", r.Value(), any("again"))
	if err := p.Reset(bg, "X"); err != nil {
		t.Fatal(err)
	}
	if _, ok := g.LookupID(after); ok {
		t.Error("found after its reset")
	}
	want(t, "resident", r.Resident(), false)
}

// F3: a Free that ends its goroutine keeps none of its group's other names.
func TestFreeThatEndsItsGoroutine(t *testing.T) {
	p := open(t, fifo(4))
	for _, name := range []string{"a", "b", "c"} {
		v := p.value(name)
		free := v.Free
		v.Free = func() {
			free()
			runtime.Goexit()
		}
		if err := p.Set(bg, shape(t, 1), name, v, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.SetGroups(bg, sessioncache.LimitOf(0)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		p.freed(name, 1)
	}
}

// badDone is a context whose Done panics.
type badDone struct{ context.Context }

func (badDone) Done() <-chan struct{} { panic("user's context") }

// A context that panics harms its own caller alone: no other gets its answer.
func TestContextThatPanics(t *testing.T) {
	other, err := sessioncache.Open(sessioncache.Config{Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	s, err := sessioncache.Open(sessioncache.Config{Name: "bad"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	for i := range 50 {
		func() {
			defer func() { _ = recover() }()
			_, _ = s.Group(badDone{context.Background()}, shape(t, i+1))
		}()
		if id := other.Intern("name"); id.String() != "name" {
			t.Fatalf("round %d: the name interned is %q", i, id)
		}
		g, err := other.Group(context.Background(), shape(t, i+1000))
		if err != nil {
			t.Fatal(err)
		}
		g.Close()
	}
}

// leaving is a context that ends once the caller has sent what it asks. left is called
// while the caller leaves.
type leaving struct {
	context.Context
	looked bool
	left   func()
}

func (l *leaving) Err() error {
	if !l.looked {
		l.looked = true
		return nil
	}
	l.left()
	return l.Context.Err()
}

// F4: the turn of a question comes after the asker has left, who then does not read
// what it writes. The race detector sees that.
func TestLeavingAQuestion(t *testing.T) {
	p := open(t, sessioncache.Config{})
	p.set(1, "n", "v")
	for name, ask := range map[string]func(context.Context) (int, error){
		"save policy": func(ctx context.Context) (int, error) { b, err := p.SavePolicy(ctx); return len(b), err },
		"stream":      func(ctx context.Context) (int, error) { s, err := p.Stream(ctx); return len(s), err },
		"advice":      func(ctx context.Context) (int, error) { r, err := p.Advice(ctx, "lru", 1); return r.Hits, err },
	} {
		end := sync.OnceFunc(sessioncache.Stall(p.Session))
		ended, leave := context.WithCancel(bg)
		leave()
		n, err := ask(&leaving{Context: ended, left: end})
		wantError(t, name, err, context.Canceled)
		if n != 0 {
			t.Errorf("%s: %d without a turn", name, n)
		}
		if _, err := ask(bg); err != nil {
			t.Error(err)
		}
	}
}

// F4, F9: who asks for a name and has left before the turn, when the group has gone since nobody
// used it, does not have that come back: what it holds has been freed, or is being freed.
func TestAskedOfAGroupThatHasGone(t *testing.T) {
	p := open(t, sessioncache.Config{})
	first := p.hold(1)
	end := sync.OnceFunc(sessioncache.Stall(p.Session))
	defer end()
	first.Close() // which its turn looks at when the next one is closed, too
	next := p.hold(1)
	var made atomic.Int32
	_, _, err := next.Get(&leaves{Context: bg}, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		made.Add(1)
		time.Sleep(20 * time.Millisecond) // meanwhile the group is torn
		return p.value("v"), nil
	})
	wantError(t, "get", err, context.Canceled)
	next.Close()
	end()
	sessioncache.InTurn(p.Session, func() {}) // after all these
	eventually(t, func() bool { return p.Stats().Running == 0 }, func() any { return p.Stats().Running }, "creators", 0)
	if err := p.Close(bg); err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	want(t, "freed of those that were made", p.mu.freed["v"], int(made.Load()))
}

// The session owns what Set is given, also where the caller's context panics.
func TestSetUnderAContextThatPanics(t *testing.T) {
	p := open(t, sessioncache.Config{})
	ended, leave := context.WithCancel(bg)
	leave()
	for what, ctx := range map[string]context.Context{
		"before it is sent": &leaving{Context: ended, looked: true, left: func() { panic("made to panic") }},
		"before its answer": &leaving{Context: ended, left: func() { panic("made to panic") }},
	} {
		func() {
			defer func() { _ = recover() }()
			_ = p.Set(ctx, shape(t, 1), "n", p.value(what), sessioncache.Options{})
		}()
		p.ResetAll(bg)
		p.mu.Lock()
		want(t, what, p.mu.freed[what], 1)
		p.mu.Unlock()
	}
}

// Nor is it lost where Config.Hash panics, of the shape or of the name.
func TestSetUnderAHashThatPanics(t *testing.T) {
	bad := ""
	p := open(t, sessioncache.Config{Hash: func(key string) uint64 {
		if key == bad {
			panic("made to panic")
		}
		return 0
	}})
	at := shape(t, 1)
	for _, bad = range []string{at.Key(), "n"} {
		func() {
			defer func() { _ = recover() }()
			_ = p.Set(bg, at, "n", p.value(bad), sessioncache.Options{})
		}()
		p.freed(bad, 1)
	}
	bad = ""
}
