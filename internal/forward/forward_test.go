package forward_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/drivertest"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/shapegroups"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

var bg = context.Background()

const seed = 1

// tinyList is the text of the smallest model's op list, with change applied to it.
func tinyList(change func(string) string) []byte {
	text, _ := data.Model("bert_tiny_l2_h128")
	return []byte(change(string(text)))
}

func asItIs(text string) string { return text }

// perToken leaves out the pooler: the output has a row for every token.
func perToken(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	lines = lines[:len(lines)-3]
	lines[0] = regexp.MustCompile(`"ops": 44`).ReplaceAllString(lines[0], `"ops": 41`)
	lines[0] = regexp.MustCompile(`, "(params|weight_tensors|weight_bytes|ops_depending_on_shape|distinct_primitives_per_shape)": [0-9]+`).ReplaceAllString(lines[0], "")
	return strings.Join(lines, "\n") + "\n"
}

// bench is a runtime with one device, and the models that run on it.
type bench struct {
	t       testing.TB
	runtime *kiln.Runtime
	list    *forward.List
	ops     *oplist.Model // what is in the list
	config  forward.Config
}

func open(t testing.TB, text []byte) *bench {
	t.Helper()
	lib, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	return openOn(t, lib, text)
}

func openOn(t testing.TB, lib ops.Library, text []byte) *bench {
	t.Helper()
	list, err := forward.Parse("list", text)
	if err != nil {
		t.Fatal(err)
	}
	inside, err := oplist.Parse("list", text)
	if err != nil {
		t.Fatal(err)
	}
	rt, err := kiln.Open(kiln.Config{ArtefactEntries: kiln.Unlimited, Workers: 2, Listen: forward.Listen, Lookup: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(bg); err != nil {
			t.Error(err)
		}
	})
	exec, err := rt.Executor(bg, lib, 0)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := rt.Constants().Engine(constants.CPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	set, err := forward.OpenWeights(list, seed)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t, rt, list, inside, forward.Config{Executor: exec, Library: lib, Engine: engine, Weights: set}}
}

// model is a new handle with a session of its own.
func (b *bench) model(c kiln.SessionConfig) (*forward.Model, *kiln.Session) {
	b.t.Helper()
	session, err := b.runtime.Session(c)
	if err != nil {
		b.t.Fatal(err)
	}
	cfg := b.config
	cfg.Session = session
	m := forward.New(cfg)
	b.t.Cleanup(m.Close)
	return m, session
}

func (b *bench) ids(place, n int) []int32 { return b.list.Tokens(seed, place, n) }

