package gpuexec

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/internal/flight"
)

// waitsFor rides the flight of another compile.
type waitsFor struct{ on *compiling }

func (w waitsFor) Ask(context.Context) (flight.Ticket[*Kernel], error) {
	w.on.Board()
	return flight.Ticket[*Kernel]{Flight: &w.on.Flight}, nil
}
func (waitsFor) Take(*Kernel)                 {}
func (waitsFor) Leave(flight.Ticket[*Kernel]) {}

// F5: a compile that is let through once, since all that run wait for it, is not let
// through again while it has not gone on: on a busy machine that takes a while.
func TestLetThroughOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		running, waiting := new(compiling), &compiling{through: make(chan struct{})}
		running.Begin(t.Context(), s, "running")
		waiting.Begin(t.Context(), s, "waiting")
		s.put(s.mu.running, running)
		s.put(s.mu.waiting, waiting)
		ctx, leave := context.WithCancel(running.Context())
		go func() { _, _ = flight.Ride[*Kernel](ctx, waitsFor{waiting}) }()
		synctest.Wait()
		for range 2 {
			time.Sleep(glance)
			s.look(time.Now())
		}
		select {
		case <-waiting.through:
		default:
			t.Error("it is not let through")
		}
		leave()
		synctest.Wait()
	})
}
