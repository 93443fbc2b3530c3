package artefacts_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

// F6, F8: a Free or listener that closes its own cache would wait for itself: it is told
// so, and the cache closes.
func TestClosedByItsOwnFree(t *testing.T) {
	for _, listener := range []bool{false, true} {
		var c *artefacts.Cache
		answers := make(chan error, 3)
		closes := func() { answers <- c.Close(background) }
		cfg, free := artefacts.Config{Entries: limit.Of(1)}, closes
		if listener {
			cfg.Evicted = func(string, artefacts.Cause) { closes() }
			free = nil
		}
		var err error
		if c, err = artefacts.Open(cfg); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b"} {
			l, _, err := c.Get(background, artefacts.Request{Key: key, Create: func(context.Context) (artefacts.Built, error) {
				b := artefacts.Built{}
				if key == "a" {
					b.Free = free
				}
				return b, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			l.End()
		}
		want(t, "close", errors.Is(<-answers, fault.ErrCycle), true)
		want(t, "close by another", c.Close(background), nil)
	}
}
