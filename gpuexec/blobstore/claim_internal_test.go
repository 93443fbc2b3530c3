package blobstore

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/flight"
)

// F5, P8: who begins to wait for a claim while it is handed on waits for who has it then, and
// not for who had it when the wait began.
func TestWaitBeginsWhileTheClaimIsHandedOn(t *testing.T) {
	ctx := context.Background()
	for range 10 {
		first, next, waits := flight.New[int](ctx, t, "first"), flight.New[int](ctx, t, "next"), flight.New[int](ctx, t, "waits")
		at := place{t.Name(), "k"}
		held(at, flight.CreatorOf(first.Context()))
		w := &wait{place: at, asker: flight.AskerOf(waits.Context()), circle: func() {}}
		began := make(chan bool)
		w.mu.Lock() // begin stops where it follows
		go func() { began <- w.begin() }()
		for listed := false; !listed; runtime.Gosched() {
			builders.Lock()
			_, listed = builders.at[at].waits[w]
			builders.Unlock()
		}
		time.Sleep(2 * time.Millisecond)
		holds(at, func(to *turnout) bool { to.holder = flight.CreatorOf(next.Context()); return true })
		w.mu.Unlock()
		if !<-began || first.HasEdges() || !next.HasEdges() {
			t.Fatalf("edges to the old holder: %v, to the new one: %v", first.HasEdges(), next.HasEdges())
		}
		w.end()
		released(at, flight.CreatorOf(next.Context()))
		if next.HasEdges() || Builders() != 0 {
			t.Fatal("an edge or a place is left")
		}
	}
}
