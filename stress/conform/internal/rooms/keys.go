package rooms

import (
	"cmp"
	"maps"
	"math"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

const keyFields = "kind desc shape strides dtype impl hints engine runtime device context threads skip scratchpad attr.deterministic " +
	"attr.fpmath attr.scales.src attr.zero_points.dst attr.post_ops attr.rounding"

// identity is a key or blob id as a script keeps it.
type identity struct {
	key  string
	text map[string]string // the fields that a key was made of, for like=
}

// sameKeys compares two keys or ids.
func sameKeys(c *engine.Call) (script.Result, error) {
	return engine.YesNo(c.Identity(c.Arg(0)).(identity).key == c.Identity(c.Arg(1)).(identity).key), nil
}

func makeKey(c *engine.Call) (script.Result, error) {
	text := map[string]string{}
	if like, ok := c.Option("like"); ok {
		base := c.Identity(like).(identity)
		if base.text == nil {
			return engine.Done(fault.ErrInvalid)
		}
		maps.Copy(text, base.text)
	}
	var inputs []primitive.Input
	for _, o := range c.Options() {
		switch o.Name {
		case "like":
		case "unhashable":
			inputs = append(inputs, primitive.Input{Name: o.Value})
		default:
			text[o.Name] = o.Value
		}
	}
	s := spec(text)
	s.Inputs = inputs
	c.KeepIdentity(c.Arg(0), identity{engine.Must(s.Key()), text})
	return engine.OK(), nil
}

// spec takes the fields' texts for values: equal texts are equal values.
func spec(text map[string]string) *primitive.Spec {
	s := &primitive.Spec{
		Kind: text["kind"], Engine: text["engine"], Runtime: text["runtime"], Device: text["device"], Context: text["context"],
		Impl: number(text["impl"]), Threads: number(text["threads"]), Scratchpad: text["scratchpad"],
	}
	if desc, ok := text["desc"]; ok {
		s.Op.Params = []primitive.Param{{Name: "desc", Text: desc}}
	}
	s.Op.Tensors = tensors(text)
	for _, hint := range list(text["hints"]) {
		s.Hints = append(s.Hints, primitive.Tensor{Type: hint})
	}
	for _, position := range list(text["skip"]) {
		s.Skip = append(s.Skip, number(position))
	}
	a := &s.Attr
	a.FPMath = text["attr.fpmath"]
	if v, ok := text["attr.deterministic"]; ok {
		// A switch has two values; what is neither is kept apart by a word that no backend has.
		a.Deterministic = v == "1"
		if v != "0" && v != "1" {
			a.Accumulation = "deterministic=" + v
		}
	}
	if v, ok := text["attr.scales.src"]; ok {
		a.Scales = []primitive.Quant{{Arg: "src", Type: v}}
	}
	if v, ok := text["attr.zero_points.dst"]; ok {
		a.ZeroPoints = []primitive.Quant{{Arg: "dst", Type: v}}
	}
	if v, ok := text["attr.rounding"]; ok {
		a.Rounding = []primitive.Rounding{{Arg: "dst", Mode: v}}
	}
	for _, op := range list(text["attr.post_ops"]) {
		kind, _, _ := strings.Cut(op, ":")
		a.PostOps = append(a.PostOps, primitive.PostOp{Kind: kind, Algorithm: op[len(kind):]})
	}
	return s
}

// tensors lays out the lists of shape= and strides= side by side; dtype= is
// every tensor's, or that of one without a shape.
func tensors(text map[string]string) []primitive.Tensor {
	shapes, strides := list(text["shape"]), list(text["strides"])
	n := max(len(shapes), len(strides))
	dtype, typed := text["dtype"]
	if n == 0 && typed {
		n = 1
	}
	all := make([]primitive.Tensor, n)
	for i := range all {
		all[i].Type = dtype
		if i < len(shapes) {
			all[i].Dims = numbers(shapes[i])
		}
		if i < len(strides) {
			all[i].Strides = numbers(strides[i])
		}
	}
	return all
}

// list reads [a,b] or a,b; commas inside brackets do not separate.
func list(text string) []string {
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		text = text[1 : len(text)-1]
	}
	items, err := script.Split(text)
	if err != nil {
		return []string{text}
	}
	return items
}

func numbers(text string) []int64 {
	var n []int64
	for _, item := range list(text) {
		n = append(n, int64(number(item)))
	}
	return n
}

// interned gives texts that are no plain number one of their own, out of the
// way of the plain ones and for the life of the process.
var (
	interned outside.Register[string, int]
	lastText atomic.Int64
)

func number(text string) int {
	if text == "" {
		return 0
	}
	if n, err := strconv.Atoi(text); err == nil && strconv.Itoa(n) == text && n < math.MaxInt/4 {
		return n
	}
	return interned.Change(text, func(n int) int { return cmp.Or(n, math.MaxInt/4+int(lastText.Add(1))) })
}
