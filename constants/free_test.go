package constants

import (
	"context"
	"slices"
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

// T7: a callback that takes long keeps the later ones waiting, and a Free that does not
// end keeps nobody.
func TestCallbacksComeInOrder(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		c, e := open(t, Config{})
		var told []string
		gate := make(chan struct{})
		for _, id := range []string{"a", "b", "c"} {
			put(t, e, id, 8, Options{Removed: func(Removal) {
				told = append(told, "begins "+id)
				time.Sleep(time.Second)
				told = append(told, "ends "+id)
			}}, func() { <-gate })
			if _, err := e.Remove(t.Context(), key(id)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		e.shell.gone.Fence(func() { close(gate) })
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []string{"begins a", "ends a", "begins b", "ends b", "begins c", "ends c"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}
