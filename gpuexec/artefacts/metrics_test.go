package artefacts_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// Creators at work are counted with the age of the oldest, and how long each ran is
// in a histogram.
func TestFlightsAndRuns(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		r := open(t, artefacts.Config{})
		defer r.close()
		see := func(what string, flights int64, oldest time.Duration) {
			t.Helper()
			s := r.Stats()
			want(t, what, s.Flights, flights)
			want(t, what+": oldest", s.OldestFlight, oldest)
		}
		see("idle", 0, 0)
		first, second := make(chan struct{}), make(chan struct{})
		a := r.calls(context.Background(), 2, "a", maker{wait: first})
		time.Sleep(time.Second)
		b := r.calls(context.Background(), 1, "b", maker{wait: second, fail: "x"})
		see("two keys", 2, time.Second)
		time.Sleep(time.Second)
		close(first)
		all(a, 2)
		see("the younger", 1, time.Second)
		close(second)
		<-b
		see("none", 0, 0)
		runs := r.Stats().Runs
		want(t, "2 s", runs[21], 1) // 2^20 us is 1.05 s
		want(t, "1 s", runs[20], 1)
		r.fill("c")
		want(t, "at once", r.Stats().Runs[0], 1)
		r.get("c", maker{})
		want(t, "a hit", r.Stats().Runs[0], 1)
	})
}

// F10, F3: the runs of creators are counted whichever way they end.
func TestRunsOfEachEnd(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		r := open(t, artefacts.Config{})
		defer r.close()
		for _, m := range []maker{{}, {fail: "x"}, {panics: "x"}, {goexit: true}} {
			before := r.Stats().Runs[0]
			r.get("k", m)
			want(t, fmt.Sprintf("runs with %+v", m), r.Stats().Runs[0]-before, 1)
			r.setEntries(0) // the next one runs again
			r.setEntries(1)
		}
	})
}
