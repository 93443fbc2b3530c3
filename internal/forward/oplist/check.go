package oplist

import (
	"maps"
	"slices"
	"strings"
)

// shapes holds what each kind asks of its dims and weights.
var shapes = map[Kind]func(*Op, fields){
	Gather:      gatherShape,
	Add:         addShape,
	LayerNorm:   layerNormShape,
	MatMul:      matMulShape,
	Reorder:     reorderShape,
	BatchMatMul: batchMatMulShape,
	Softmax:     unchangedShape,
	Eltwise:     unchangedShape,
	Slice:       sliceShape,
}

func kindNames() string {
	names := slices.Sorted(maps.Keys(shapes))
	text := make([]string, len(names))
	for i, n := range names {
		text[i] = string(n)
	}
	return strings.Join(text, ", ")
}

// check compares the operation's dims and weights with its kind and gives the
// weights their roles.
func (op *Op) check(f fields) {
	want := 1
	if op.Kind == Add || op.Kind == BatchMatMul {
		want = 2
	}
	if len(op.Src) != want {
		f.fail("src", "%d inputs; a %s has %d", len(op.Src), op.Kind, want)
	}
	shapes[op.Kind](op, f)
}

// roles gives the operation's weights these roles if they have these shapes.
// A shape of 0 at some place takes any size there.
func (op *Op) roles(f fields, roles []Role, shapes ...[]int) {
	if len(op.Weights) < len(roles) {
		f.fail("weights", "the %s is missing: a %s needs %s", roles[len(op.Weights)], op.Kind, roleNames(roles))
	}
	if len(op.Weights) > len(roles) {
		f.fail("weights", "too many: a %s has %s", op.Kind, roleNames(roles))
	}
	for i, role := range roles {
		w := &op.Weights[i]
		fits := len(w.Shape) == len(shapes[i])
		for d := 0; fits && d < len(w.Shape); d++ {
			fits = shapes[i][d] == 0 || shapes[i][d] == w.Shape[d]
		}
		if !fits {
			f.fail("weights", "the shape of %s does not fit src and dst as %s of a %s", w.Name, role, op.Kind)
		}
		w.Role = role
	}
}

func roleNames(roles []Role) string {
	if len(roles) == 0 {
		return "none"
	}
	text := make([]string, len(roles))
	for i, r := range roles {
		text[i] = string(r)
	}
	return strings.Join(text, " and ")
}

// last is the constant size of the last dim.
func last(dims []Dim) (int, bool) { return dims[len(dims)-1].constant() }

func gatherShape(op *Op, f fields) {
	width, ok := last(op.Dst)
	if n := len(op.Dst) - 1; !ok || !equalDims(op.Dst[:n], op.Src[0]) {
		f.fail("dst", "is not src and a width: a gather of [B,S] ids gives [B,S,H]")
	}
	op.roles(f, []Role{Table}, []int{0, width})
}

func addShape(op *Op, f fields) {
	x, y := op.Src[0], op.Src[1]
	if !equalDims(op.Dst, x) {
		f.fail("dst", "is not the first src; an add keeps its dims")
	}
	if len(op.Weights) == 0 {
		if !equalDims(x, y) {
			f.fail("src", "the two inputs differ; an add without a weight has two of the same dims")
		}
		return
	}
	one, _ := y[0].constant()
	width, ok := last(x)
	if len(x) != 3 || len(y) != 3 || one != 1 || !ok || !equalDims(x[1:], y[1:]) {
		f.fail("src", "an add with a weight has [B,S,H] and [1,S,H]")
	}
	op.roles(f, []Role{Position}, []int{0, width})
}

func layerNormShape(op *Op, f fields) {
	unchangedDims(op, f)
	width, ok := last(op.Dst)
	if !ok {
		f.fail("dst", "the last dim is not a number; a layernorm is over a fixed width")
	}
	op.roles(f, []Role{Gamma, Beta}, []int{width}, []int{width})
}

func matMulShape(op *Op, f fields) {
	if len(op.Src[0]) != 2 || len(op.Dst) != 2 || op.Src[0][0].text != op.Dst[0].text {
		f.fail("dst", "a matmul of [M,K] gives [M,N]")
	}
	k, okK := last(op.Src[0])
	n, okN := last(op.Dst)
	if !okK || !okN {
		f.fail("dst", "the last dims of src and dst are not both numbers")
	}
	if len(op.Weights) == 1 { // a bias is not always there
		op.roles(f, []Role{Kernel}, []int{k, n})
		return
	}
	op.roles(f, []Role{Kernel, Bias}, []int{k, n}, []int{n})
}

func reorderShape(op *Op, f fields) {
	if len(op.Dst) != len(op.Src[0]) {
		f.fail("dst", "has another number of dims than src")
	}
	for i, from := range op.Attr.Perm {
		if op.Dst[i].text != op.Src[0][from].text {
			f.fail("dst", "is not src in the order that perm gives")
		}
	}
	op.roles(f, nil)
}

func batchMatMulShape(op *Op, f fields) {
	x, y, n := op.Src[0], op.Src[1], len(op.Dst)
	if n != 4 || len(x) != n || len(y) != n {
		f.fail("src", "a batch_matmul has sources and a dst of 4 dims")
	}
	if !equalDims(x[:2], y[:2]) || !equalDims(x[:3], op.Dst[:3]) || x[3].text != y[2].text || y[3].text != op.Dst[3].text {
		f.fail("src", "[B,H,M,K] times [B,H,K,N] gives [B,H,M,N]; these do not")
	}
	op.roles(f, nil)
}

func unchangedShape(op *Op, f fields) {
	unchangedDims(op, f)
	op.roles(f, nil)
}

func unchangedDims(op *Op, f fields) {
	if !equalDims(op.Dst, op.Src[0]) {
		f.fail("dst", "is not src; a %s keeps its dims", op.Kind)
	}
}

func sliceShape(op *Op, f fields) {
	src := op.Src[0]
	if len(src) != 3 || len(op.Dst) != 2 || src[0].text != op.Dst[0].text || src[2].text != op.Dst[1].text {
		f.fail("dst", "a slice of [B,S,H] gives the first token of each, [B,H]")
	}
	op.roles(f, nil)
}

// symbolic tells whether any dim depends on a symbol.
func (op *Op) symbolic() bool {
	for _, dims := range append(slices.Clone(op.Src), op.Dst) {
		for _, d := range dims {
			if _, ok := d.constant(); !ok {
				return true
			}
		}
	}
	return false
}
