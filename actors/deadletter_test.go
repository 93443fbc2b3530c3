package actors

import (
	"context"
	"testing"

	"go.uber.org/goleak"
)

// Hazard: a message that the library finds undeliverable starts a timer
// goroutine for its log. Senders cannot be made to lose that race on demand, so
// this one goes round Tell's own look.
func TestDeadLettersStartNothing(t *testing.T) {
	r := Spawn(Config{}, func(int) {})
	if err := r.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	for range 100 {
		system().Root.Send(r.pid, &envelope[int]{})
	}
	goleak.VerifyNone(t, before)
}
