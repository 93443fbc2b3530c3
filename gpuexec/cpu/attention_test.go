package cpu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// attended is one attention, by its operation and by the five that it stands for.
type attended struct {
	e          *gpuexec.Executor
	one, five  []gpuexec.Launch
	parts      [3]*gpuexec.Buffer // q, k, v
	result     [2]*gpuexec.Buffer
	tokens     int
	all        int // numbers of a row
	backend    *Backend
	closeFirst []func()
}

func newAttended(t testing.TB, b *Backend, tokens, heads, width int64) *attended {
	ctx := t.Context()
	e, err := gpuexec.Open(ctx, gpuexec.Config{Backend: b, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	a := &attended{e: e, backend: b, tokens: int(tokens), all: int(heads * width)}
	t.Cleanup(func() {
		for _, f := range a.closeFirst {
			f()
		}
		e.Close(context.Background())
	})
	rows := 4 * tokens * heads * width
	starts, lengths := a.buffer(t, 8), a.buffer(t, 4)
	a.write(t, starts, gpuexec.BytesOf([]int32{0, int32(tokens)}))
	a.write(t, lengths, gpuexec.BytesOf([]int32{int32(tokens)}))
	for i := range a.parts {
		a.parts[i] = a.buffer(t, rows)
	}
	a.result = [2]*gpuexec.Buffer{a.buffer(t, rows), a.buffer(t, rows)}
	op := ops.New(ops.Attention, tokens, heads, width, 1)
	op.Scale = float32(1 / math.Sqrt(float64(width)))
	a.one = []gpuexec.Launch{a.launch(t, op, a.parts[0], a.parts[1], a.parts[2], starts, a.result[0])}

	split := ops.New(ops.Reorder, 1, tokens, heads, width)
	var heads3 [3]*gpuexec.Buffer
	for i, p := range a.parts {
		heads3[i] = a.buffer(t, rows)
		a.five = append(a.five, a.launch(t, split, p, heads3[i]))
	}
	scores, mixed := a.buffer(t, 4*heads*tokens*tokens), a.buffer(t, rows)
	first := ops.New(ops.BatchMatMul, 1, heads, tokens, width, tokens)
	first.TransposeB, first.Scale = true, op.Scale
	second := ops.New(ops.BatchMatMul, 1, heads, tokens, tokens, width)
	second.MaskK = true
	a.five = append(a.five, a.launch(t, first, heads3[0], heads3[1], lengths, scores),
		a.launch(t, ops.New(ops.Softmax, 1, heads, tokens, tokens), scores, lengths, scores),
		a.launch(t, second, scores, heads3[2], lengths, mixed),
		a.launch(t, ops.New(ops.Reorder, 1, heads, tokens, width), mixed, a.result[1]))
	return a
}

func (a *attended) buffer(t testing.TB, bytes int64) *gpuexec.Buffer {
	b, err := a.e.Alloc(t.Context(), bytes)
	if err != nil {
		t.Fatal(err)
	}
	a.closeFirst = append(a.closeFirst, b.Release)
	return b
}

func (a *attended) write(t testing.TB, b *gpuexec.Buffer, data []byte) {
	if err := a.e.Write(t.Context(), b, 0, data); err != nil {
		t.Fatal(err)
	}
}

func (a *attended) launch(t testing.TB, op ops.Op, buffers ...*gpuexec.Buffer) gpuexec.Launch {
	k, err := a.e.Compile(t.Context(), source(t, a.backend, op))
	if err != nil {
		t.Fatal(err)
	}
	a.closeFirst = append(a.closeFirst, k.Release)
	l := gpuexec.Launch{Kernel: k}
	var values []gpuexec.Arg
	l.Grid, values = a.backend.Launch(op)
	for _, b := range buffers {
		l.Args = append(l.Args, gpuexec.BufferArg(b))
	}
	l.Args = append(l.Args, values...)
	return l
}

// fill gives both the same random q, k and v.
func (a *attended) fill(t testing.TB, rnd *rand.Rand) {
	for _, p := range a.parts {
		list := make([]float32, a.tokens*a.all)
		for i := range list {
			list[i] = float32(3 * rnd.NormFloat64())
		}
		a.write(t, p, gpuexec.BytesOf(list))
	}
}

// E8: attention has the bits of reorder, batch_matmul, softmax, batch_matmul and reorder,
// which models have used for it: a text has one answer by either way.
func TestAttentionHasTheBitsOfItsParts(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) {
		rnd := rand.New(rand.NewPCG(1, 2))
		for _, tokens := range []int64{1, 2, 7, 14, 16, 31, 33, 64, 70, 201} {
			a := newAttended(t, b, tokens, 2, []int64{32, 24, 64}[tokens%3])
			a.fill(t, rnd)
			if err := a.e.Submit(t.Context(), append(slices.Clone(a.one), a.five...)...); err != nil {
				t.Fatal(err)
			}
			one, five := floats(a.result[0].Mapped()), floats(a.result[1].Mapped())
			for i := range one {
				if math.Float32bits(one[i]) != math.Float32bits(five[i]) {
					t.Fatalf("%d tokens: number %d is %v, from its parts %v", tokens, i, one[i], five[i])
				}
			}
		}
	})
}