func (b *bench) run(m *forward.Model, ids ...[]int32) *forward.Answer {
	b.t.Helper()
	a, err := m.Run(bg, ids)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

func geometric(t testing.TB) shapegroups.Bucketing {
	t.Helper()
	bucket, err := shapegroups.ParseBucketing("geometric:8")
	if err != nil {
		t.Fatal(err)
	}
	return bucket
}

// K5: two executors of one runtime do not share the buffers of their weights.
func TestTwoDevices(t *testing.T) {
	b := open(t, tinyList(asItIs))
	first, _ := b.model(kiln.SessionConfig{})
	other, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	b.config.Library = other
	if b.config.Executor, err = b.runtime.Executor(bg, other, 0); err != nil {
		t.Fatal(err)
	}
	second, _ := b.model(kiln.SessionConfig{})
	ids := b.ids(0, 5)
	if want := b.run(first, ids).Output; !slices.Equal(b.run(second, ids).Output, want) {
		t.Error("another device gives another output")
	}
}

// lookups is how many names were answered, by whomever.
func lookups(a *forward.Answer) int64 {
	return a.Held + a.Group + a.Session + a.Artefact + a.Disk + a.Joined + a.Compiles
}

// Outputs are those of the plain reference, for one request and for several of
// different lengths, with a row a request and with a row a token; and E8: a
// request's bits are the same alone and in company, padded and not.
func TestOutputs(t *testing.T) {
	for name, list := range map[string][]byte{"per request": tinyList(asItIs), "per token": tinyList(perToken)} {
		t.Run(name, func(t *testing.T) {
			b := open(t, list)
			if b.ops.PerToken != (name == "per token") {
				t.Fatalf("the list is per token: %v", b.ops.PerToken)
			}
			exact, _ := b.model(kiln.SessionConfig{})
			padded, _ := b.model(kiln.SessionConfig{Bucket: geometric(t)})
			var rows [][]int32
			var alone []float32
			for place, n := range []int{1, 2, 17, 33, 8} {
				ids := b.ids(place, n)
				rows = append(rows, ids)
				got := b.run(exact, ids).Output
				want, err := b.config.Weights.Reference(bg, [][]int32{ids})
				if err != nil {
					t.Fatal(err)
				}
				if d, err := forward.Compare(got, want[0]); err != nil || !(d.Relative < 1e-5) || d.Absolute == 0 {
					t.Errorf("%d tokens: %+v, %v", n, d, err)
				}
				if !slices.Equal(b.run(padded, ids).Output, got) {
					t.Errorf("%d tokens: other bits with padding", n)
				}
				alone = append(alone, got...)
			}
			for _, m := range []*forward.Model{exact, padded} {
				if got := b.run(m, rows...).Output; !slices.Equal(got, alone) {
					t.Errorf("other bits in a batch, %d values and %d alone", len(got), len(alone))
				}
			}
		})
	}
}

// S4, E8: a session may round the batch up, too. What pads it is no part of any
// request: neither an error nor other bits come of what the arena held before.
func TestBucketedBatch(t *testing.T) {
	b := open(t, tinyList(asItIs))
	four, err := shapegroups.ParseBucketing("multiple:4")
	if err != nil {
		t.Fatal(err)
	}
	on, err := four.On(shapegroups.Axis{Input: 0, Dim: 0}, shapegroups.Axis{Input: 0, Dim: 1})
	if err != nil {
		t.Fatal(err)
	}
	exact, _ := b.model(kiln.SessionConfig{})
	m, _ := b.model(kiln.SessionConfig{Bucket: on})
	for i, rows := range [][][]int32{
		{b.ids(0, 33), b.ids(1, 20), b.ids(2, 30), b.ids(3, 7)},
		{b.ids(4, 12)}, {b.ids(5, 64), b.ids(5, 3)}, {b.ids(6, 5)}, {b.ids(4, 12)},
	} {
		a, err := m.Run(bg, rows)
		if err != nil {
			t.Errorf("run %d of %d requests: %v", i, len(rows), err)
			continue
		}
		want := b.run(exact, rows...)
		if !slices.EqualFunc(a.Output, want.Output, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }) {
			t.Errorf("run %d: %d numbers, other bits than %d alone", i, len(a.Output), len(want.Output))
		}
	}
}

// Of the operations of a BERT, so many are stated differently; those that differ in nothing but
// their number of rows have one program.
const stated, programs = 18, 15

// Which level answers: compiled at first, held while the shape stays, by the
// group when it returns, by the artefact cache in another session. T3: weights
// are prepared by one handle and found by the next.
func TestLevels(t *testing.T) {
	b := open(t, tinyList(asItIs))
	names := int64(len(b.ops.Ops))
	m, _ := b.model(kiln.SessionConfig{})
	ids := b.ids(0, 9)
	first := b.run(m, ids)
	distinct := first.Compiles
	bound, err := b.ops.At(1, 9)
	identities := map[string]bool{}
	for _, op := range bound {
		identities[op.Identity()] = true
	}
	if err != nil || distinct != programs || len(identities) != stated || first.Artefact != names-distinct {
		t.Errorf("first: %+v of %d stated, %v", first, len(identities), err)
	}
	if first.CompileTime <= 0 || first.Saved <= 0 {
		t.Errorf("no time was taken or saved: %+v", first)
	}
	if a := b.run(m, ids); a.Held != names || lookups(a) != names || a.Saved <= first.Saved {
		t.Errorf("the same shape again: %+v", a)
	}
	b.run(m, b.ids(0, 12))
	// The first name comes by session and shape, the others by the handle that this gave.
	if a := b.run(m, ids); a.Session != 1 || a.Group != names-1 || lookups(a) != names {
		t.Errorf("back to a shape: %+v", a)
	}
	other, _ := b.model(kiln.SessionConfig{})
	if err := other.Prepare(bg); err != nil {
		t.Fatal(err)
	}
	prepared := other.Constants()
	if a := b.run(other, ids); a.Artefact != names || lookups(a) != names || !slices.Equal(a.Output, first.Output) {
		t.Errorf("another session: %+v", a)
	}
	tensors := int64(len(b.ops.Weights))
	if one, two := m.Constants(), other.Constants(); one != (forward.Constants{Owners: tensors}) || two != (forward.Constants{Hits: tensors}) || prepared != two {
		t.Errorf("weights: %+v and %+v of %d", one, two, tensors)
	}
	none, _ := b.model(kiln.SessionConfig{Groups: kiln.LimitOf(0)})
	for range 2 { // G2: without a group nothing is kept, and everything works
		if a := b.run(none, ids); a.Artefact != names || !slices.Equal(a.Output, first.Output) {
			t.Errorf("no groups: %+v", a)
		}
	}
}

