package constants

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// T7: a panic in a Free goes no further, whichever call was the last use:
// of a tensor that is shared, of one that is not, and of one that a reference held.
func TestPanicOfAFree(t *testing.T) {
	for what, mib := range map[string]uint64{"shared": 1, "alone": 0} {
		_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: MiB(mib)}})
		freed := 0
		l, cached, err := e.Get(context.Background(), key("k"), 8, Options{}, func(context.Context) (Value, error) {
			return Value{Any: 1, Bytes: 8, Free: func() { freed++; panic("made to panic") }}, nil
		})
		if err != nil || cached != (mib > 0) {
			t.Fatalf("%s: cached %v, %v", what, cached, err)
		}
		held, ok := l.Hold(nil)
		if err := e.Close(context.Background()); err != nil { // it has let go
			t.Fatal(err)
		}
		l.End()
		if ok {
			held.Drop()
		}
		if freed != 1 {
			t.Errorf("%s: freed %d times", what, freed)
		}
	}
}

// T7: tensors are told of in the order of their removals, but a callback that does not
// end keeps no other waiting, nor does a Free.
func TestStuckCallbackIsPassed(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		c, e := open(t, Config{})
		var mu sync.Mutex
		var told, freed []string
		note := func(list *[]string, id string) {
			mu.Lock()
			defer mu.Unlock()
			*list = append(*list, id)
		}
		gate := make(chan struct{})
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			put(t, e, id, 8, Options{Removed: func(Removal) {
				if id == "a" {
					<-gate
				}
				note(&told, id)
			}}, func() {
				if id == "b" {
					<-gate
				}
				note(&freed, id)
			})
			if _, err := e.Remove(t.Context(), key(id)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		mu.Lock()
		if want := []string{"b", "c", "d", "e"}; !slices.Equal(told, want) || !slices.Equal(freed, want[1:]) {
			t.Errorf("told %q, freed %q", told, freed)
		}
		mu.Unlock()
		close(gate)
		if err := c.Close(t.Context()); err != nil || len(told) != 5 || len(freed) != 5 {
			t.Errorf("%v, told %q, freed %q", err, told, freed)
		}
	})
}
