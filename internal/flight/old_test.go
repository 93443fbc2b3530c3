package flight_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/internal/flight"
)

func ignore(string) {}

// F4: leaving alone, and the last one's leaving.
func TestDesertion(t *testing.T) {
	f := begin(background, "k")
	ctx, cancel := context.WithCancel(background)
	cancel()
	f.Join()
	f.Join()
	if err := f.Wait(ctx, ignore); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
	if n := f.Waiters(); n != 1 {
		t.Errorf("%d waiters, want 1", n)
	}
	if f.Deserted() || f.Context().Err() != nil {
		t.Error("one waiter is left")
	}
	f.Leave()
	if !f.Deserted() || f.Context().Err() == nil {
		t.Error("nobody is left: the creator's context must have ended")
	}
	if f.Join() {
		t.Error("a deserted flight took a waiter")
	}
	ended := make(chan error, 1)
	go func() { ended <- f.WaitEnd(background) }()
	released := 0
	f.Finish("v", nil, func(string) { released++ })
	if err := <-ended; err != nil || released != 1 {
		t.Errorf("wait for the end: %v; released %d times", err, released)
	}
}

// F4: for whom a flight is made, at any moment from its start.
func TestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		top := begin(background, "top")
		want := func(what string, part *flight.Flight[string], only bool, awaits int) {
			t.Helper()
			if part.Only(top) != only || len(top.Awaits("room")) != awaits || top.Awaits("elsewhere") != nil {
				t.Errorf("%s: only %v, waits for %v", what, part.Only(top), top.Awaits("room"))
			}
		}
		part := begin(top.Context(), "part")
		part.Start()
		want("started", part, true, 1)
		ctx, cancel := context.WithCancel(top.Context())
		left := make(chan error, 1) // one answer
		go func() { left <- part.Wait(ctx, ignore) }()
		synctest.Wait()
		want("waiting", part, true, 1)
		part.Join()
		want("joined by another", part, false, 1)
		cancel()
		<-left
		want("left", part, false, 0)
		part.Leave()

		never := begin(top.Context(), "never")
		never.Start()
		never.Leave()
		want("left without waiting", never, false, 0)
		ended := begin(top.Context(), "ended")
		ended.Start()
		ended.Finish("", nil, nil)
		if err := ended.Wait(top.Context(), ignore); err != nil {
			t.Error(err)
		}
		want("ended before the wait", ended, false, 0)
	})
}
