package constants

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// F3, T3: a listener that ends the goroutine of an owner has it give up: the ownership goes to
// the one that has waited longest and can compute.
func TestListenerThatEndsTheOwner(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		bg := context.Background()
		var promises atomic.Int32
		goOn := make(chan struct{})
		_, e := open(t, Config{Listen: func(told Event) {
			if told.Owner && promises.Add(1) == 1 {
				<-goOn
				runtime.Goexit()
			}
		}})
		compute := func(context.Context) (Value, error) { return Value{Any: "v", Bytes: 8}, nil }
		go e.GetOrAdd(bg, key("k"), 8, Options{})
		synctest.Wait()
		answered := make(chan error, 1)
		go func() {
			l, _, err := e.Get(bg, key("k"), 8, Options{}, compute)
			if err == nil {
				l.End()
			}
			answered <- err
		}()
		synctest.Wait()
		close(goOn)
		if err := <-answered; err != nil {
			t.Error(err)
		}
	})
}

// F3, C5: a listener that ends its goroutine has the caller keep no lease.
func TestListenerKeepsNoLease(t *testing.T) {
	bg := context.Background()
	compute := func(freed *atomic.Int32) func(context.Context) (Value, error) {
		return func(context.Context) (Value, error) {
			return Value{Any: "v", Bytes: 8, Free: func() { freed.Add(1) }}, nil
		}
	}
	for what, ask := range map[string]func(e *Engine, freed *atomic.Int32){
		"Lookup":        func(e *Engine, _ *atomic.Int32) { e.Lookup(key("k")) },
		"GetOrAdd":      func(e *Engine, _ *atomic.Int32) { _, _ = e.GetOrAdd(bg, key("k"), 8, Options{}) },
		"Get, a hit":    func(e *Engine, freed *atomic.Int32) { _, _, _ = e.Get(bg, key("k"), 8, Options{}, compute(freed)) },
		"Get, an owner": func(e *Engine, freed *atomic.Int32) { _, _, _ = e.Get(bg, key("other"), 8, Options{}, compute(freed)) },
		"Get, not to be had": func(e *Engine, freed *atomic.Int32) {
			_, _, _ = e.Get(bg, key("large"), mib, Options{}, compute(freed))
		},
	} {
		var armed atomic.Bool
		c, e := open(t, Config{Capacity: [2]limit.Limit{limit.Of(1)}, Listen: func(told Event) {
			if armed.Load() && told.Removal == "" {
				runtime.Goexit()
			}
		}})
		var freed atomic.Int32
		put(t, e, "k", 8, Options{}, func() { freed.Add(1) })
		armed.Store(true)
		left := make(chan struct{})
		go func() {
			defer close(left)
			ask(e, &freed)
		}()
		<-left
		if err := c.Close(bg); err != nil {
			t.Fatal(err)
		}
		want := int32(1)
		if what == "Get, an owner" || what == "Get, not to be had" {
			want++
		}
		if n := freed.Load(); n != want {
			t.Errorf("%s: %d tensors of %d are freed", what, n, want)
		}
	}
}