// G11: the 224 names of BERT-base at one shape cost 15 artefacts, and each of its
// 199 tensors is prepared once.
func TestNamesShareArtefacts(t *testing.T) {
	if testing.Short() {
		t.Skip("half a gigabyte of weights")
	}
	text, _ := data.Model("bert_base_uncased")
	b := open(t, text)
	m, _ := b.model(kiln.SessionConfig{})
	if a := b.run(m, b.ids(0, 128)); a.Compiles != programs || lookups(a) != 224 {
		t.Errorf("%d compiles of %d lookups, want %d of 224", a.Compiles, lookups(a), programs)
	}
	if c := m.Constants(); c != (forward.Constants{Owners: 199}) {
		t.Errorf("weights: %+v", c)
	}
}

// G10: after a reset a run has cold counts and the same results.
func TestSessionReset(t *testing.T) {
	b := open(t, tinyList(asItIs))
	m, session := b.model(kiln.SessionConfig{})
	ids := b.ids(0, 9)
	first := b.run(m, ids)
	if err := session.ResetAll(bg); err != nil {
		t.Fatal(err)
	}
	if n := session.Cache().Len(); n != 0 {
		t.Errorf("%d objects after the reset", n)
	}
	a := b.run(m, ids)
	if names := int64(len(b.ops.Ops)); a.Held != 0 || a.Artefact+a.Compiles != names || !slices.Equal(a.Output, first.Output) {
		t.Errorf("after a reset: %+v", a)
	}
}

// T2, T8: weights that were flushed are let go and asked for again, once; those
// of a handle's own, with no capacity, are not.
func TestFlushedConstants(t *testing.T) {
	b := open(t, tinyList(asItIs))
	m, _ := b.model(kiln.SessionConfig{})
	tensors := int64(len(b.ops.Weights))
	ids := b.ids(0, 9)
	first := b.run(m, ids)
	capacity := func(l kiln.Limit) {
		t.Helper()
		if err := b.runtime.Constants().SetCapacity(bg, constants.CPU, l); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		capacity kiln.Limit
		want     forward.Constants // counted so far
	}{
		{kiln.Unlimited, forward.Constants{Owners: 2 * tensors}},
		{kiln.LimitOf(0), forward.Constants{Owners: 2 * tensors, Bypass: tensors}},
		{kiln.Unlimited, forward.Constants{Owners: 2 * tensors, Bypass: tensors}}, // keeps its own
	} {
		capacity(c.capacity)
		for range 2 {
			if a := b.run(m, ids); !slices.Equal(a.Output, first.Output) {
				t.Error("other outputs")
			}
			if got := m.Constants(); got != c.want {
				t.Errorf("%v: %+v, want %+v", c.capacity, got, c.want)
			}
		}
	}
}

