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
	"github.com/kiln-cache/kiln/internal/hidden"
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
}

// perShape is the processor with a program for each shape, as oneDNN has: a Backend itself, which
// models do not ask for others.
type perShape struct{ *cpu.Backend }

// S4: where programs are for their shape, that is the number of tokens, rounded up.
func TestPackedShapes(t *testing.T) {
	lib, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	b, any := openOn(t, perShape{lib}, tinyList(perToken)), open(t, tinyList(perToken))
	m, session := b.packed(kiln.SessionConfig{Bucket: geometric(t)})
	exact, _ := any.packed(kiln.SessionConfig{})
	b.run(m, b.ids(0, 480), b.ids(1, 97))
	rows := [][]int32{b.ids(0, 512), b.ids(1, 100), b.ids(2, 28)}
	a := b.run(m, rows...)
	if session.Cache().Groups() != 1 || a.Compiles != 0 {
		t.Errorf("577 and 640 tokens do not share a group: %+v", a)
	}
	if want := any.run(exact, rows...); !slices.Equal(a.Output, want.Output) {
		t.Error("other bits than of programs for every shape")
	}
	// Layers share names, so that a new shape asks for few.
	if a := b.run(m, b.ids(0, 3)); lookups(a)-a.Group > 12 || a.Held > 0 {
		t.Errorf("%+v", a)
	}
}

// E7, S5: where programs serve every shape, all shapes have one group of them: a new one asks for
// none and evicts nothing, however many there are.
func TestNewShapeAsksForNothing(t *testing.T) {
	b := open(t, tinyList(perToken))
	for _, groups := range []kiln.Limit{{}, kiln.LimitOf(1)} {
		m, session := b.packed(kiln.SessionConfig{Bucket: geometric(t), Groups: groups})
		run := func(ids ...[]int32) *forward.Answer {
			a := b.run(m, ids...)
			a.Output = nil
			return a
		}
		first := run(b.ids(0, 5))
		names := lookups(first)
		if first.Held != 0 {
			t.Errorf("first: %+v", first)
		}
		for _, n := range []int{9, 512, 1, 300, 9, 17, 33} {
			if a := run(b.ids(0, n)); a.Held != names || a.Compiles != 0 || lookups(a) != names || a.Saved <= 0 {
				t.Errorf("%d tokens: %+v", n, a)
			}
		}
		if s := session.Cache().Stats(); s.Groups != 1 || s.Evicted != 0 {
			t.Errorf("%+v", s)
		}
		if err := session.ResetAll(bg); err != nil {
			t.Fatal(err)
		}
		if a := run(b.ids(0, 17)); a.Held != 0 || lookups(a) != names {
			t.Errorf("after a reset: %+v", a)
		}
		if a := run(b.ids(0, 18)); a.Held != names {
			t.Errorf("and then: %+v", a)
		}
		// Of more tokens than were compared, each shape has its group.
		if a := run(slices.Repeat([][]int32{b.ids(0, 512)}, 129)...); a.Held != 0 || lookups(a) != names {
			t.Errorf("66048 tokens: %+v", a)
		}
		if a := run(b.ids(0, 17)); a.Held != 0 || a.Compiles != 0 || lookups(a) != names { // theirs may be others
			t.Errorf("behind 66048 tokens: %+v", a)
		}
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

// launching notes what a model launches.
type launching struct {
	ops.Library
	ops []ops.Op
}

func (l *launching) Launch(op ops.Op) (gpuexec.Size, []gpuexec.Arg) {
	l.ops = append(l.ops, op)
	return l.Library.Launch(op)
}

// S4, E7: the shape is rounded up; rows that pad it are computed where programs have the shape alone.
func TestPaddingIsNotComputed(t *testing.T) {
	lib, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		lib  ops.Library
		rows int64 // of 17 tokens
	}{{hidden.ManyRows(lib).(ops.Library), 17}, {perShape{lib}, 18}} {
		l := &launching{Library: c.lib}
		b := openOn(t, l, tinyList(perToken))
		m, _ := b.packed(kiln.SessionConfig{Bucket: geometric(t)})
		b.run(m, b.ids(0, 40))
		l.ops = nil
		b.run(m, b.ids(0, 5), b.ids(1, 12))
		if len(l.ops) == 0 {
			t.Fatal("nothing was launched")
		}
		for _, op := range l.ops {
			if op.Dims[0] != c.rows && (op.Kind != ops.Attention || op.Dims[0] != 17) {
				t.Errorf("%s, want %d rows", op, c.rows)
			}
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

// E7: a new shape of programs that have theirs asks for each of its names, and makes each source once.
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
