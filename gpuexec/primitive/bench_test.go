package primitive_test

import (
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// encoderMatmul is a request as a transformer's feed-forward layer makes it.
func encoderMatmul() *primitive.Spec {
	return &primitive.Spec{
		Kind: "matmul", Engine: "cpu", Runtime: "seq", Threads: 1, Scratchpad: "user",
		Op: primitive.Operation{Direction: "forward_inference", Params: []primitive.Param{{Name: "op", Text: "ffn"}}, Tensors: []primitive.Tensor{
			{Type: "f32", Dims: []int64{128, 384}, Strides: []int64{384, 1}},
			{Type: "f32", Dims: []int64{384, 1536}, Strides: []int64{1536, 1}},
			{Type: "f32", Dims: []int64{1, 1536}, Strides: []int64{1536, 1}},
			{Type: "f32", Dims: []int64{128, 1536}, Strides: []int64{1536, 1}},
		}},
		Attr: primitive.Attributes{PostOps: []primitive.PostOp{{Kind: "eltwise", Algorithm: "gelu_erf"}}},
	}
}

func bench(b *testing.B) (*rig, *primitive.Spec) {
	r := open(b, limit.Limit{}, map[string]op{"ffn": {kind: "matmul"}})
	s := encoderMatmul()
	l, _, err := r.Primitive(b.Context(), s, "")
	if err != nil {
		b.Fatal(err)
	}
	l.End()
	b.ReportAllocs()
	return r, s
}

// A descriptor's hit with the making of its key.
func BenchmarkDescriptorHit(b *testing.B) {
	r, s := bench(b)
	for b.Loop() {
		if origin, err := describe(r.Engine, s); origin != primitive.Shared {
			b.Fatal(origin, err)
		}
	}
}

// A primitive's hit, the request as it comes.
func BenchmarkPrimitiveHit(b *testing.B) {
	r, s := bench(b)
	ctx := b.Context()
	for b.Loop() {
		l, _, err := r.Primitive(ctx, s, "")
		if err != nil {
			b.Fatal(err)
		}
		l.End()
	}
}

// Descriptor and primitive, both hits, as a framework asks for them.
func BenchmarkDescriptorAndPrimitiveHit(b *testing.B) {
	r, s := bench(b)
	ctx := b.Context()
	for b.Loop() {
		d, _, err := r.Descriptor(ctx, s)
		if err != nil {
			b.Fatal(err)
		}
		l, _, err := r.Make(ctx, d, "")
		if err != nil {
			b.Fatal(err)
		}
		l.End()
		d.Release()
	}
}