// A run that is cancelled at any moment gives the context's error, and leaves a
// model that computes the same as before.
func TestCancelled(t *testing.T) {
	b := open(t, tinyList(asItIs))
	m, session := b.model(kiln.SessionConfig{Groups: kiln.LimitOf(2)})
	ids, next := b.ids(0, 100), b.ids(1, 90)
	want, other := b.run(m, ids).Output, b.run(m, next).Output
	began := time.Now()
	b.run(m, ids)
	whole := time.Since(began)
	const rounds = 60
	cut := 0
	for i := range rounds {
		ctx, cancel := context.WithTimeout(bg, whole*time.Duration(i)/rounds)
		if i%3 == 0 { // and in the middle of finding artefacts, too
			if err := session.ResetAll(bg); err != nil {
				t.Fatal(err)
			}
		}
		a, err := m.Run(ctx, [][]int32{ids})
		cancel()
		switch {
		case err == nil && !slices.Equal(a.Output, want):
			t.Fatalf("round %d: other outputs", i)
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			t.Fatalf("round %d: %v", i, err)
		case err != nil:
			cut++
		}
		if got := b.run(m, next).Output; !slices.Equal(got, other) {
			t.Fatalf("round %d: other outputs after a cancelled run", i)
		}
	}
	if cut == 0 {
		t.Error("no run was cut short")
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := m.Run(ctx, [][]int32{ids}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// Handles run side by side, each its own, and get the same bits.
func TestSideBySide(t *testing.T) {
	b := open(t, tinyList(asItIs))
	lone, _ := b.model(kiln.SessionConfig{})
	lens := []int{5, 40, 5, 17, 40, 64, 1}
	var want [][]float32
	for place, n := range lens {
		want = append(want, b.run(lone, b.ids(place, n)).Output)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		m, _ := b.model(kiln.SessionConfig{Groups: kiln.LimitOf(int64(i)), Bucket: geometric(t)})
		wg.Go(func() {
			for round := range 3 {
				for place, n := range lens {
					a, err := m.Run(bg, [][]int32{b.ids(place, n)})
					if err != nil || !slices.Equal(a.Output, want[place]) {
						t.Errorf("handle %d, round %d, %d tokens: other outputs, %v", i, round, n, err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// A row without a token is no request, be it beside others.
func TestWrongArguments(t *testing.T) {
	b := open(t, tinyList(asItIs))
	m, _ := b.model(kiln.SessionConfig{Bucket: geometric(t)})
	if err := m.Products(bg); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("products before a run: %v", err)
	}
	for _, ids := range [][][]int32{nil, {nil}, {{}, {}}, {{1}, {}}, {make([]int32, 513)}} {
		if _, err := m.Run(bg, ids); !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("%d rows: %v", len(ids), err)
		}
	}
	for _, id := range []int32{-1, int32(b.ops.Vocab), math.MaxInt32, math.MinInt32} { // E8: some devices would take it for a row of zeros
		_, err := m.Run(bg, [][]int32{{1, 2}, {1, id}})
		if !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("row 1: token 1 is %d", id)) {
			t.Errorf("token %d: %v", id, err)
		}
	}
	if n := b.config.Executor.Stats().Launches; n != 0 {
		t.Errorf("%d launches", n)
	}
	b.run(m, []int32{0, int32(b.ops.Vocab) - 1})
	// The limit itself runs, though its bucket may be larger.
	if a := b.run(m, b.ids(0, 512)); len(a.Output) != b.ops.Width {
		t.Errorf("%d values", len(a.Output))
	}
	if err := m.Products(bg); err != nil {
		t.Error(err)
	}
}

func TestCompare(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		got      []float32
		want     []float64
		abs, rel float64
	}{
		{[]float32{1, 2}, []float64{1, 2}, 0, 0},
		{[]float32{1, 2.5}, []float64{1, 2}, 0.5, 0.25},
		{[]float32{-4, 1}, []float64{-4, 0}, 1, 0.25},
		{[]float32{0}, []float64{0}, 0, 0},
		{[]float32{1}, []float64{0}, 1, math.Inf(1)},
		{[]float32{nan}, []float64{1}, math.Inf(1), math.Inf(1)},
		{[]float32{inf, 0}, []float64{1, 0}, math.Inf(1), math.Inf(1)},
	} {
		d, err := forward.Compare(c.got, c.want)
		if err != nil || d.Absolute != c.abs || d.Relative != c.rel {
			t.Errorf("Compare(%v, %v) = %+v, %v", c.got, c.want, d, err)
		}
	}
	if _, err := forward.Compare([]float32{1}, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("sizes that differ: %v", err)
	}
}
