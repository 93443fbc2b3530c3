package onednn

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// The layer that is trained is BERT-base's, with two sequences of 3 tokens.
const (
	batch, length, heads, wide64, inner = 2, 3, 12, 64, 3072
	rows, hidden                        = batch * length, heads * wide64
	scaling, epsilon                    = 0.125, 1e-12
	prefix                              = "bert/encoder/layer_0/"
)

// trained is an operation of the list of a training step.
type trained struct {
	Number                  int `json:"i"`
	Kind, Name, Attr, Phase string
	Src                     [][]any
	Dst                     []any
	Weights                 []struct{ Name string }
	Forward                 int `json:"fwd_i"` // of a backward one
}

// stepOf is the list of one layer: forward, and backward in the order of the step.
func stepOf(t testing.TB) (list []trained) {
	t.Helper()
	text, err := os.ReadFile("testdata/layer_train.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var o trained
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		o.Name = strings.TrimPrefix(o.Name, prefix)
		list = append(list, o)
	}
	return list
}

// dimensions are those that the list has, for this batch.
func dimensions(list []any) (out []int64) {
	for _, v := range list {
		switch v := v.(type) {
		case float64:
			out = append(out, int64(v))
		case string:
			out = append(out, map[string]int64{"B": batch, "S": length, "B*S": rows}[v])
		}
	}
	return out
}

// feeds says whose results an operation takes: data forward, a gradient backward, which is
// the sum of several where a result went to several operations. The list leaves that out.
var feeds = map[string]string{
	"attention/self/query": "x", "attention/self/key": "x", "attention/self/value": "x",
	"attention/self/transpose_query": "attention/self/query",
	"attention/self/transpose_key":   "attention/self/key",
	"attention/self/transpose_value": "attention/self/value",
	"attention/self/QK":              "attention/self/transpose_query attention/self/transpose_key",
	"attention/self/softmax":         "attention/self/QK",
	"attention/self/PV":              "attention/self/softmax attention/self/transpose_value",
	"attention/self/merge_heads":     "attention/self/PV",
	"attention/output/dense":         "attention/self/merge_heads",
	"attention/output/residual":      "attention/output/dense x",
	"attention/output/LayerNorm":     "attention/output/residual",
	"intermediate/dense":             "attention/output/LayerNorm",
	"intermediate/gelu":              "intermediate/dense",
	"output/dense":                   "intermediate/gelu",
	"output/residual":                "output/dense attention/output/LayerNorm",
	"output/LayerNorm":               "output/residual",

	"output/LayerNorm/bwd":               "dy",
	"output/dense/bwd":                   "output/LayerNorm/bwd",
	"intermediate/gelu/bwd":              "output/dense/bwd_data",
	"intermediate/dense/bwd":             "intermediate/gelu/bwd",
	"attention/output/LayerNorm/bwd":     "intermediate/dense/bwd_data output/LayerNorm/bwd",
	"attention/output/dense/bwd":         "attention/output/LayerNorm/bwd",
	"attention/self/merge_heads/bwd":     "attention/output/dense/bwd_data",
	"attention/self/PV/bwd":              "attention/self/merge_heads/bwd",
	"attention/self/softmax/bwd":         "attention/self/PV/bwd_lhs",
	"attention/self/QK/bwd":              "attention/self/softmax/bwd",
	"attention/self/transpose_query/bwd": "attention/self/QK/bwd_lhs",
	"attention/self/transpose_key/bwd":   "attention/self/QK/bwd_rhs",
	"attention/self/transpose_value/bwd": "attention/self/PV/bwd_rhs",
	"attention/self/query/bwd":           "attention/self/transpose_query/bwd",
	"attention/self/key/bwd":             "attention/self/transpose_key/bwd",
	"attention/self/value/bwd":           "attention/self/transpose_value/bwd",
	"dx":                                 "attention/self/query/bwd_data attention/self/key/bwd_data attention/self/value/bwd_data attention/output/LayerNorm/bwd",
}

// fed are the names of what an operation takes.
func (o *trained) fed() []string {
	name, _, cut := strings.Cut(o.Name, "_data")
	if !cut {
		name, _, _ = strings.Cut(o.Name, "_weights")
	}
	return strings.Fields(feeds[strings.TrimSuffix(strings.TrimSuffix(name, "_lhs"), "_rhs")])
}

