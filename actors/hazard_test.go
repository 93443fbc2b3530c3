package actors_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
)

// Each test here is named after something that the actor library was measured
// to do, and shows that the facade does not do it.

// Hazard: a reply close to the timeout, or a second reply, races with the asker
// and overwrites the result. Here: exactly one answer, whole, for ever.
func TestLateAndDoubleReplies(t *testing.T) {
	const askers, rounds = 4, 25_000
	type answer struct{ id, twice int }
	type question struct {
		id    int
		reply actors.Reply[answer]
	}
	var wrong atomic.Int64
	ref := actors.Spawn(actors.Config{}, func(q question) {
		if q.id%3 == 0 { // late: somebody else answers, twice, at any time
			actors.Go(func() {
				q.reply.Send(answer{q.id, 2 * q.id})
				q.reply.Fail(errors.New("second"))
			})
			return
		}
		first := q.reply.Send(answer{q.id, 2 * q.id})
		if second := q.reply.Send(answer{-1, -1}) || q.reply.Fail(errors.New("third")); second || !first && q.id%3 == 1 {
			wrong.Add(1)
		}
	})
	var wg sync.WaitGroup
	var late atomic.Int64
	for a := range askers {
		wg.Go(func() {
			for i := range rounds {
				id := a*rounds + i
				ctx, cancel := context.WithCancel(background)
				if id%3 != 1 {
					actors.Go(cancel) // at about the time of the answer
				}
				got, err := actors.Ask(ctx, ref, func(r actors.Reply[answer]) question { return question{id, r} })
				cancel()
				switch {
				case err == nil && got != answer{id, 2 * id}:
					t.Errorf("asked %d, got %+v", id, got)
				case err != nil && (!errors.Is(err, context.Canceled) || got != answer{}):
					t.Errorf("asked %d, got %+v and %v", id, got, err)
				case err != nil:
					late.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if err := ref.Stop(background); err != nil {
		t.Error(err)
	}
	if wrong.Load() != 0 {
		t.Errorf("%d replies reported something untrue", wrong.Load())
	}
	t.Logf("%d of %d left first", late.Load(), askers*rounds)
}

// Hazard: of several who wait only one is woken. Here: all of them, each once.
func TestAllWaitersAreWoken(t *testing.T) {
	c := spawn(t, actors.Config{})
	for range 200 {
		release := c.hold(t)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := c.ask(background, request{add: 1}); err != nil {
					t.Error(err)
				}
			})
		}
		eventually(t, "eight asked", func() bool { return c.ref.Queued() == 8 })
		release()
		wg.Wait()
	}
	if c.total != 1600 {
		t.Errorf("%d answers, want 1600", c.total)
	}
}

// Hazard: Stop loses what is queued, Poison what is sent after it, in silence.
// Here: what was sent before is handled; who asks after is told ErrClosed.
func TestStopLosesNothingAndStrandsNobody(t *testing.T) {
	c := &counter{}
	c.ref = actors.Spawn(actors.Config{Admission: 64}, c.handle)
	release := c.hold(t)
	before := make(chan error, 50) // one an asker
	for range 50 {
		go func() {
			_, err := c.ask(background, request{add: 1})
			before <- err
		}()
	}
	eventually(t, "fifty asked", func() bool { return c.ref.Queued() == 50 })

	left, cancel := context.WithCancel(background)
	cancel()
	if err := c.ref.Stop(left); !errors.Is(err, context.Canceled) {
		t.Errorf("Stop under an ended context: %v", err)
	}
	after := make(chan error, 50) // one an asker
	for range 50 {
		go func() {
			_, err := c.ask(background, request{add: 1000})
			after <- err
		}()
	}
	for range 36 { // 14 fit beside the 50 that wait, the rest is refused at once
		if err := <-after; !errors.Is(err, fault.ErrOverloaded) {
			t.Fatalf("beyond the limit: %v", err)
		}
	}
	release()
	for range 50 {
		if err := <-before; err != nil {
			t.Errorf("sent before Stop: %v", err)
		}
	}
	for range 14 {
		if err := <-after; !errors.Is(err, fault.ErrClosed) {
			t.Errorf("sent after Stop: %v", err)
		}
	}
	if err := c.ref.Stop(background); err != nil {
		t.Error(err)
	}
	if c.total != 50 {
		t.Errorf("total %d: 50 were sent before Stop", c.total)
	}
	if c.ref.Tell(request{add: 1}) {
		t.Error("Tell to a stopped actor reports true")
	}
}

// Requests that overtook the end and were dropped hold their places for ever:
// that must not make a stopped actor look like an overloaded one.
func TestStoppedIsNotOverloaded(t *testing.T) {
	const most = 4
	c := &counter{}
	c.ref = actors.Spawn(actors.Config{Admission: most}, c.handle)
	release := c.hold(t)
	left, cancel := context.WithCancel(background)
	cancel()
	_ = c.ref.Stop(left)
	stopping := c.ref.Queued()     // its end is a message, too
	late := make(chan error, most) // one an asker
	for range most {
		go func() {
			_, err := c.ask(background, request{})
			late <- err
		}()
	}
	eventually(t, "all places taken", func() bool { return c.ref.Queued() == stopping+most })
	release()
	for range most {
		if err := <-late; !errors.Is(err, fault.ErrClosed) {
			t.Errorf("sent after Stop: %v", err)
		}
	}
	if _, err := c.ask(background, request{}); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("asked a stopped actor: %v", err)
	}
}

// Hazard: a panic leaves its request unanswered, rebuilds the actor without its
// state and, after ten, stops it. Here none of this, however many in a row.
func TestPanicsInTurns(t *testing.T) {
	c := spawn(t, actors.Config{})
	const rows = 100
	boom := errors.New("boom")
	for i := range rows {
		if _, err := c.ask(background, request{add: 1}); err != nil {
			t.Fatal(err)
		}
		for range 11 {
			_, err := c.ask(background, request{boom: boom})
			var panicked *fault.PanicError
			if !errors.As(err, &panicked) || !errors.Is(err, boom) || !strings.Contains(string(panicked.Stack), "handle") {
				t.Fatalf("got %v", err)
			}
		}
		if n, err := c.ask(background, request{}); err != nil || n != i+1 {
			t.Fatalf("total %d, %v after %d panics: the state was lost", n, err, c.ref.Panics())
		}
	}
	if c.ref.Panics() != 11*rows {
		t.Errorf("%d panics counted, want %d", c.ref.Panics(), 11*rows)
	}
}

// hostile is a log handler that ends its goroutine, or panics.
type hostile struct {
	slog.Handler
	harm func()
}

func (h hostile) Handle(context.Context, slog.Record) error { h.harm(); return nil }

// F3: a logger that ends its goroutine, or panics, does not end the actor whose turn
// panicked.
func TestHostileLogger(t *testing.T) {
	for _, harm := range []func(){runtime.Goexit, func() { panic("handler") }} {
		c := spawn(t, actors.Config{Logger: slog.New(hostile{slog.NewTextHandler(io.Discard, nil), harm})})
		for n := range 20 {
			if _, err := c.ask(background, request{boom: "boom"}); err == nil {
				t.Error("no error")
			}
			if total, err := c.ask(background, request{add: 1}); total != n+1 || err != nil {
				t.Fatalf("%d, %v", total, err)
			}
		}
	}
}

// spiteful panics in its turn and again when it is told.
type spiteful struct{ done chan struct{} }

func (spiteful) Fail(error) { panic("again") }

// A message whose Fail panics, too, must not reach the library's restarts.
func TestPanicInFail(t *testing.T) {
	ref := actors.Spawn(actors.Config{}, func(m spiteful) {
		if m.done == nil {
			panic("first")
		}
		close(m.done)
	})
	for range 50 {
		ref.Tell(spiteful{})
	}
	last := spiteful{make(chan struct{})}
	ref.Tell(last)
	select {
	case <-last.done:
	case <-ref.Stopped():
		t.Error("the actor was stopped")
	}
	if err := ref.Stop(background); err != nil {
		t.Error(err)
	}
}

// Hazard: at a full mailbox the sender spins until there is room. Here it is
// told at once, and what was refused takes no place.
func TestAdmissionIsRefusedAtOnce(t *testing.T) {
	const most = 5
	c := spawn(t, actors.Config{Admission: most})
	release := c.hold(t)
	admitted := make(chan error, most) // one an asker
	for range most {
		go func() {
			_, err := c.ask(background, request{add: 1})
			admitted <- err
		}()
	}
	eventually(t, "all places taken", func() bool { return c.ref.Queued() == most })
	for range 10_000 {
		if _, err := c.ask(background, request{add: 1}); !errors.Is(err, fault.ErrOverloaded) {
			t.Fatalf("beyond the limit: %v", err)
		}
	}
	if !c.ref.Tell(request{add: 10}) { // what is not asked needs no place
		t.Error("Tell was refused")
	}
	release()
	for range most {
		if err := <-admitted; err != nil {
			t.Error(err)
		}
	}
	if n, err := c.ask(background, request{}); err != nil || n != most+10 {
		t.Errorf("total %d, %v, want %d: all places are free again", n, err, most+10)
	}
}

// Hazard: a fixed pool is starved by two actors that block. Here any number of
// blocked actors leaves the others served.
func TestBlockedActorsStarveNobody(t *testing.T) {
	blocked := 4 * runtime.GOMAXPROCS(0)
	for range blocked {
		c := spawn(t, actors.Config{})
		defer c.hold(t)()
	}
	other := spawn(t, actors.Config{})
	ctx, cancel := context.WithTimeout(background, 20*time.Second)
	defer cancel()
	for range 1000 {
		if _, err := other.ask(ctx, request{add: 1}); err != nil {
			t.Fatalf("beside %d blocked actors: %v", blocked, err)
		}
	}
	done := make(chan struct{})
	actors.Go(func() { close(done) })
	select {
	case <-done:
	case <-ctx.Done():
		t.Error("no goroutine was lent")
	}
}

// Hazard: the second shutdown panics. Here Stop may be called by anybody, often.
func TestStopIsIdempotent(t *testing.T) {
	for range 50 {
		c := &counter{}
		c.ref = actors.Spawn(actors.Config{}, c.handle)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 3 {
					if err := c.ref.Stop(background); err != nil {
						t.Error(err)
					}
				}
				<-c.ref.Stopped()
			})
		}
		wg.Wait()
	}
}

