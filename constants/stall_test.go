package constants

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// stallMsg is a turn that lasts until the channel is closed.
type stallMsg struct{ began, gate chan struct{} }

func (stallMsg) isMessage() {}

func (m stallMsg) handle(*shell) {
	close(m.began)
	<-m.gate
}

// stall has a turn of the engine last until the result is called.
func stall(e *Engine) (goOn func()) {
	m := stallMsg{make(chan struct{}), make(chan struct{})}
	e.tell(m)
	<-m.began
	return func() { close(m.gate) }
}

// F6: Config.Hash is user code: it runs on callers, and in no turn.
func TestHashOutsideOfTurns(t *testing.T) {
	var placed atomic.Int64
	c, e := open(t, Config{Policy: [2]Policy{Cost}, Capacity: [2]limit.Limit{limit.Of(1)}, Hash: func(k string) uint64 {
		if placed.Add(1); actorstest.InTurn() {
			t.Errorf("%q is placed in a turn", k)
		}
		return uint64(len(k))
	}})
	bg := t.Context()
	for i := range 8 {
		o := add(t, e, strconv.Itoa(i), mib/4, Options{Cost: 1 << i})
		if i%2 == 0 {
			l, err := o.Fulfil(i, mib/4, nil)
			if err != nil {
				t.Fatal(err)
			}
			l.End()
			if _, err := e.Remove(bg, key(strconv.Itoa(i/4))); err != nil {
				t.Fatal(err)
			}
		} else {
			o.Abandon()
		}
		e.Lookup(key(strconv.Itoa(i)))
	}
	if err := c.SetCapacity(bg, CPU, limit.Of(0)); err != nil {
		t.Fatal(err)
	}
	if placed.Load() == 0 {
		t.Error("nothing was placed")
	}
}
