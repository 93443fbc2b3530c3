package artefacts_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/limit"
)

// full has that many artefacts of one byte each, of which an owner has used all.
func full(t *testing.T, c room, entries int, owner string) {
	t.Helper()
	for i := range entries {
		c.get(strconv.Itoa(i), maker{bytes: 1, owner: owner})
	}
}

// C1: what goes for the bytes of one large artefact goes in several turns, and the
// artefact is kept in the end.
func TestLargeArtefactInTurns(t *testing.T) {
	const many = 3 * touched.Most
	bubble(t, artefacts.Config{Entries: limit.Unlimited, Bytes: limit.Of(many)}, func(t *testing.T, c room) {
		full(t, c, many, "")
		c.get("large", maker{bytes: many})
		synctest.Wait() // for the end of its turn
		if n := c.Stats().Touched; n > touched.Most || !c.Has("large") || c.Len() != 1 || c.Bytes() != many {
			t.Errorf("one turn has touched %d things, and %d artefacts of %d bytes are there", n, c.Len(), c.Bytes())
		}
	})
}

// F6, C12: the uses that are heeded before a message are counted, and are bounded however
// many there were.
func TestUsesAreCounted(t *testing.T) {
	bubble(t, artefacts.Config{}, func(t *testing.T, c room) {
		full(t, c, 1, "")
		goOn := artefacts.Stall(c.Cache)
		for range 20 * touched.Most {
			if _, ok := c.Lookup("0"); !ok {
				t.Fatal("it is not there")
			}
		}
		goOn()
		synctest.Wait()
		if n := c.Stats().Touched; n < touched.Most/2 || n > touched.Most {
			t.Errorf("the uses before a message count as %d things, want %d to %d", n, touched.Most/2, touched.Most)
		}
	})
}

// C10: what a tenant has come to use goes over to it in several turns, and its floor
// holds all of it.
func TestTenantUsesAllInTurns(t *testing.T) {
	const many = 3 * touched.Most
	bubble(t, artefacts.Config{Entries: limit.Of(many), Bytes: limit.Of(1 << 40)}, func(t *testing.T, c room) {
		full(t, c, many, "")
		if err := c.AddFloor("t", many); err != nil {
			t.Fatal(err)
		}
		full(t, c, many, "t")
		c.get("new", maker{bytes: 1})
		synctest.Wait()
		if n := c.Stats().Touched; n > touched.Most || c.Has("new") || c.Len() != many {
			t.Errorf("one turn has touched %d things, and %d artefacts are there", n, c.Len())
		}
	})
}

// F6, C10, C4, C13: nor does all that a tenant has come to use go over to it in the turn of one that needs a
// place anew: an evicted artefact that is leased still, and one that lost its place while it was made.
func TestTenantUsesAllBeforeAnotherComesBack(t *testing.T) {
	const many = 3 * touched.Most
	for _, flies := range []bool{false, true} {
		bubble(t, artefacts.Config{Entries: limit.Of(many), Bytes: limit.Of(1 << 40)}, func(t *testing.T, c room) {
			goOn := make(chan struct{})
			first := func() *artefacts.Lease {
				l, _, err := c.Get(context.Background(), artefacts.Request{Key: "first", Create: func(context.Context) (artefacts.Built, error) {
					if flies {
						<-goOn
					}
					return artefacts.Built{Value: 1, Bytes: 1}, nil
				}})
				if err != nil {
					t.Error(err)
				}
				return l
			}
			came := make(chan *artefacts.Lease, 1)
			go func() { came <- first() }()
			synctest.Wait()
			full(t, c, many, "t")
			if err := c.AddFloor("t", many/2); err != nil {
				t.Fatal(err)
			}
			close(goOn)
			l := <-came
			first().End()
			synctest.Wait()
			if n := c.Stats().Touched; n > touched.Most || !c.Has("first") || c.Has("0") || c.Len() != many {
				t.Errorf("it flies %v: one turn has touched %d things; it is there: %v, the oldest: %v, of %d", flies, n, c.Has("first"), c.Has("0"), c.Len())
			}
			l.End()
		})
	}
}

// C1: where the floors of others leave too little for an artefact nothing goes for it.
func TestNothingGoesForWhatFloorsLeaveNoRoomFor(t *testing.T) {
	bubble(t, artefacts.Config{Entries: limit.Unlimited, Bytes: limit.Of(100)}, func(t *testing.T, c room) {
		if err := c.AddFloor("t", 60); err != nil {
			t.Fatal(err)
		}
		c.get("floor", maker{bytes: 60, owner: "t"})
		full(t, c, 40, "")
		for _, large := range []struct {
			bytes int64
			owner string
			len   int
			kept  bool
		}{{41, "", 41, false}, {40, "", 2, true}, {100, "t", 1, true}} {
			key := fmt.Sprint(large)
			c.get(key, maker{bytes: large.bytes, owner: large.owner})
			if c.Len() != large.len || c.Has(key) != large.kept {
				t.Errorf("%s: %d artefacts are there, kept %v", key, c.Len(), c.Has(key))
			}
		}
	})
}

// F8: a close ends very many flights in several turns, and every caller is told.
func TestCloseEndsFlightsInTurns(t *testing.T) {
	const many = touched.Most + 1
	bubble(t, artefacts.Config{Entries: limit.Unlimited}, func(t *testing.T, c room) {
		var callers []<-chan string
		for i := range many {
			callers = append(callers, c.calls(background, 1, strconv.Itoa(i), maker{wait: gate()}))
		}
		synctest.Wait()
		c.close()
		for _, caller := range callers {
			if got := <-caller; got != "error closed" {
				t.Fatalf("a caller got %s", got)
			}
		}
		if n := c.Stats().Touched; n < touched.Most/2 || n > touched.Most {
			t.Errorf("one turn has ended %d of %d", n, many)
		}
	})
}

// F6, C11: an artefact of very many kernels goes, and gives them back, in several turns.
func TestArtefactOfManyKernelsInTurns(t *testing.T) {
	const many = 3 * touched.Most
	bubble(t, artefacts.Config{Entries: limit.Of(4)}, func(t *testing.T, c room) {
		freed := 0
		l, _, err := c.Get(t.Context(), artefacts.Request{Key: "large", Create: func(ctx context.Context) (artefacts.Built, error) {
			for i := range many {
				if _, err := c.Kernel(ctx, artefacts.Request{Key: strconv.Itoa(i), Create: func(context.Context) (artefacts.Built, error) {
					return artefacts.Built{Value: i, Free: func() { freed++ }}, nil
				}}); err != nil {
					return artefacts.Built{}, err
				}
			}
			return artefacts.Built{Value: "large"}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		l.End()
		full(t, c, 4, "")
		synctest.Wait()
		if n := c.Stats().Touched; n > touched.Most || c.Kernels() != 4 || freed != many-4 {
			t.Errorf("one turn has touched %d things, %d kernels are there and %d were freed", n, c.Kernels(), freed)
		}
	})
}
