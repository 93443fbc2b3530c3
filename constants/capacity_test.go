package constants

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// slowMsg is a turn that takes long.
type slowMsg struct{ takes time.Duration }

func (slowMsg) isMessage()      {}
func (m slowMsg) handle(*shell) { time.Sleep(m.takes) }

// F6: a change of capacity asks all engines at once: it takes as long as the slowest, for
// which neither the others wait nor a change for another kind.
func TestCapacityOfASlowEngine(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		ctx := context.Background()
		c, err := Open(Config{})
		if err != nil {
			t.Fatal(err)
		}
		var engines []*Engine
		for i := range 32 {
			e, err := c.Engine(CPU, 0, fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}
			l, _, err := e.Get(ctx, Key{ID: Versioned("c", 0)}, 1, Options{}, func(context.Context) (Value, error) { return Value{Bytes: 1}, nil })
			if err != nil {
				t.Fatal(err)
			}
			l.End()
			engines = append(engines, e)
		}
		const slow, quick = time.Minute, 30
		for _, e := range engines[quick:] {
			e.tell(slowMsg{slow})
		}
		began := time.Now()
		took := make(chan time.Duration, 1)
		go func() {
			if err := c.SetCapacity(ctx, CPU, limit.Of(1)); err != nil {
				t.Error(err)
			}
			took <- time.Since(began)
		}()
		synctest.Wait()
		for _, e := range engines[:quick] {
			if e.Len() != 0 {
				t.Errorf("%v waits for the turn of another engine", e)
			}
		}
		if err := c.SetCapacity(ctx, GPU, limit.Of(1)); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("a change for another kind took %v", d)
		}
		if d := <-took; d != slow {
			t.Errorf("the change took %v, and the slowest engine %v", d, slow)
		}
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}
