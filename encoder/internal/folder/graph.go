package folder

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
)

// operations are those that exports of BERT consist of, a pooling behind it among them.
var operations = strings.Fields(`Constant ConstantOfShape Shape Gather Unsqueeze Squeeze Slice Concat Split Reshape Flatten Transpose Expand
	Identity Cast CastLike Range Where Equal Not And Or Less LessOrEqual Greater GreaterOrEqual IsNaN Trilu Min Max Clip
	Add Sub Mul Div Neg Abs Pow Sqrt Reciprocal ReduceMean ReduceSum ReduceMax ReduceL2 MatMul Gemm Softmax Erf Gelu Tanh LayerNormalization`)

// agrees refuses the graph of an ONNX model that is not the one that the config describes:
// weights are read from it, and nothing else of it is computed.
func (c config) agrees(file string, nodes []tensorfile.Node) error {
	count := map[string]int{}
	if !strings.HasSuffix(file, ".onnx") {
		return nil
	}
	for i, n := range nodes {
		count[n.Op]++
		name := cmp.Or(n.Name, n.Op)
		no := func(what string) error {
			return refuse(fault.ErrUnsupported, file, "", "has the node %.200q (%d of %d), which %s", name, i+1, len(nodes), what)
		}
		switch {
		case n.Domain != "" && n.Domain != "ai.onnx", !slices.Contains(operations, n.Op):
			return no("is a " + cmp.Or(n.Domain, "ai.onnx") + "." + n.Op + ", and no BERT as PyTorch exports it has that: export the model in float32, neither optimised nor quantised")
		case n.Op == "Gelu" && cmp.Or(n.Attributes["approximate"], "none") != "none":
			return no("approximates GELU")
		case n.Op == "Gemm":
			for name, want := range map[string]string{"alpha": "1", "beta": "1", "transA": "0"} {
				if got := cmp.Or(n.Attributes[name], want); got != want {
					return no("has an " + name + " that is not " + want)
				}
			}
		}
	}
	switch activations := count["Erf"] + count["Gelu"]; {
	case activations != c.layers:
		return refuse(fault.ErrInvalid, file, "", "has %d nodes Erf or Gelu, though %s says %d layers: their activation is another one, or the config is of another model", activations, c.file, c.layers)
	case count["Tanh"] > 1: // the pooler's
		return refuse(fault.ErrUnsupported, file, "", "has %d nodes Tanh, want that of the pooler alone", count["Tanh"])
	}
	return nil
}
