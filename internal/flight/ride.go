package flight

import (
	"context"
	"errors"

	"github.com/kiln-cache/kiln/fault"
)

// Caller is one call on its way through a room, for Ride.
type Caller[V any] interface {
	taker[V]

	// Ask has the room look again and, where it finds nothing, take the caller
	// aboard a flight. A room that cannot answer a caller that has left meanwhile
	// takes it off the desk itself.
	Ask(ctx context.Context) (Ticket[V], error)

	// Leave has the room take the caller off its desk (Desk.Leave): it left before
	// the end. The flight knows already. It should not wait for a turn.
	Leave(t Ticket[V])
}

type taker[V any] interface {
	// Take is called with the value before the flight lets go of it: this is the
	// moment to pin it, and nothing more.
	Take(v V)
}

// Ticket is a room's answer to a caller.
type Ticket[V any] struct {
	Flight *Flight[V]      // which the caller is aboard of; nil: there is nothing to wait for
	Late   bool            // as Desk.Join says
	Others bool            // it loads a blob that another caller brought
	Call   <-chan struct{} // closed when the room has something for this caller alone: it gets off and asks again
}

// Ride brings a caller to its value: to one that is there, or to the end of the
// flight that the room has taken it aboard. It asks again where the error is not
// the caller's: the creator was cancelled before the caller came, the flight was to
// load another's blob and that was refused, or the room called it. The ticket is
// that of the last asking. The error is the room's, the creator's, the context's, or
// ErrCycle.
func Ride[V any](ctx context.Context, c Caller[V]) (Ticket[V], error) {
	for {
		if err := ctx.Err(); err != nil {
			return Ticket[V]{}, err
		}
		t, err := c.Ask(ctx)
		if err != nil || t.Flight == nil {
			return t, err
		}
		ended, late, err := board(ctx, t, c)
		if !ended {
			c.Leave(t)
			return t, err
		}
		if err == nil || !(late || t.Late || err == errCalled || t.Others && refused(err)) {
			return t, err
		}
	}
}

// errCalled is why a caller that the room called has got off.
var errCalled = errors.New("flight: called")

// board rides the flight of a ticket. If the caller's context panics on the way, the
// room learns that the caller has left.
func board[V any](ctx context.Context, t Ticket[V], c Caller[V]) (ended, late bool, err error) {
	aboard := true
	defer func() {
		if aboard {
			c.Leave(t)
		}
	}()
	ended, late, err = t.Flight.ride(ctx, c, t.Call)
	aboard = false
	return ended, late, err
}

// refused reports whether an error may be that of a blob alone.
func refused(err error) bool {
	return errors.Is(err, fault.ErrRefused) || errors.Is(err, fault.ErrUnsupported)
}
