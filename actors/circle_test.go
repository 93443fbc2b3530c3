package actors_test

import (
	"context"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// Hazard: the library ends a drain after ten seconds. Here only the context of
// the caller does.
func TestDrainTakesItsTime(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		c := &counter{}
		c.ref = actors.Spawn(actors.Config{}, c.handle)
		release := c.hold(t)
		c.ref.Tell(request{add: 1})
		time.AfterFunc(time.Hour, release)
		began := time.Now()
		ctx, cancel := context.WithTimeout(background, time.Minute)
		defer cancel()
		if err := c.ref.Stop(ctx); err != context.DeadlineExceeded || time.Since(began) != time.Minute {
			t.Errorf("Stop gave up after %v: %v", time.Since(began), err)
		}
		if err := c.ref.Stop(background); err != nil || time.Since(began) != time.Hour {
			t.Errorf("Stop ended after %v: %v", time.Since(began), err)
		}
		if c.total != 1 {
			t.Errorf("total %d: what was sent before Stop was not handled", c.total)
		}
	})
}

// Hazard: actors that ask each other wait for ever. Here a turn hands the reply
// on instead of waiting, also to an actor that has asked, also to itself.
func TestCircleOfAsksIsAnswered(t *testing.T) {
	type hop struct {
		left  int
		reply actors.Reply[int]
	}
	var a, b, own *actors.Ref[hop]
	forward := func(to **actors.Ref[hop]) func(hop) {
		return func(h hop) {
			if h.left == 0 {
				h.reply.Send(1)
				return
			}
			(*to).Tell(hop{h.left - 1, h.reply})
		}
	}
	// One place each: a turn that sent through admission would be refused.
	a = actors.Spawn(actors.Config{Admission: 1}, forward(&b))
	b = actors.Spawn(actors.Config{Admission: 1}, forward(&a))
	own = actors.Spawn(actors.Config{Admission: 1}, forward(&own))
	for _, ref := range []*actors.Ref[hop]{a, b, own} {
		ctx, cancel := context.WithTimeout(background, 20*time.Second)
		if n, err := actors.Ask(ctx, ref, func(r actors.Reply[int]) hop { return hop{10_000, r} }); n != 1 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
		cancel()
	}
	for _, ref := range []*actors.Ref[hop]{a, b, own} {
		if err := ref.Stop(background); err != nil {
			t.Error(err)
		}
	}
}

// batch is what the library takes apart where it sees it.
type batch struct {
	items []any
	done  chan int
}

func (b batch) GetMessages() []any { return b.items }

// Hazard: the library delivers a batch whole and item by item. Here a message is
// one message, whatever it looks like.
func TestBatchIsOneMessage(t *testing.T) {
	seen := 0
	ref := actors.Spawn(actors.Config{}, func(b batch) {
		seen++
		if b.done != nil {
			b.done <- seen
		}
	})
	ref.Tell(batch{items: []any{batch{}, batch{}}})
	done := make(chan int, 1)
	ref.Tell(batch{items: []any{batch{}}, done: done})
	if n := <-done; n != 2 {
		t.Errorf("2 messages were sent, %d handled", n)
	}
	if err := ref.Stop(background); err != nil {
		t.Error(err)
	}
}