// E8: gelu in assembly has the bits of the WebAssembly kernel.
func TestGELUHasTheBitsOfTheKernel(t *testing.T) {
	op := ops.New(ops.GELU, 7, 101)
	rnd := rand.New(rand.NewPCG(1, 3))
	x := make([]float32, op.Elements())
	for i := range x {
		x[i] = float32(4 * rnd.NormFloat64())
	}
	x[0], x[1], x[2] = float32(math.Copysign(0, -1)), 6, float32(math.Inf(-1))
	var outs [][]byte
	sets(t, func(t *testing.T, b *Backend) {
		e, err := gpuexec.Open(t.Context(), gpuexec.Config{Backend: b, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		a := &attended{e: e, backend: b}
		in, out := a.buffer(t, 4*op.Elements()), a.buffer(t, 4*op.Elements())
		a.write(t, in, gpuexec.BytesOf(x))
		if err := e.Submit(t.Context(), a.launch(t, op, in, out)); err != nil {
			t.Fatal(err)
		}
		outs = append(outs, slices.Clone(out.Mapped()))
		for _, f := range a.closeFirst {
			f()
		}
		e.Close(context.Background())
	})
	for _, out := range outs {
		if !bytes.Equal(out, outs[len(outs)-1]) {
			t.Error("an instruction set has other bits than the portable one, which runs the kernel")
		}
	}
}

// launched is an attention on a queue, with an out that is larger than it takes.
type launched struct {
	queue   *queue
	program *product
	args    []gpuexec.DeviceArg
}

func newLaunched(t testing.TB, op ops.Op) *launched {
	b, _ := New("auto")
	return newLaunchedOn(t, b, op)
}

func newLaunchedOn(t testing.TB, b *Backend, op ops.Op) *launched {
	d, err := b.Open(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	l := &launched{queue: newQueue(d.(*device)), program: &product{op: attentions, set: b.set}}
	row := 4 * op.Elements()
	for _, bytes := range []int64{row, row, row, 4 * (op.Dims[3] + 1), row + 4*128} {
		m, err := d.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		l.args = append(l.args, gpuexec.DeviceArg{Kind: gpuexec.ParamBuffer, Memory: m, Bytes: bytes})
		for i, list := 0, l.floats(len(l.args)-1); i < len(list); i++ {
			list[i] = float32(i%7) - 3
		}
	}
	l.dims(op)
	return l
}

func (l *launched) floats(arg int) []float32 { return floats(view(l.args[arg])) }

// dims gives the numbers behind the tensors.
func (l *launched) dims(op ops.Op) {
	l.args = l.args[:5]
	for _, n := range op.Dims[:4] {
		l.args = append(l.args, gpuexec.DeviceArg{Kind: gpuexec.ParamU32, Value: uint64(n)})
	}
	l.args = append(l.args, gpuexec.DeviceArg{Kind: gpuexec.ParamF32, Value: uint64(math.Float32bits(op.Scale))})
}

func (l *launched) run(t testing.TB, grid int) error {
	err := l.queue.Launch(t.Context(), l.program, l.args, gpuexec.Size{grid, 1, 1}, gpuexec.Size{1, 1, 1})
	return errors.Join(err, l.queue.Finish(t.Context()))
}

// E3: no list of starts has a launch write outside of its rows; one that does not ascend
// from 0 to the tokens is ErrInvalid, with nothing written.
func FuzzStarts(f *testing.F) {
	const tokens, heads, width, sequences = 20, 2, 8, 4
	op := ops.New(ops.Attention, tokens, heads, width, sequences)
	op.Scale = 0.5
	l := newLaunched(f, op)
	list := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(l.floats(3)))), sequences+1)
	for _, s := range [][5]int32{{0, 7, 7, 19, 20}, {0, 20, 20, 20, 20}, {0, 0, 0, 0, 0}, {-1, 7, 9, 19, 20}, {0, 7, 5, 19, 20},
		{0, 7, 9, 19, 21}, {0, math.MaxInt32, math.MinInt32, -5, 20}, {1, 2, 3, 4, 20}} {
		f.Add(s[0], s[1], s[2], s[3], s[4])
	}
	f.Fuzz(func(t *testing.T, a, b, c, d, e int32) {
		copy(list, []int32{a, b, c, d, e})
		out := l.floats(4)
		for i := range out {
			out[i] = 7
		}
		err := l.run(t, heads*sequences)
		right := a == 0 && e == tokens && slices.IsSorted(list)
		if right != (err == nil) || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("%v: %v", list, err)
		}
		for i, v := range out {
			if written := i < tokens*heads*width && right; written == (v == 7) {
				t.Fatalf("%v: number %d is %v", list, i, v)
			}
		}
	})
}

