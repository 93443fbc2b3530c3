package devicetest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Operations tests what a library computes: every operation on random shapes
// with ragged edges against float64, in place where package ops allows it, by
// several workers at once with equal bits, and padded with the bits of the exact
// shape (SPEC E8). A library with a method Rounds, whose forms of one operation may round
// differently (SPEC E7), is held to float64 there.
func Operations(t *testing.T, lib ops.Library) {
	e := openDevice(t, lib, 2)
	d := &desk{e: e, lib: lib}
	_, d.rounds = lib.(interface{ Rounds() })
	d.mu.kernels = make(map[string]*gpuexec.Kernel)
	t.Cleanup(func() {
		for _, k := range d.mu.kernels {
			k.Release()
		}
	})
	t.Run("reference", func(t *testing.T) {
		for seed := range uint64(30) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			for _, op := range randomOps(rnd) {
				d.compare(t, op, randomTensors(rnd, op))
			}
		}
		rnd := rand.New(rand.NewPCG(30, 5))
		for _, op := range largeOps() {
			d.compare(t, op, randomTensors(rnd, op))
		}
	})
	t.Run("lengths", d.lengths)
	t.Run("epsilons", d.epsilons)
	t.Run("edges", d.edges)
	if !d.rounds {
		t.Run("bits", d.bits)
	}
	t.Run("small buffers", d.small)
	t.Run("attention", d.attention)
	t.Run("workers", d.together)
	t.Run("prepare", func(t *testing.T) {
		if _, err := lib.Prepare(ops.New(ops.GELU, 1, 1)); err == nil {
			t.Error("gelu has no weight, yet one was prepared")
		}
		if _, err := lib.Source(ops.New(ops.MatMul, 0, 1, 1)); err == nil {
			t.Error("an empty product has a source")
		}
	})
}

// randomOps gives one operation of each kind, small and mostly not round.
func randomOps(rnd *rand.Rand) []ops.Op {
	n := func(most int64) int64 { return 1 + rnd.Int64N(most) }
	norm := ops.New(ops.LayerNorm, n(9), n(70))
	norm.Epsilon = 1e-5
	product := ops.New(ops.MatMul, n(40), n(70), n(90))
	product.Bias = rnd.IntN(2) == 0
	batch, heads, tokens, width := n(3), n(3), n(35), n(20)
	scores := ops.New(ops.BatchMatMul, batch, heads, tokens, width, tokens)
	scores.TransposeB, scores.Scale = true, 0.25
	mixed := ops.New(ops.BatchMatMul, batch, heads, tokens, tokens, width)
	mixed.MaskK = true
	period := n(4)
	return []ops.Op{
		ops.New(ops.Gather, n(20), n(40), n(50)), ops.New(ops.Add, period*n(5), n(40), period), norm, product, scores, mixed,
		ops.New(ops.Softmax, batch, heads, tokens, tokens), ops.New(ops.Reorder, n(4), n(9), n(5), n(17)),
		ops.New(ops.GELU, n(9), n(70)), ops.New(ops.Tanh, n(9), n(70)), ops.New(ops.Slice, n(5), n(9), n(40)),
	}
}

// largeOps have more rows, blocks, or numbers in a sum than a device may take at once:
// drivers count blocks to 65535.
func largeOps() []ops.Op {
	norm := ops.New(ops.LayerNorm, 1100, 33)
	norm.Epsilon = 1e-5
	scores := ops.New(ops.BatchMatMul, 2, 2, 147, 75, 147)
	scores.TransposeB = true
	mixed := ops.New(ops.BatchMatMul, 2, 2, 147, 147, 75)
	mixed.MaskK = true
	blocks := ops.New(ops.BatchMatMul, 1100, 1, 2, 2, 2)
	blocks.TransposeB, blocks.MaskK = true, true
	return []ops.Op{
		ops.New(ops.Gather, 1100, 5, 7), ops.New(ops.Add, 2200, 5, 1100), norm, ops.New(ops.MatMul, 700, 300, 75), ops.New(ops.MatMul, 530_000, 2, 1), scores, mixed, blocks,
		ops.New(ops.Softmax, 20, 20, 3, 3), ops.New(ops.Softmax, 1, 1, 147, 147), ops.New(ops.Reorder, 11, 10, 11, 5),
		ops.New(ops.GELU, 1100, 17), ops.New(ops.Tanh, 1100, 5), ops.New(ops.Slice, 1100, 2, 5),
	}
}

