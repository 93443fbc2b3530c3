package artefacts_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// Q1, F6: a floor is admitted, refused and given back while a turn of the cache lasts, and
// holds for what is asked for afterwards.
func TestFloorsWaitForNoTurn(t *testing.T) {
	var hashed atomic.Int64
	inTurn, turn := make(chan struct{}), make(chan struct{})
	cfg := entries(2)
	cfg.Bytes = limit.Of(100)
	cfg.Hash = func(key string) uint64 {
		if key == "long" && hashed.Add(1) == 2 { // the caller was first
			close(inTurn)
			<-turn
		}
		return uint64(len(key))
	}
	c := open(t, cfg)
	done := make(chan string, 1) // one answer
	go func() { done <- c.get("long", maker{}) }()
	<-inTurn
	if err := errors.Join(c.AddFloor("a", 90), c.AddFloor("a", -80), c.AddFloor("b", 90)); err != nil {
		t.Error(err)
	}
	if err := c.AddFloor("c", 1); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("a floor too much: %v", err)
	}
	close(turn)
	want(t, "long", <-done, "long by=miss")
	want(t, "of a", c.get("of a", maker{owner: "a", bytes: 10}), "of a by=miss")
	c.fill("x", "y", "z")
	want(t, "what a floor holds", c.has("of a"), 1)
	if err := c.SetCapacity(limit.Limit{}, limit.Of(99)); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("less than the floors: %v", err)
	}
	c.close()
	if err := c.AddFloor("a", 1); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("a floor of a closed cache: %v", err)
	}
}