// turned is a tensor with two dimensions the other way round, in the same bytes.
func turned(t tensor, a, b int) tensor {
	t.Dims, t.Strides = slices.Clone(t.Dims), slices.Clone(t.Strides)
	t.Dims[a], t.Dims[b] = t.Dims[b], t.Dims[a]
	t.Strides[a], t.Strides[b] = t.Strides[b], t.Strides[a]
	return t
}

// request is what an operation of the list asks for.
func (o *trained) request(t testing.TB) primitive.Spec {
	var src []tensor
	for _, s := range o.Src {
		src = append(src, Dense("f32", dimensions(s)...))
	}
	dst, x := Dense("f32", dimensions(o.Dst)...), src[0]
	norm := []param{float("epsilon", epsilon), {Name: "scale"}, {Name: "shift"}}
	kernel := func(in, out int64) tensor { return turned(Dense("f32", in, out), 0, 1) } // the list's are in by out
	switch o.Kind + " " + o.Phase {
	case "matmul ":
		return spec("inner_product", "forward_training", "", nil, x, kernel(x.Dims[1], dst.Dims[1]), Dense("f32", dst.Dims[1]), dst)
	case "matmul bwd_data":
		return spec("inner_product", "backward_data", "", nil, dst, kernel(dst.Dims[1], x.Dims[1]), x)
	case "matmul bwd_weights":
		return spec("inner_product", "backward_weights", "", nil, x, kernel(dst.Dims[0], dst.Dims[1]), Dense("f32", dst.Dims[1]), src[1])
	case "add ":
		return spec("binary", "", "add", nil, x, src[1], dst)
	case "layernorm ":
		return spec("layer_normalization", "forward_training", "", norm, x, dst, Dense("f32", rows))
	case "layernorm bwd":
		return spec("layer_normalization", "backward", "", norm, dst, x, x, Dense("f32", rows))
	case "softmax ":
		return spec("softmax", "forward_training", "accurate", []param{ints("axis", 3)}, x, dst)
	case "softmax bwd":
		return spec("softmax", "backward_data", "accurate", []param{ints("axis", 3)}, dst, x, x)
	case "eltwise ":
		return spec("eltwise", "forward_training", "gelu_erf", nil, x, dst)
	case "eltwise bwd":
		return spec("eltwise", "backward_data", "gelu_erf", nil, dst, x, x)
	case "reorder ", "reorder bwd":
		if o.Name == "attention/self/transpose_key/bwd" { // its gradient came the other way round
			x = turned(Dense("f32", x.Dims[0], x.Dims[1], x.Dims[3], x.Dims[2]), 2, 3)
		}
		s, err := primitive.Reorder([]tensor{turned(x, 1, 2), dst})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return o.batchProduct(src, dst)
}

// batchProduct is the request of a product of two inputs. Backward they are the gradient
// and the other input, which the list names as it was forward.
func (o *trained) batchProduct(src []tensor, dst tensor) primitive.Spec {
	if strings.HasSuffix(o.Name, "QK") || strings.HasSuffix(o.Name, "QK/bwd_lhs") { // keys are in rows
		src[1] = turned(Dense("f32", batch, heads, length, wide64), 2, 3)
	}
	switch {
	case strings.HasSuffix(o.Name, "lhs"):
		src[1] = turned(src[1], 2, 3)
	case strings.HasSuffix(o.Name, "rhs"):
		src[0] = turned(src[0], 2, 3)
	}
	s := spec("matmul", "", "", nil, src[0], src[1], tensor{}, dst)
	if strings.Contains(o.Attr, "scale") {
		s.Attr.PostOps = []primitive.PostOp{{Kind: "eltwise", Algorithm: "linear", Alpha: scaling}}
	}
	if o.Phase == "" && strings.Contains(o.Attr, "mask_add") {
		s.Attr.PostOps = append(s.Attr.PostOps, primitive.PostOp{Kind: "binary", Algorithm: "add", Source: Dense("f32", batch, 1, 1, length)})
	}
	return s
}

// memories are the arguments of an execution.
type memories map[Slot]*Memory

// result is what an operation computes for the next one.
func (m memories) result() *Memory {
	for _, slot := range []Slot{DiffSrc, DiffWeights, Dst} {
		if m[slot] != nil {
			return m[slot]
		}
	}
	return nil
}

// layer is a step of training: what its operations computed, by name.
type layer struct {
	*rig
	list    []trained
	weights map[string]*Memory
	mask    *Memory
	run     func(s primitive.Spec, given memories) ran
	done    map[string]ran
}

// ran is what an operation leaves for its backward ones: values alone (SPEC D7).
type ran struct {
	hints []tensor
	args  memories
}

// arguments completes what is given to what a primitive takes. What lies in another
// layout is looked at as the primitive wants it: the same bytes.
func (r *rig) arguments(p *primitive.Primitive, given memories) (args []Arg, all memories) {
	r.Helper()
	all = make(memories)
	for _, a := range p.Descriptor().Native().(*plan).args {
		m := given[a.slot]
		if m == nil || !same(&m.tensor, &a.tensor) {
			other := r.memory(a.tensor)
			if m != nil && copy(other.Bytes(), m.Bytes()) != len(m.Bytes()) {
				r.Fatalf("%v: %v for %v", a.slot, m.tensor, a.tensor)
			}
			m = other
		}
		args, all[a.slot] = append(args, Arg{a.slot, m}), m
	}
	return args, all
}

// forward runs the layer on an input.
func (l *layer) forward(x *Memory) {
	l.done["x"] = ran{args: memories{Dst: x}}
	for _, o := range l.list {
		if o.Phase != "" {
			continue
		}
		given := memories{PostOpSource(1): l.mask}
		for i, name := range o.fed() {
			slot := Src
			if i > 0 {
				slot = map[string]Slot{"add": Src1, "batch_matmul": Weights}[o.Kind]
			}
			given[slot] = l.done[name].args.result()
		}
		for i, w := range o.Weights {
			slot := map[string][]Slot{"matmul": {Weights, Bias}, "layernorm": {Scale, Shift}}[o.Kind][i]
			given[slot] = l.weights[w.Name]
		}
		l.done[o.Name] = l.run(o.request(l), given)
	}
}

// backward runs the layer's gradients, from that of its output.
func (l *layer) backward(dy *Memory) {
	l.done["dy"] = ran{args: memories{Dst: dy}}
	for _, o := range append(l.list[:len(l.list):len(l.list)], trained{Name: "dx"}) {
		if o.Phase == "" && o.Name != "dx" {
			continue
		}
		names := o.fed()
		diff := l.done[names[0]].args.result()
		if len(names) > 1 {
			diff = l.sum(names)
		}
		if o.Name == "dx" {
			l.done["dx"] = ran{args: memories{Dst: diff}}
			break
		}
		was := l.done[l.list[slices.IndexFunc(l.list, func(f trained) bool { return f.Number == o.Forward })].Name]
		s, given := o.request(l), memories{}
		switch {
		case strings.HasSuffix(o.Name, "lhs"):
			given[Src], given[Weights] = diff, was.args[Weights]
		case strings.HasSuffix(o.Name, "rhs"):
			given[Src], given[Weights] = was.args[Src], diff
		case o.Kind == "reorder":
			given[Src] = diff
		default:
			for slot, m := range was.args {
				given[slot] = m
			}
			given[DiffDst], s.Hints = diff, was.hints
		}
		l.done[o.Name] = l.run(s, given)
	}
}

// sum adds gradients up.
func (l *layer) sum(names []string) *Memory {
	given, shape := memories{}, Dense("f32", rows, hidden)
	var scales []float64
	for i, name := range names {
		given[Source(i)] = l.done[name].args.result()
		scales = append(scales, 1)
	}
	s, err := primitive.Sum(scales, slices.Repeat([]tensor{shape}, len(names)+1))
	if err != nil {
		l.Fatal(err)
	}
	return l.run(s, given).args[Dst]
}

// layerOf is a layer with weights that keep numbers near 1.
func layerOf(r *rig) *layer {
	l := &layer{rig: r, list: stepOf(r), weights: make(map[string]*Memory), done: make(map[string]ran)}
	for _, o := range l.list {
		if o.Phase != "" {
			continue
		}
		for i, w := range o.Weights {
			in, out := dimensions(o.Src[0])[1], dimensions(o.Dst)[1]
			t := Dense("f32", out)
			if o.Kind == "matmul" && i == 0 {
				t = turned(Dense("f32", in, out), 0, 1)
			}
			m := r.filled(uint64(100+o.Number+i), t)
			for n := range Of[float32](m) {
				switch {
				case len(t.Dims) == 2:
					Of[float32](m)[n] *= float32(1 / math.Sqrt(float64(in)))
				case o.Kind == "layernorm" && i == 0:
					Of[float32](m)[n] += 1.5
				}
			}
			l.weights[w.Name] = m
		}
	}
	l.mask = r.memory(Dense("f32", batch, 1, 1, length))
	Of[float32](l.mask)[batch*length-1] = -10000 // the second sequence is shorter
	return l
}