func randomTensors(rnd *rand.Rand, op ops.Op) tensors {
	d := op.Dims
	var in tensors
	floats := func(n int64) {
		list := make([]float32, n)
		for i := range list {
			list[i] = float32(rnd.NormFloat64())
		}
		in.floats = append(in.floats, list)
	}
	words := func(n, low, most int64) (list []int32) {
		for range n {
			list = append(list, int32(low+rnd.Int64N(most-low+1)))
		}
		return list
	}
	switch op.Kind {
	case ops.Gather:
		in.ids = words(d[0], 0, d[2]-1)
		floats(d[2] * d[1])
	case ops.Add:
		floats(d[0] * d[1])
		floats(d[2] * d[1])
	case ops.LayerNorm:
		floats(d[0] * d[1])
		floats(d[1])
		floats(d[1])
	case ops.MatMul:
		floats(d[0] * d[1])
		floats(d[1] * d[2])
		if op.Bias {
			floats(d[2])
		}
	case ops.BatchMatMul:
		floats(d[0] * d[1] * d[2] * d[3])
		floats(d[0] * d[1] * d[3] * d[4])
		in.lengths = words(d[0], 1, d[2]) // the square side is the tokens
	case ops.Softmax:
		floats(op.Elements())
		in.lengths = words(d[0], 1, d[3])
	case ops.Slice:
		floats(d[0] * d[1] * d[2])
	case ops.Attention:
		floats(op.Elements())
		floats(op.Elements())
		floats(op.Elements())
	default:
		floats(op.Elements())
	}
	return in
}

// desk runs operations on one executor.
type desk struct {
	e      *gpuexec.Executor
	lib    ops.Library
	rounds bool
	mu     struct {
		sync.Mutex
		kernels map[string]*gpuexec.Kernel // by the keys of their sources
	}
}

// kernel compiles a source once.
func (d *desk) kernel(t testing.TB, src gpuexec.Source) *gpuexec.Kernel {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.kernels[src.Key] == nil {
		d.mu.kernels[src.Key] = build(t, d.e, src)
	}
	return d.mu.kernels[src.Key]
}

// inPlace says which kinds may write over their first argument.
var inPlace = []ops.Kind{ops.Add, ops.LayerNorm, ops.Softmax, ops.GELU, ops.Tanh, ops.Attention}

// run gives the output of an operation.
func (d *desk) run(t testing.TB, op ops.Op, in tensors, over bool) []float32 {
	t.Helper()
	got, err := d.try(t, op, in, over)
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	return got
}

// try gives the output of an operation, or the error of its launch.
func (d *desk) try(t testing.TB, op ops.Op, in tensors, over bool) ([]float32, error) {
	t.Helper()
	l, held := d.launch(t, op, in, over)
	defer releaseAll(held)
	out := held[0]
	if !over {
		out = held[len(held)-1]
	}
	if err := d.e.Submit(background, l); err != nil {
		return nil, err
	}
	if err := d.e.Submit(background); err != nil { // an empty sequence is one, too
		t.Fatal(err)
	}
	got := make([]float32, op.Elements())
	if err := d.e.Read(background, out, 0, gpuexec.BytesOf(got)); err != nil {
		t.Fatal(err)
	}
	return got, nil
}

