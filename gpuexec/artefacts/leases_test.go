package artefacts_test

import (
	"context"
	"runtime"
	"testing"
	gcweak "weak"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

// C5: leases are made some at a time, and one that lives on keeps nothing of one that has
// ended beside it.
func TestLeaseKeepsNoNeighbour(t *testing.T) {
	c, err := artefacts.Open(artefacts.Config{Entries: limit.Of(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	take := func(key string) (*artefacts.Lease, gcweak.Pointer[[1 << 16]byte]) {
		value := new([1 << 16]byte)
		l, _, err := c.Get(t.Context(), artefacts.Request{Key: key, Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Value: value}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		return l, gcweak.Make(value)
	}
	var held []*artefacts.Lease
	var gone []gcweak.Pointer[[1 << 16]byte]
	for i := range 64 {
		l, value := take(string(rune('a' + i)))
		if i%2 == 0 {
			held = append(held, l)
			continue
		}
		l.End()
		l.End()
		gone = append(gone, value)
	}
	left := func() (n int) {
		runtime.GC()
		for _, p := range gone {
			if p.Value() != nil {
				n++
			}
		}
		return n
	}
	const tries, onAStack = 10, 1
	n := left()
	for try := 0; n > onAStack && try < tries; try++ {
		n = left()
	}
	if n > onAStack {
		t.Errorf("%d of %d values are kept by others' leases", n, len(gone))
	}
	for _, l := range held {
		if l.Value() == nil {
			t.Error("a lease that has not ended lost its value")
		}
		l.End()
	}
}
