package constants_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/limit"
)

// Q5, F6: what the memory limit takes of many tensors is the cheapest that nobody uses,
// in turns that touch a bounded number of them.
func TestShrinkInShortTurns(t *testing.T) {
	const tensors, used = 3 * touched.Most, 10
	watch := pressure.New(pressure.Config{Limit: 1 << 40})
	c, err := constants.Open(hidden.With(constants.Config{}, watch))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	e, err := c.Engine(constants.CPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range tensors {
		cost := time.Duration((i*7919)%tensors) * time.Millisecond
		l, _, err := e.Get(t.Context(), constants.Key{ID: constants.Versioned(strconv.Itoa(i), 0)}, 2, constants.Options{Cost: cost}, func(context.Context) (constants.Value, error) {
			return constants.Value{Bytes: 2}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if cost >= used*time.Millisecond { // the cheapest stay in use
			l.End()
		} else {
			defer l.End()
		}
	}
	room := watch.Rooms()[0]
	if n := len(room.Offer(t.Context())); n != tensors-used {
		t.Errorf("%d tensors offered, want %d", n, tensors-used)
	}
	if freed := room.Shrink(t.Context(), tensors, pressure.Last); freed.Bytes != tensors {
		t.Errorf("%d bytes freed, want %d", freed.Bytes, tensors)
	}
	for i := range tensors {
		l, there := e.Lookup(constants.Key{ID: constants.Versioned(strconv.Itoa(i), 0)})
		if there {
			l.End()
		}
		if place := (i * 7919) % tensors; there != (place < used || place >= used+tensors/2) {
			t.Fatalf("the tensor of the %dth cost is there: %v", place, there)
		}
	}
	if n := c.Stats().Touched; n > touched.Most || n < 2 {
		t.Errorf("a turn touched %d tensors, want 2 to %d", n, touched.Most)
	}
	if freed := room.Shrink(t.Context(), 4*tensors, pressure.Last); freed.Bytes != tensors-2*used {
		t.Errorf("%d bytes freed of what is left, want %d", freed.Bytes, tensors-2*used)
	}
}

// Q5: the memory limit counts a tensor until it is freed: also while it is leased outside of
// the capacity, and one that was never in the cache.
func TestMemoryOfWhatIsLeased(t *testing.T) {
	const bytes = 1 << 20
	watch := pressure.New(pressure.Config{Limit: 1 << 40})
	c, err := constants.Open(hidden.With(constants.Config{Policy: [2]constants.Policy{constants.CPU: constants.Cost}, Capacity: [2]limit.Limit{constants.CPU: limit.Of(1)}}, watch))
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.Engine(constants.CPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	get := func(id string, cost time.Duration) *constants.Lease {
		t.Helper()
		l, _, err := e.Get(t.Context(), constants.Key{ID: id}, bytes, constants.Options{Cost: cost}, func(context.Context) (constants.Value, error) {
			return constants.Value{Bytes: bytes}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	counts := func(what string, tensors int64) {
		t.Helper()
		for late := time.Now().Add(time.Minute); watch.Stats().Bytes != tensors*bytes; runtime.Gosched() { // what is freed is counted in a moment
			if time.Now().After(late) {
				t.Fatalf("%s: %d bytes count, want %d tensors of %d", what, watch.Stats().Bytes, tensors, bytes)
			}
		}
	}
	first := get("first", time.Second)
	counts("one that is resident", 1)
	second := get("second", time.Minute)
	if first.Resident() || !second.Resident() {
		t.Fatal("the first is not displaced by the second")
	}
	counts("one that was displaced while it was leased", 2)
	third := get("third", time.Millisecond) // it is worth too little
	counts("one that is not cached", 3)
	if err := c.SetCapacity(t.Context(), constants.CPU, limit.Of(0)); err != nil {
		t.Fatal(err)
	}
	counts("what was flushed while it was leased", 3)
	second.End()
	second.End()
	counts("one that is given back", 2)
	third.End()
	first.End()
	counts("nothing is left", 0)
	if err := c.SetCapacity(t.Context(), constants.CPU, limit.Unlimited); err != nil {
		t.Fatal(err)
	}
	get("fourth", 0).End()
	held := get("fifth", 0)
	if f := watch.Rooms()[0].Shrink(t.Context(), 1<<40, pressure.Last); f.Bytes != bytes {
		t.Errorf("%d bytes went, want %d", f.Bytes, bytes)
	}
	counts("what a shrink leaves", 1)
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts("one that is leased beyond the Close", 1)
	held.End()
	counts("nothing is left", 0)
}
