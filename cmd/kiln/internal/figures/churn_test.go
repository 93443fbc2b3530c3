package figures

import (
	"context"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
)

// The tail is that of batches near evictions, however rare these are; batches
// during which the thread lost its core tell nothing, and evictions that only
// happened then leave nothing to tell.
func TestTail(t *testing.T) {
	const quiet, slow = 100, 3000
	for _, c := range []struct {
		name   string
		every  int // batches to an eviction
		during time.Duration
		other  time.Duration // the batches before it, in turn with quiet ones
		want   float64
	}{
		{"readers wait for evictions", 20, slow, quiet, slow / quiet},
		{"rare evictions", 5000, slow, quiet, slow / quiet},
		{"readers do not wait", 20, quiet, quiet, 1},
		{"the core was lost elsewhere", 20, slow, measure.Disturbed, slow / quiet},
		{"the core was lost at each eviction", 20, measure.Disturbed, quiet, math.NaN()},
	} {
		n, evicted := 0, uint64(0)
		got, err := tail(50, func() uint64 { return evicted }, func() time.Duration {
			switch n++; {
			case n%c.every == 0:
				evicted++
				return c.during
			case n%2 == 0:
				return c.other
			}
			return quiet
		})
		if err != nil || got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: %v, want %v, %v", c.name, got, c.want, err)
		}
	}
	if _, err := tail(1, func() uint64 { return 7 }, func() time.Duration { return quiet }); err == nil {
		t.Error("a tail without an eviction")
	}
}

// What goes is filled again and found again, and for each shape that comes
// another one goes.
func TestChurn(t *testing.T) {
	ctx := context.Background()
	c, err := openChurn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.session.Close(ctx)
	for range 3 * churnGroups {
		if err := c.refill(ctx); err != nil {
			t.Fatal(err)
		}
		c.batch()
	}
	if err := c.sound(); err != nil {
		t.Error(err)
	}
	if evicted := c.refills.Load() - (churnGroups - 1); evicted < 3*churnGroups {
		t.Errorf("%d evictions in %d refills", evicted, 3*churnGroups)
	}
	c.refills.Add(1)
	if c.sound() == nil {
		t.Error("a shape that came for nobody")
	}
	c.refills.Add(^uint64(0))
	c.lookups += c.lookups / 5
	if c.sound() == nil {
		t.Error("a sixth of the lookups missed")
	}
}

// On one core what needs two has no figure and no gate, and says so.
func TestOneCore(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	beside, err := readersBesideEviction(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	scaling, err := Scaling(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(scaling, beside) {
		if f.N != 0 || f.Ratio != 0 || f.Gate != nil || f.Note == "" {
			t.Errorf("%+v", f)
		}
	}
}
