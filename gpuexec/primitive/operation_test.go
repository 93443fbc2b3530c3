package primitive_test

import (
	"maps"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// operations differ from each other in one thing each, some in none but a flag.
func operations() []ops.Op {
	norm := ops.New(ops.LayerNorm, 3, 4)
	norm.Epsilon = 1e-12
	biased := ops.New(ops.MatMul, 2, 3, 4)
	biased.Bias = true
	rounded := ops.New(ops.MatMul, 2, 3, 4)
	rounded.BFloat16 = true
	batch := ops.New(ops.BatchMatMul, 1, 2, 3, 4, 5)
	scaled, turned, masked := batch, batch, batch
	scaled.Scale, turned.TransposeB, masked.MaskK = 0.176777, true, true
	return []ops.Op{norm, ops.New(ops.MatMul, 2, 3, 4), biased, rounded, ops.New(ops.MatMul, 2, 4, 3), batch, scaled, turned, masked,
		ops.New(ops.GELU, 2, 3), ops.New(ops.Tanh, 2, 3), ops.New(ops.Softmax, 1, 2, 3, 3), ops.New(ops.Reorder, 1, 2, 3, 3)}
}

// K1, K4: operations have the keys of primitives. Each field of one is in its key,
// and in its factors (R2).
func TestOperationKeys(t *testing.T) {
	id := gpuexec.Identity{Library: "1", Build: "b", Driver: "d", Device: "m"}
	type asked struct {
		op             ops.Op
		layout, stated string
	}
	var all []asked
	for _, op := range operations() {
		all = append(all, asked{op, "", ""}, asked{op, "panels-16", ""}, asked{op, "", "panels-16"}, asked{op, "panels-8", "x [[2,3]] \"\""})
	}
	cached, stored := map[string]asked{}, map[string]asked{}
	for _, a := range all {
		s := primitive.Of(a.op, a.layout, a.stated)
		c, p, err := s.Keys("cpu", id)
		if err != nil {
			t.Fatal(err)
		}
		for key, known := range map[string]map[string]asked{c: cached, p: stored} {
			if twin, twice := known[key]; twice {
				t.Errorf("%+v and %+v have one key", a, twin)
			}
			known[key] = a
		}
		for key, other := range stored {
			if a != other && maps.Equal(primitive.Factors("cpu", p), primitive.Factors("cpu", key)) {
				t.Errorf("%+v and %+v have the same factors", a, other)
			}
		}
	}
}

// P3: the stored key leaves out device, context, driver and builds; the key in
// memory has them.
func TestKeysOfAnIdentity(t *testing.T) {
	base := primitive.Of(ops.New(ops.GELU, 2, 3), "", "")
	whole, portable, err := base.Keys("cpu", gpuexec.Identity{Library: "1", Build: "b"})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := base
	elsewhere.Device = "cpu:1"
	inside := base
	inside.Context = "another"
	for what, c := range map[string]struct {
		spec primitive.Spec
		id   gpuexec.Identity
	}{
		"device":  {elsewhere, gpuexec.Identity{Library: "1", Build: "b"}},
		"context": {inside, gpuexec.Identity{Library: "1", Build: "b"}},
		"build":   {base, gpuexec.Identity{Library: "1", Build: "c"}},
		"driver":  {base, gpuexec.Identity{Library: "1", Build: "b", Driver: "d"}},
		"model":   {base, gpuexec.Identity{Library: "1", Build: "b", Device: "m"}},
	} {
		cached, stored, err := c.spec.Keys("cpu", c.id)
		if err != nil || cached == whole || stored != portable {
			t.Errorf("another %s: the key in memory differs: %v, the stored one: %v, %v", what, cached != whole, stored != portable, err)
		}
	}
}

// R2: a key's factors are its fields, the parameters by their names; no other text
// has any.
func TestFactors(t *testing.T) {
	matmul := ops.New(ops.MatMul, 2, 3, 4)
	matmul.Bias = true
	s := primitive.Of(matmul, "panels-16", "matmul [[2 3]]")
	_, key, err := s.Keys("cpu", gpuexec.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	got := primitive.Factors("cpu", key)
	for name, want := range map[string]string{"kind": "matmul", "m": "2", "k": "3", "n": "4", "bias": "", "layout": "panels-16", "descriptor": `"matmul [[2 3]]"`} {
		if value, there := got[name]; !there || value != want {
			t.Errorf("%s is %q (%v), want %q", name, value, there, want)
		}
	}
	if _, there := got["device"]; there {
		t.Errorf("a stored key has a device: %v", got)
	}
	clash := primitive.Spec{Kind: "conv", Op: primitive.Operation{Params: []primitive.Param{{Name: "kind", Text: "x"}, {Name: "a", Ints: []int64{1}}, {Name: "a", Ints: []int64{2}}}}}
	_, key, err = clash.Keys("cpu", gpuexec.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	if got := primitive.Factors("cpu", key); got["kind"] != "conv" || got["a"] != "1" || got["op.params[0].name"] != "x" || got["op.params[2].name"] != "2" {
		t.Errorf("names that are taken: %v", got)
	}
	for _, key := range []string{"", "\x00", "gelu rows=2 width=3", key[1:], key[:len(key)-1]} {
		if got := primitive.Factors("cpu", key); got != nil {
			t.Errorf("%q has factors %v", key, got)
		}
	}
}

// A new shape asks for the keys of every kernel.
func TestKeysAllocateLittle(t *testing.T) {
	id := gpuexec.Identity{Library: "1", Build: "b", ISA: make([]string, 100)}
	s := primitive.Of(ops.New(ops.MatMul, 2, 3, 4), "panels", "x")
	if n := testing.AllocsPerRun(10, func() { _, _, _ = s.Keys("cpu", id) }); n > 4 {
		t.Errorf("%v allocations, want at most 4", n)
	}
}
