package constants

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/touched"
)

// F8: a close ends what very many owners compute in several turns, and the owner of each
// is told of it.
func TestCloseEndsManyInTurns(t *testing.T) {
	const many = 3 * touched.Most
	c, e := open(t, Config{})
	owners := make([]*Promise, many)
	for i := range owners {
		owners[i] = add(t, e, strconv.Itoa(i), 1, Options{})
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, o := range owners {
		if err := context.Cause(o.Context()); !errors.Is(err, fault.ErrClosed) {
			t.Fatalf("owner %d is told %v", i, err)
		}
		o.Abandon()
	}
	if n := e.shell.state.touched.Most(); n < touched.Most/2 || n > touched.Most {
		t.Errorf("a turn has ended %d of %d", n, many)
	}
}
