package actors

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
)

func TestQueue(t *testing.T) {
	var q queue
	var want []any
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 1 << 14 {
		if grow := 1 + i>>12%2; random.IntN(2*grow+1) < grow || len(want) == 0 { // grows, then stays, twice
			q.push(i)
			want = append(want, i)
		} else {
			if got := q.pop(); got != want[0] {
				t.Fatalf("step %d: popped %v, want %v", i, got, want[0])
			}
			want = want[1:]
		}
		if q.len() != len(want) {
			t.Fatalf("step %d: %d queued, want %d", i, q.len(), len(want))
		}
	}
	for len(want) > 0 {
		if got := q.pop(); got != want[0] {
			t.Fatalf("popped %v, want %v", got, want[0])
		}
		want = want[1:]
	}
}

// handled is the library's side of a mailbox: it notes what it is given.
type handled struct {
	box      *mailbox
	messages []any
	failures int
}

func (h *handled) InvokeSystemMessage(m any) { h.messages = append(h.messages, m) }

func (h *handled) InvokeUserMessage(m any) {
	if m == "panic" {
		panic(m)
	}
	h.messages = append(h.messages, m)
}

func (h *handled) EscalateFailure(any, any) {
	h.failures++
	h.box.PostSystemMessage(new(actor.SuspendMailbox)) // as supervision does
}

// later is a dispatcher that runs nothing by itself.
type later struct{ scheduled []func() }

func (d *later) Schedule(fn func()) { d.scheduled = append(d.scheduled, fn) }
func (d *later) Throughput() int    { return 2 }

func TestMailbox(t *testing.T) {
	var d later
	m := newMailbox()
	h := &handled{box: m}
	m.RegisterHandlers(h, &d)
	run := func(times int, want ...any) {
		t.Helper()
		if len(d.scheduled) != times {
			t.Fatalf("scheduled %d times, want %d", len(d.scheduled), times)
		}
		for len(d.scheduled) > 0 {
			fn := d.scheduled[0]
			d.scheduled = d.scheduled[1:]
			fn()
		}
		if !slices.Equal(h.messages, want) {
			t.Fatalf("handled %v, want %v", h.messages, want)
		}
		h.messages = nil
	}
	for _, v := range []any{1, 2, 3, 4} {
		m.PostUserMessage(v)
	}
	m.PostSystemMessage("first")
	run(1, "first", 1, 2, 3, 4)
	m.PostUserMessage("panic")
	m.PostUserMessage(5)
	run(1)
	if h.failures != 1 || m.UserMessageCount() != 1 {
		t.Fatalf("%d failures and %d messages kept, want one of each", h.failures, m.UserMessageCount())
	}
	m.PostSystemMessage(new(actor.ResumeMailbox))
	run(1, 5)
}

// F6: who waits for an answer handles messages where nobody does, and waits for no
// goroutine that was called; it leaves the rest to one where it has done its share or
// is to wait no longer.
func TestMailboxIsHandledByWhoWaits(t *testing.T) {
	var d later
	m := newMailbox()
	h := &handled{box: m}
	m.RegisterHandlers(h, &d)
	want := func(what string, scheduled int, messages ...any) {
		t.Helper()
		if !slices.Equal(h.messages, messages) || len(d.scheduled) != scheduled {
			t.Fatalf("%s: handled %v, called %d; want %v and %d", what, h.messages, len(d.scheduled), messages, scheduled)
		}
		h.messages = nil
	}
	m.hand(1, nil, nil)
	want("idle", 0, 1)
	m.PostUserMessage(2)
	m.hand(3, nil, nil)
	want("a goroutine was called", 1, 2, 3)
	d.scheduled[0]()
	want("and comes late", 1)
	d.scheduled = nil

	sent := false
	m.hand(4, func() { sent = true; m.PostUserMessage(5) }, nil)
	if !sent {
		t.Fatal("not told that it was sent")
	}
	want("others send meanwhile", 0, 4, 5)

	m.PostUserMessage(6)
	done := make(chan struct{})
	close(done)
	m.hand(7, nil, done)
	want("the caller is to leave", 1, 6)
	d.scheduled[0]()
	want("the one that was called goes on", 1, 7)
	d.scheduled = nil

	m.hand(0, func() {
		for n := range others + 1 {
			m.PostUserMessage(n + 1)
		}
	}, nil)
	if len(h.messages) != 1+others || len(d.scheduled) != 1 {
		t.Fatalf("%d messages were handled and %d goroutines called, want %d and 1", len(h.messages), len(d.scheduled), 1+others)
	}
}

// A goroutine that was called, and comes while one that waits handles messages, handles none
// beside it.
func TestMailboxIsHandledByOne(t *testing.T) {
	var d later
	m := newMailbox()
	h := &handled{box: m}
	m.RegisterHandlers(h, &d)
	m.PostUserMessage(1) // for which a goroutine is called
	m.hand(2, func() {   // before its turns
		d.scheduled[0]()
		if len(h.messages) != 0 {
			t.Errorf("%v were handled beside the one that waits", h.messages)
		}
	}, nil)
	if !slices.Equal(h.messages, []any{1, 2}) {
		t.Errorf("handled %v", h.messages)
	}
}

// A queue keeps nothing of what was taken out of it: not behind what was moved to its
// beginning, nor the room of very many.
func TestQueueKeepsNothing(t *testing.T) {
	var q queue
	for range 3 {
		q.push(1)
	}
	for len(q.items) < cap(q.items) {
		q.push(1)
	}
	for range len(q.items) - 1 {
		q.pop()
	}
	q.push(1) // moves what is left
	for _, v := range q.items[q.len():cap(q.items)] {
		if v != nil {
			t.Fatalf("%v is kept behind %v", v, q.items)
		}
	}
	for range 1 << 12 {
		q.push(1)
	}
	for q.len() > 0 {
		q.pop()
	}
	if n := cap(q.items); n > 1<<10 {
		t.Errorf("an empty queue keeps %d places", n)
	}
}

// A Do that sends nothing since the actor has ended says so as one that does.
func TestDoAfterTheEnd(t *testing.T) {
	r := Spawn(Config{}, func(int) { t.Error("a turn after the end") })
	if err := r.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	sent := 0
	if r.Do(1, func() { sent++ }) || sent != 1 {
		t.Errorf("told %d times that it was sent, want once, and that it was not handled", sent)
	}
}

// Queued counts what waits for the next turns, and what is sent later does not change
// what it said.
func TestQueued(t *testing.T) {
	var r *Ref[chan struct{}]
	seen := make(chan int, 4)
	r = Spawn(Config{}, func(gate chan struct{}) {
		<-gate
		seen <- r.Queued()
	})
	first, open := make(chan struct{}), make(chan struct{})
	close(open)
	r.Tell(first)
	for range 3 {
		r.Tell(open)
	}
	close(first)
	for want := 3; want >= 0; want-- {
		if n := <-seen; n != want {
			t.Errorf("%d messages are behind, want %d", n, want)
		}
	}
	if err := r.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}