// launch gives that of an operation with its tensors; the last is a buffer of its own,
// or the first.
func (d *desk) launch(t testing.TB, op ops.Op, in tensors, over bool) (l gpuexec.Launch, held []*gpuexec.Buffer) {
	t.Helper()
	src, err := d.lib.Source(op)
	if err != nil {
		t.Fatal(err)
	}
	k := d.kernel(t, src)
	var operands [][]byte
	if in.ids != nil {
		operands = append(operands, gpuexec.BytesOf(in.ids))
	}
	for i, list := range in.floats {
		if op.Kind == ops.MatMul && i == 1 {
			prepared, err := d.lib.Prepare(op)
			if err != nil {
				t.Fatal(err)
			}
			packed := make([]byte, prepared.Bytes)
			if err := prepared.Fill(packed, list); err != nil {
				t.Fatal(err)
			}
			if prepared.FillTurned != nil {
				k, n := int(op.Dims[1]), int(op.Dims[2])
				turned, same := make([]float32, len(list)), make([]byte, prepared.Bytes)
				for at, v := range list {
					turned[at%n*k+at/n] = v
				}
				if err := prepared.FillTurned(same, turned); err != nil || !bytes.Equal(same, packed) {
					t.Errorf("%s: the transposed weight is prepared otherwise, %v", op, err)
				}
			}
			operands = append(operands, packed)
			continue
		}
		operands = append(operands, gpuexec.BytesOf(list))
	}
	if in.lengths != nil {
		operands = append(operands, gpuexec.BytesOf(in.lengths))
	}
	grid, values := d.lib.Launch(op)
	l = gpuexec.Launch{Kernel: k, Grid: grid}
	if !over {
		operands = append(operands, slices.Repeat([]byte{0x3f}, int(4*op.Elements()))) // what was there before must not matter
	}
	for _, operand := range operands {
		b := allocate(t, d.e, int64(len(operand)))
		held = append(held, b)
		if err := d.e.Write(background, b, 0, operand); err != nil {
			t.Fatal(err)
		}
		l.Args = append(l.Args, gpuexec.BufferArg(b))
	}
	if over {
		l.Args = append(l.Args, gpuexec.BufferArg(held[0]))
	}
	l.Args = append(l.Args, values...)
	return l, held
}

// compare checks an operation against float64, and in place against itself.
func (d *desk) compare(t *testing.T, op ops.Op, in tensors) {
	t.Helper()
	got := d.run(t, op, in, false)
	want, defined := reference(op, in)
	near(t, op, got, want, defined)
	if slices.Contains(inPlace, op.Kind) {
		d.same(t, op, " in place", got, d.run(t, op, in, true), want, defined)
	}
}

func near(t *testing.T, op ops.Op, got []float32, want []float64, defined []bool) {
	t.Helper()
	for i := range want {
		if off := math.Abs(float64(got[i]) - want[i]); defined[i] && !(off <= 2e-5*(1+math.Abs(want[i]))) {
			t.Fatalf("%s: element %d is %v, want %v", op, i, got[i], want[i])
		}
	}
}

// same wants the bits of another launch of an operation, where the library keeps them.
func (d *desk) same(t *testing.T, op ops.Op, how string, got, more []float32, want []float64, defined []bool) {
	t.Helper()
	if d.rounds {
		near(t, op, more, want, defined)
		return
	}
	sameBits(t, op.String()+how, got, more, func(i int) (int, bool) { return i, defined[i] })
}

// sameBits wants element i of got to be that of more which at gives.
func sameBits(t *testing.T, what string, got, more []float32, at func(int) (int, bool)) {
	t.Helper()
	for i := range got {
		if j, defined := at(i); defined && math.Float32bits(got[i]) != math.Float32bits(more[j]) {
			t.Fatalf("%s: element %d is %x, and %x", what, i, math.Float32bits(got[i]), math.Float32bits(more[j]))
		}
	}
}

// together: equal launches on several workers at once give equal bits.
func (d *desk) together(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	for _, op := range randomOps(rnd) {
		d.workers(t, op, randomTensors(rnd, op))
	}
}

func (d *desk) workers(t *testing.T, op ops.Op, in tensors) {
	t.Helper()
	want, defined := reference(op, in)
	results := make([][]float32, 4)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { results[i] = d.run(t, op, in, false) })
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, r := range results[1:] {
		d.same(t, op, " on several workers", results[0], r, want, defined)
	}
}
