package tensorfile

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Node is an operation of an ONNX model.
type Node struct {
	Name, Op, Domain string
	// Attributes that say which one it is, as texts: alpha, beta, transA and transB of a
	// Gemm, approximate of a Gelu.
	Attributes map[string]string
	inputs     [3]string
	output     string
}

func readNode(x field) (n Node, err error) {
	at := 0
	err = fields(x.at, x.bytes, func(x field) error {
		if x.kind != protowire.BytesType {
			return nil
		}
		to := &n.output
		switch x.number {
		case 1:
			if at++; at > len(n.inputs) {
				return nil
			}
			to = &n.inputs[at-1]
		case 2:
			if n.output != "" {
				return nil // the first is the one
			}
		case 3:
			to = &n.Name
		case 4:
			to = &n.Op
		case 5:
			return n.attribute(x)
		case 7:
			to = &n.Domain
		default:
			return nil
		}
		text, err := x.text()
		*to = text
		return err
	})
	return n, err
}

func (n *Node) attribute(x field) error {
	name, value := "", ""
	err := fields(x.at, x.bytes, func(x field) (err error) {
		switch {
		case x.is(1, protowire.BytesType):
			name, err = x.text()
		case x.is(2, protowire.Fixed32Type):
			value = strconv.FormatFloat(float64(math.Float32frombits(uint32(x.value))), 'g', -1, 32)
		case x.is(3, protowire.VarintType):
			value = strconv.FormatInt(int64(x.value), 10)
		case x.is(4, protowire.BytesType) && len(x.bytes) <= maxText:
			value = string(x.bytes)
		}
		return err
	})
	if slices.Contains([]string{"alpha", "beta", "transA", "transB", "approximate"}, name) {
		if n.Attributes == nil {
			n.Attributes = map[string]string{}
		}
		n.Attributes[name] = value
	}
	return err
}

// name gives kernels the names that PyTorch has for them. Exporters write a linear layer
// as a product and a sum, and store its kernel transposed under a name of their own; what
// keeps its name is the bias: x.bias is added to the product with x.weight.
func (o *onnx) name() error {
	operands, products := maps.Clone(o.tensors), map[string]Tensor{} // of nodes, as they are or transposed
	kernels := map[string]Tensor{}
	layer := func(bias string, kernel Tensor) error {
		layer, named := strings.CutSuffix(bias, ".bias")
		if _, stored := o.tensors[bias]; !named || !stored || len(kernel.Shape) != 2 {
			return nil
		}
		if k, twice := kernels[layer+".weight"]; twice && (k.begin != kernel.begin || k.in != kernel.in || k.Turned != kernel.Turned) {
			return &Error{File: o.File.name, Tensor: bias, Text: "is the bias of two products: which kernel is whose is not said"}
		}
		kernels[layer+".weight"] = kernel
		return nil
	}
	for i := range o.nodes {
		n := &o.nodes[i]
		x, stored := operands[n.inputs[0]]
		kernel, multiplied := operands[n.inputs[1]]
		var err error
		switch {
		case n.Op == "Identity" && stored:
			if operands[n.output] = x; !x.Turned {
				err = o.alias(n.output, x)
			}
		case n.Op == "Transpose" && stored && len(x.Shape) == 2: // of two dims, the default and all that is not Identity
			operands[n.output] = x.transposed(true)
		case n.Op == "MatMul" && multiplied:
			products[n.output] = kernel.transposed(true)
		case n.Op == "Gemm" && multiplied:
			err = layer(n.inputs[2], kernel.transposed(n.Attributes["transB"] != "1"))
		case n.Op == "Add":
			for at, bias := range n.inputs[:2] {
				if product, ok := products[n.inputs[1-at]]; ok && err == nil {
					err = layer(bias, product)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	maps.Copy(o.tensors, kernels)
	for name, t := range o.tensors { // it may be stored either way
		layer, is := strings.CutSuffix(name, ".weight")
		_, linear := o.tensors[layer+".bias"]
		if _, found := kernels[name]; is && linear && !found && len(t.Shape) == 2 {
			t.Type += " (of no product to which its bias is added)"
			o.tensors[name] = t
		}
	}
	return nil
}

// transposed is the tensor, or its transpose.
func (t Tensor) transposed(turn bool) Tensor {
	t.Turned = t.Turned != turn
	return t
}

// alias gives a tensor a further name.
func (o *onnx) alias(name string, t Tensor) error {
	if _, twice := o.tensors[name]; twice || len(o.tensors) >= maxTensors {
		return fmt.Errorf("a node makes %.100q, which is there already, or one too many", name)
	}
	o.tensors[name] = t
	return nil
}
