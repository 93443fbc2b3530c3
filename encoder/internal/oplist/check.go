package oplist

import (
	"maps"
	"slices"
	"strings"
)

// shapes holds what each kind asks of its dims and weights. It returns the
// field and what is wrong there, or two empty texts.
var shapes = map[Kind]func(*Op) (field, text string){
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
func (op *Op) check(f fields) error {
	want := 1
	if op.Kind == Add || op.Kind == BatchMatMul {
		want = 2
	}
	if len(op.Src) != want {
		return f.errorf("src", "%d inputs; a %s has %d", len(op.Src), op.Kind, want)
	}
	if field, text := shapes[op.Kind](op); text != "" {
		return f.errorf(field, "%s", text)
	}
	return nil
}

// roles gives the operation's weights these roles if they have these shapes.
// A shape of 0 at some place takes any size there.
func (op *Op) roles(roles []Role, shapes ...[]int) (string, string) {
	if len(op.Weights) < len(roles) {
		return "weights", "the " + string(roles[len(op.Weights)]) + " is missing: a " + string(op.Kind) + " needs " + roleNames(roles)
	}
	if len(op.Weights) > len(roles) {
		return "weights", "too many: a " + string(op.Kind) + " has " + roleNames(roles)
	}
	for i, role := range roles {
		w := &op.Weights[i]
		fits := len(w.Shape) == len(shapes[i])
		for d := 0; fits && d < len(w.Shape); d++ {
			fits = shapes[i][d] == 0 || shapes[i][d] == w.Shape[d]
		}
		if !fits {
			return "weights", "the shape of " + w.Name + " does not fit src and dst as " + string(role) + " of a " + string(op.Kind)
		}
		w.Role = role
	}
	return "", ""
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

func gatherShape(op *Op) (string, string) {
	width, ok := last(op.Dst)
	if n := len(op.Dst) - 1; !ok || !equalDims(op.Dst[:n], op.Src[0]) {
		return "dst", "is not src and a width: a gather of [B,S] ids gives [B,S,H]"
	}
	return op.roles([]Role{Table}, []int{0, width})
}

func addShape(op *Op) (string, string) {
	x, y := op.Src[0], op.Src[1]
	if !equalDims(op.Dst, x) {
		return "dst", "is not the first src; an add keeps its dims"
	}
	if len(op.Weights) == 0 {
		if !equalDims(x, y) {
			return "src", "the two inputs differ; an add without a weight has two of the same dims"
		}
		return "", ""
	}
	one, _ := y[0].constant()
	width, ok := last(x)
	if len(x) != 3 || len(y) != 3 || one != 1 || !ok || !equalDims(x[1:], y[1:]) {
		return "src", "an add with a weight has [B,S,H] and [1,S,H]"
	}
	return op.roles([]Role{Position}, []int{0, width})
}

func layerNormShape(op *Op) (string, string) {
	if field, text := unchangedDims(op); text != "" {
		return field, text
	}
	width, ok := last(op.Dst)
	if !ok {
		return "dst", "the last dim is not a number; a layernorm is over a fixed width"
	}
	return op.roles([]Role{Gamma, Beta}, []int{width}, []int{width})
}

func matMulShape(op *Op) (string, string) {
	if len(op.Src[0]) != 2 || len(op.Dst) != 2 || op.Src[0][0].text != op.Dst[0].text {
		return "dst", "a matmul of [M,K] gives [M,N]"
	}
	k, okK := last(op.Src[0])
	n, okN := last(op.Dst)
	if !okK || !okN {
		return "dst", "the last dims of src and dst are not both numbers"
	}
	if len(op.Weights) == 1 { // a bias is not always there
		return op.roles([]Role{Kernel}, []int{k, n})
	}
	return op.roles([]Role{Kernel, Bias}, []int{k, n}, []int{n})
}

func reorderShape(op *Op) (string, string) {
	if len(op.Dst) != len(op.Src[0]) {
		return "dst", "has another number of dims than src"
	}
	for i, from := range op.Attr.Perm {
		if op.Dst[i].text != op.Src[0][from].text {
			return "dst", "is not src in the order that perm gives"
		}
	}
	return op.roles(nil)
}

func batchMatMulShape(op *Op) (string, string) {
	x, y, n := op.Src[0], op.Src[1], len(op.Dst)
	if n != 4 || len(x) != n || len(y) != n {
		return "src", "a batch_matmul has sources and a dst of 4 dims"
	}
	if !equalDims(x[:2], y[:2]) || !equalDims(x[:3], op.Dst[:3]) || x[3].text != y[2].text || y[3].text != op.Dst[3].text {
		return "src", "[B,H,M,K] times [B,H,K,N] gives [B,H,M,N]; these do not"
	}
	return op.roles(nil)
}

func unchangedShape(op *Op) (string, string) {
	if field, text := unchangedDims(op); text != "" {
		return field, text
	}
	return op.roles(nil)
}

func unchangedDims(op *Op) (string, string) {
	if !equalDims(op.Dst, op.Src[0]) {
		return "dst", "is not src; a " + string(op.Kind) + " keeps its dims"
	}
	return "", ""
}

func sliceShape(op *Op) (string, string) {
	src := op.Src[0]
	if len(src) != 3 || len(op.Dst) != 2 || src[0].text != op.Dst[0].text || src[2].text != op.Dst[1].text {
		return "dst", "a slice of [B,S,H] gives the first token of each, [B,H]"
	}
	return op.roles(nil)
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
