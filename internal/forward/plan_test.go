package forward

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

func builtIn(t testing.TB, name string) *oplist.Model {
	t.Helper()
	text, ok := data.Model(name)
	if !ok {
		t.Fatalf("no model %s", name)
	}
	list, err := oplist.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// K4: two batched products of the same dims are two kernels where one of them reads its second
// operand transposed.
func TestTransposedIsNotAlike(t *testing.T) {
	list := builtIn(t, "bert_tiny_l2_h128")
	n := len(list.Ops)
	i := slices.IndexFunc(list.Ops, func(op oplist.Op) bool { return op.TransposeB })
	turned := list.Ops[i]
	turned.TransposeB = false
	list.Ops = append(list.Ops, turned, list.Ops[i])
	if first := firsts(list); first[n] != n || first[n+1] != i {
		t.Errorf("the first alike of operation %d, turned and again: %v, want %d and %d", i, first[n:], n, i)
	}
}

// Each kind becomes the operation that computes it, with every dimension.
func TestLower(t *testing.T) {
	list := builtIn(t, "bert_tiny_l2_h128")
	bound, err := list.At(3, 20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, b := range bound {
		op, err := lower(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := op.Validate(); err != nil {
			t.Error(err)
		}
		if op.Elements() != int64(b.Elements()) {
			t.Errorf("%s: %d elements, the list has %d", op, op.Elements(), b.Elements())
		}
		seen[op.String()]++
	}
	scale := ops.New(ops.BatchMatMul, 3, 2, 20, 64, 20)
	scale.Scale, scale.TransposeB = 0.125, true
	context := ops.New(ops.BatchMatMul, 3, 2, 20, 20, 64)
	context.MaskK = true
	norm := ops.New(ops.LayerNorm, 60, 128)
	norm.Epsilon = 1e-12
	product := func(m, k, n int64) ops.Op {
		op := ops.New(ops.MatMul, m, k, n)
		op.Bias = true
		return op
	}
	want := map[string]int{}
	for op, n := range map[ops.Op]int{
		ops.New(ops.Gather, 60, 128, 30522): 1,
		ops.New(ops.Gather, 60, 128, 2):     1,
		ops.New(ops.Add, 60, 128, 60):       5, // the types', and two residuals a layer
		ops.New(ops.Add, 60, 128, 20):       1, // positions, repeated for each request
		norm:                                5,
		product(60, 128, 128):               8,
		product(60, 128, 512):               2,
		product(60, 512, 128):               2,
		product(3, 128, 128):                1,
		scale:                               2,
		context:                             2,
		ops.New(ops.Softmax, 3, 2, 20, 20):  2,
		ops.New(ops.Reorder, 3, 20, 2, 64):  6,
		ops.New(ops.Reorder, 3, 2, 20, 64):  2,
		ops.New(ops.GELU, 60, 512):          2,
		ops.New(ops.Tanh, 3, 128):           1,
		ops.New(ops.Slice, 3, 20, 128):      1,
	} {
		want[op.String()] = n
	}
	for op, n := range want {
		if seen[op] != n {
			t.Errorf("%d of %s, want %d", seen[op], op, n)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("%d different operations, want %d: %v", len(seen), len(want), seen)
	}
}

// What no device operation computes is refused, with its line and name.
func TestLowerUnsupported(t *testing.T) {
	op := func(kind oplist.Kind, attr oplist.Attr, dims ...int) oplist.BoundOp {
		return oplist.BoundOp{Op: &oplist.Op{Kind: kind, Name: "odd", Line: 7, Attr: attr}, Src: [][]int{dims, dims}, Dst: dims}
	}
	for what, b := range map[string]oplist.BoundOp{
		"another permutation": op(oplist.Reorder, oplist.Attr{Perm: []int{0, 1, 3, 2}}, 1, 2, 3, 4),
		"a matrix transposed": op(oplist.Reorder, oplist.Attr{Perm: []int{1, 0}}, 3, 4),
		"a softmax of 3 dims": op(oplist.Softmax, oplist.Attr{}, 2, 3, 4),
		"another function":    op(oplist.Eltwise, oplist.Attr{Alg: "relu"}, 3, 4),
		"another kind":        op("conv", oplist.Attr{}, 3, 4),
		"a product of 3 dims": op(oplist.BatchMatMul, oplist.Attr{Scale: 1}, 2, 3, 3),
	} {
		got, err := lower(b)
		typed, ok := errors.AsType[*fault.Error](err)
		if !ok || !errors.Is(err, fault.ErrUnsupported) || typed.Key != "odd" {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
}

func (p part) overlaps(o part) bool {
	return p.offset < o.offset+o.bytes && o.offset < p.offset+p.bytes
}

// INVARIANT: no operation writes where a value lies that is read later, its own
// inputs included. The readers of a value are taken from the operations' inputs here,
// not from what the list says is released.
func TestPlacementKeepsWhatIsRead(t *testing.T) {
	lib, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	models := map[string]*Model{}
	for _, name := range data.Models() {
		list := builtIn(t, name)
		models[name] = &Model{list: list, lib: lib, names: make([]kiln.NameID, len(list.Ops)), alike: firsts(list)}
	}
	var before plan // another
	rapid.Check(t, func(t *rapid.T) {
		m := models[rapid.SampledFrom(data.Models()).Draw(t, "model")]
		m.align = rapid.SampledFrom([]int64{1, alignment, 512}).Draw(t, "align")
		align := max(m.align, alignment)
		batch, tokens := rapid.IntRange(1, 5).Draw(t, "batch"), rapid.IntRange(1, m.list.MaxTokens).Draw(t, "tokens")
		p, err := newPlan(m, batch, tokens, false, before)
		if err != nil {
			t.Fatal(err)
		}
		before = *p
		for i, s := range p.steps {
			if op, err := lower(s.bound); err != nil || op != s.op {
				t.Fatalf("step %d is lowered to %s, want %s, %v", i, s.op, op, err)
			}
		}
		last := make([]int, len(p.steps)) // its last reader
		for i, s := range p.steps {
			for _, in := range s.bound.Inputs {
				if in >= 0 {
					last[in] = i
				}
			}
		}
		last[len(last)-1] = len(p.steps) // the caller
		total := int64(0)
		for i, s := range p.steps {
			total += s.output.bytes
			if s.output.bytes < 4*int64(s.bound.Elements()) || s.output.offset%align != 0 || s.output.offset < 0 || s.output.offset+s.output.bytes > p.arena {
				t.Fatalf("step %d: %+v for %d elements in %d bytes", i, s.output, s.bound.Elements(), p.arena)
			}
			for _, in := range p.inputs {
				if s.output.overlaps(in) {
					t.Fatalf("step %d writes %+v over the input %+v", i, s.output, in)
				}
			}
			for before := range i {
				if o := p.steps[before].output; last[before] >= i && s.output.overlaps(o) {
					t.Fatalf("step %d writes %+v over %+v of step %d, which step %d reads", i, s.output, o, before, last[before])
				}
			}
		}
		if p.output != p.steps[len(p.steps)-1].output {
			t.Fatalf("the output is at %+v", p.output)
		}
		if p.arena > total/2+3*align {
			t.Fatalf("an arena of %d bytes for %d: nothing is used again", p.arena, total)
		}
	})
}

// The arena hands no byte out twice, and is one piece again in the end.
func TestArena(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := arena{align: rapid.SampledFrom([]int64{alignment, 512}).Draw(t, "align")}
		var live []part
		give := func(i int) {
			a.give(live[i])
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "give") {
				give(rapid.IntRange(0, len(live)-1).Draw(t, "which"))
				continue
			}
			bytes := rapid.Int64Range(1, 5*alignment).Draw(t, "bytes")
			p := a.take(bytes)
			if p.bytes < bytes || p.offset%a.align != 0 || p.offset+p.bytes > a.high {
				t.Fatalf("%d bytes at %+v below %d", bytes, p, a.high)
			}
			for _, o := range live {
				if p.overlaps(o) {
					t.Fatalf("%+v overlaps %+v", p, o)
				}
			}
			live = append(live, p)
		}
		for len(live) > 0 {
			give(0)
		}
		if len(a.free) != 1 || a.free[0] != (part{0, a.high}) {
			t.Fatalf("free %+v below %d", a.free, a.high)
		}
	})
}