// E3: dimensions that are none, or that the tensors are too small for, reach no tensor,
// and neither does a grid of more blocks than there are.
func TestAttentionChecksItsDimensions(t *testing.T) {
	op := ops.New(ops.Attention, 20, 2, 8, 1)
	op.Scale = 0.5
	l := newLaunched(t, op)
	copy(view(l.args[3]), gpuexec.BytesOf([]int32{0, 20}))
	for _, grid := range []int{1, 2} {
		if err := l.run(t, grid); err != nil {
			t.Fatalf("grid of %d: %v", grid, err)
		}
	}
	if err := l.run(t, 3); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a grid of 3 blocks: %v, want ErrInvalid", err)
	}
	for _, d := range [][4]int64{{0, 2, 8, 1}, {20, 0, 8, 1}, {20, 2, 0, 1}, {20, 2, 8, 0}, {21, 2, 8, 1}, {20, 3, 8, 1}, {20, 2, 9, 1}, {20, 2, 8, 2},
		{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}, {20, 2, 8, math.MaxUint32}, {1 << 31, 1, 1, 1}, {20, 1 << 31, 1 << 31, 1}} {
		l.dims(ops.New(ops.Attention, d[:]...))
		if err := l.run(t, 1); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("dimensions %v: %v, want ErrInvalid", d, err)
		}
	}
}

