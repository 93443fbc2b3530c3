package constants_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/touched"
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
