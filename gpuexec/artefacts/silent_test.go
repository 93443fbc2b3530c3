package artefacts_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// silent is a context that does not say why it has ended.
type silent struct {
	context.Context
	ended chan struct{}
}

func (s silent) Done() <-chan struct{} { return s.ended }
func (silent) Err() error              { return nil }

// F8, P18: neither Settle nor Close says that it is done where it is not, whatever its
// context says.
func TestSettleWithASilentContext(t *testing.T) {
	bubble(t, stored(newShelf(t), 4), func(t *testing.T, c room) {
		goOn := make(chan struct{})
		r := c.request(c.Cache, "k", maker{value: "v"})
		create := r.Create
		r.Create = func(ctx context.Context) (artefacts.Built, error) {
			b, err := create(ctx)
			b.Blob = func(context.Context) ([]byte, error) { <-goOn; return []byte("v"), nil }
			return b, err
		}
		l, _, err := c.Get(background, r)
		if err != nil {
			t.Fatal(err)
		}
		l.End()
		for _, wait := range []func(context.Context) error{c.Settle, c.Close} {
			ctx := silent{background, make(chan struct{})}
			failed := make(chan error, 1)
			go func() { failed <- wait(ctx) }()
			synctest.Wait()
			close(ctx.ended)
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Errorf("beside a store that is under way: %v", err)
			}
		}
		close(goOn)
		c.close()
	})
}
