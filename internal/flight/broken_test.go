package flight_test

import (
	"context"
	"testing"

	"github.com/kiln-cache/kiln/internal/flight"
)

// boarding is a caller that its room has taken aboard a flight.
type boarding struct{ of *flight.Flight[string] }

func (b boarding) Ask(context.Context) (flight.Ticket[string], error) {
	return flight.Ticket[string]{Flight: b.of}, nil
}
func (boarding) Take(string)                 {}
func (boarding) Leave(flight.Ticket[string]) {}

// F5: a creator whose context panics while it waits does not wait any more: whoever asks for
// what it makes is in no circle.
func TestBrokenContextLeavesNoEdge(t *testing.T) {
	for _, began := range []bool{true, false} {
		outer := flight.New[string](background, t, "outer")
		inner := flight.New[string](outer.Context(), t, "inner")
		if began {
			inner.Start()
		} else {
			inner.Board()
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = flight.Ride(broken{outer.Context()}, boarding{inner})
			t.Error("the context's panic was lost")
		}()
		if inner.HasEdges() || inner.Aboard() != 0 {
			t.Errorf("began %v: edges %v, %d aboard", began, inner.HasEdges(), inner.Aboard())
		}
	}
}
