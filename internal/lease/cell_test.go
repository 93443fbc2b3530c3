package lease_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/internal/lease"
)

// C5: freed once, after the last pin, and never pinned again.
func TestCell(t *testing.T) {
	freed := 0
	var c lease.Cell
	c.Init(func() { freed++ })
	if c.Leased() || !c.Pin() || !c.Leased() || c.Pins() != 2 {
		t.Fatalf("after one pin: %d pins", c.Pins())
	}
	c.Unpin()
	if freed != 0 || c.Leased() {
		t.Fatalf("freed %d times with a pin left", freed)
	}
	c.Unpin()
	if freed != 1 || c.Pin() {
		t.Fatalf("freed %d times after the last pin; it must not be pinned again", freed)
	}
}

func TestCellWithoutFree(t *testing.T) {
	var c lease.Cell
	c.Init(nil)
	if !c.Drop() {
		t.Fatal("the only pin was not the last")
	}
	c.Free()
}

func TestUnpinnedTooOften(t *testing.T) {
	var c lease.Cell
	c.Init(nil)
	c.Unpin()
	defer func() {
		if recover() == nil {
			t.Error("a pin that was not there was dropped in silence")
		}
	}()
	c.Unpin()
}

// A zero Cell holds nothing.
func TestZeroCell(t *testing.T) {
	var c lease.Cell
	if c.Pin() || c.Leased() {
		t.Error("a cell that was not begun was pinned")
	}
}

// C5: exactly once, also when readers pin while the cache lets go.
func TestCellHammer(t *testing.T) {
	const readers, rounds = 8, 300
	for range rounds {
		var c lease.Cell
		var freed, used atomic.Int64
		c.Init(func() { freed.Add(1) })
		var start, done sync.WaitGroup
		start.Add(1)
		for range readers {
			done.Go(func() {
				start.Wait()
				for range 10 {
					if !c.Pin() {
						return
					}
					if freed.Load() != 0 {
						used.Add(1)
					}
					c.Unpin()
				}
			})
		}
		done.Go(func() { start.Wait(); c.Unpin() })
		start.Done()
		done.Wait()
		if freed.Load() != 1 || used.Load() != 0 {
			t.Fatalf("freed %d times, used %d times after that", freed.Load(), used.Load())
		}
	}
}