// E4: an attention allocates nothing once its queue has seen the longest sequence.
func TestAttentionAllocatesNothing(t *testing.T) {
	op := ops.New(ops.Attention, 100, 2, 32, 2)
	op.Scale = 0.5
	l := newLaunched(t, op)
	copy(view(l.args[3]), gpuexec.BytesOf([]int32{0, 0, 100}))
	at := 0
	launch := func() {
		at = (at + 7) % 100
		binary.LittleEndian.PutUint32(view(l.args[3])[4:], uint32(at))
		if err := l.run(t, 4); err != nil {
			t.Fatal(err)
		}
	}
	launch()
	at = 93 // now all of it is one sequence
	launch()
	if n := testing.AllocsPerRun(50, launch); n > 0 {
		t.Errorf("%v allocations a launch", n)
	}
}

// BenchmarkAttention has both do the attention of MiniLM's 6 layers in turns. It gives
// the time of a layer, median and least, and how many times as long the five take.
func BenchmarkAttention(b *testing.B) {
	backend, _ := New("auto")
	for _, tokens := range []int64{8, 14, 32, 128, 512} {
		b.Run(fmt.Sprint(tokens), func(b *testing.B) {
			a := newAttended(b, backend, tokens, 12, 32)
			a.fill(b, rand.New(rand.NewPCG(1, 2)))
			one, five := slices.Repeat(a.one, 6), slices.Repeat(a.five, 6)
			timed := func(launches []gpuexec.Launch) float64 {
				begin := time.Now()
				if err := a.e.Submit(b.Context(), launches...); err != nil {
					b.Fatal(err)
				}
				return float64(time.Since(begin).Nanoseconds()) / 1e3
			}
			var took [2][]float64
			for b.Loop() {
				took[0] = append(took[0], timed(one))
				took[1] = append(took[1], timed(five))
			}
			median := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
			one6, five6 := median(took[0]), median(took[1])
			b.ReportMetric(one6/6, "us/median")
			b.ReportMetric(took[0][0]/6, "us/least")
			b.ReportMetric(five6/one6, "x/median")
			b.ReportMetric(took[1][0]/took[0][0], "x/least")
		})
	}
}

// E1: no turn has all heads of a long sequence, which take as long as the launch, however many
// short ones there are.
func TestTurnsAreEven(t *testing.T) {
	const short, heads, width, long = 300, 12, 32, 512
	op := ops.New(ops.Attention, short+long, heads, width, short+1)
	op.Scale = 0.5
	b, _ := New("auto")
	for _, longest := range []int{0, 150, 300} {
		starts := make([]int32, short+2)
		for i := range short + 1 {
			starts[i+1] = starts[i] + 1
			if i == longest {
				starts[i+1] += long - 1
			}
		}
		q, p, args := launchedOp(t, b, op, gpuexec.BytesOf(starts))
		all, takes, err := q.bind(p, args, b.blocks(op))
		if err != nil {
			t.Fatal(err)
		}
		most := max(1, int(time.Duration(b.blocks(op))*turn/takes))
		out := floats(view(args[4]))
		for first := 0; first < b.blocks(op); first += most {
			for i := range out {
				out[i] = 77
			}
			if err := all.run(t.Context(), first, min(first+most, b.blocks(op)), &q.team.own); err != nil {
				t.Fatal(err)
			}
			row, wrote := out[longest*heads*width:][:heads*width], 0
			for h := range heads {
				if row[h*width] != 77 {
					wrote++
				}
			}
			if wrote > 2 {
				t.Errorf("blocks %d to %d have %d of the long sequence's heads", first, first+most, wrote)
			}
		}
		closeAll(q, p)
	}
}

// E8: scratch memory that shorter sequences have left serves longer ones.
func TestScratchServesAnyLength(t *testing.T) {
	for first := 1; first < 20; first++ {
		for tokens := 1; tokens < 50; tokens++ {
			s := new(scratch)
			s.start(first, first)
			for i, x := range s.start(tokens, tokens+widest) {
				if i < tokens && x != 0 || i >= tokens && !math.IsInf(float64(x), -1) {
					t.Fatalf("%d tokens after %d: number %d is %v", tokens, first, i, x)
				}
			}
		}
	}
}