// Hazard: an unanswered request stays in a registry. Here the asker's leaving
// is all there is, and what comes too late is handed back to its sender.
func TestAbandonedReplyHandsBackWhatItCarries(t *testing.T) {
	var out atomic.Int64 // leases given and not ended
	type ask struct{ reply actors.Reply[func()] }
	ref := actors.Spawn(actors.Config{}, func(m ask) {
		out.Add(1)
		end := func() { out.Add(-1) }
		if !m.reply.Send(end) {
			end()
		}
		if m.reply.Send(end) {
			t.Error("a second answer was taken")
		}
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10_000 {
				ctx, cancel := context.WithCancel(background)
				actors.Go(cancel)
				if end, err := actors.Ask(ctx, ref, func(r actors.Reply[func()]) ask { return ask{r} }); err == nil {
					end()
				}
			}
		})
	}
	wg.Wait()
	if err := ref.Stop(background); err != nil {
		t.Error(err)
	}
	if out.Load() != 0 {
		t.Errorf("%d leases leaked", out.Load())
	}
}

// A Reply that nobody waits for takes nothing.
func TestZeroReply(t *testing.T) {
	var r actors.Reply[int]
	if r.Send(1) || r.Fail(fmt.Errorf("x")) {
		t.Error("the zero Reply took an answer")
	}
}
