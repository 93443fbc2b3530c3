package forward_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/forward"
)

// packed is a model that packs where it can.
func (b *bench) packed(c kiln.SessionConfig) (*forward.Model, *kiln.Session) {
	b.config.Packed = true
	defer func() { b.config.Packed = false }()
	return b.model(c)
}

// E8: a request has the same bits in a ragged batch as padded, whatever lies before and
// behind it, with tokens behind the last request and without.
func TestPackedBits(t *testing.T) {
	b := open(t, tinyList(perToken))
	padded, _ := b.model(kiln.SessionConfig{})
	exact, _ := b.packed(kiln.SessionConfig{})
	bucketed, _ := b.packed(kiln.SessionConfig{Bucket: geometric(t)})
	if padded.Packed() || !exact.Packed() {
		t.Fatal("a model packs that should not, or does not that should")
	}
	var requests [][]int32
	var want [][]float32
	for place, n := range []int{1, 2, 3, 5, 14, 15, 16, 33, 64, 200, 512} {
		requests = append(requests, b.ids(place, n))
		want = append(want, b.run(padded, requests[place]).Output)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		var rows [][]int32
		var outputs []float32
		if round < len(requests) {
			rows, outputs = requests[round:round+1], want[round]
		} else {
			for range 1 + random.IntN(9) {
				i := random.IntN(len(requests))
				if random.IntN(2) == 0 {
					i = random.IntN(7) // most are short
				}
				rows, outputs = append(rows, requests[i]), append(outputs, want[i]...)
			}
		}
		for _, m := range []*forward.Model{exact, bucketed} {
			if got := b.run(m, rows...).Output; !slices.Equal(got, outputs) {
				t.Fatalf("round %d, %d requests: other bits", round, len(rows))
			}
		}
	}
	// S4: the shape is the number of tokens, rounded up.
	fresh, session := b.packed(kiln.SessionConfig{Bucket: geometric(t)})
	b.run(fresh, b.ids(0, 480), b.ids(1, 97))
	if a := b.run(fresh, b.ids(0, 512), b.ids(1, 100), b.ids(2, 28)); session.Cache().Groups() != 1 || a.Compiles != 0 {
		t.Errorf("577 and 640 tokens do not share a group: %+v", a)
	}
	// Layers share names, so that a new shape asks for few.
	if a := b.run(fresh, b.ids(0, 3)); lookups(a)-a.Group > 12 {
		t.Errorf("%+v", a)
	}
}

// without is the CPU without attention.
type without struct{ *cpu.Backend }

func (w without) Source(op ops.Op) (gpuexec.Source, error) {
	if op.Kind == ops.Attention {
		return gpuexec.Source{}, fmt.Errorf("%w", fault.ErrUnsupported)
	}
	return w.Backend.Source(op)
}

// A device without attention, and a list with one row a request, go on with padding.
func TestNotPacked(t *testing.T) {
	lib, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string]*bench{"the device": openOn(t, without{lib}, tinyList(perToken)), "the list": open(t, tinyList(asItIs))} {
		plain, _ := b.model(kiln.SessionConfig{})
		m, _ := b.packed(kiln.SessionConfig{})
		rows := [][]int32{b.ids(0, 5), b.ids(1, 17)}
		if m.Packed() || !slices.Equal(b.run(m, rows...).Output, b.run(plain, rows...).Output) {
			t.Errorf("%s: packed, or other bits", what)
		}
		// Layers share names here, too.
		if a := b.run(m, b.ids(0, 3)); lookups(a)-a.Group > 20 {
			t.Errorf("%s: %+v", what, a)
		}
	}
}

// counted counts how often it is asked for a source.
type counted struct {
	*cpu.Backend
	sources int64
}

func (c *counted) Source(op ops.Op) (gpuexec.Source, error) {
	c.sources++
	return c.Backend.Source(op)
}

// E7: a new shape asks for each of its names, and makes each source once.
func TestSourceIsMadeOnceForEqualOperations(t *testing.T) {
	lib, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{Backend: lib}
	b := openOn(t, c, tinyList(asItIs))
	m, _ := b.model(kiln.SessionConfig{})
	distinct := b.run(m, b.ids(0, 5)).Compiles
	if c.sources != distinct {
		t.Errorf("%d sources for %d programs", c.sources, distinct)
	}
	c.sources = 0 // some of a new shape's programs are there
	if a := b.run(m, b.ids(0, 17)); c.sources != distinct || a.Compiles == 0 {
		t.Errorf("another shape: %d sources, want %d: %+v", c.sources, distinct, a)
	}
}
