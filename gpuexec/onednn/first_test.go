package onednn

import (
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// matmul is the request of a product with a bias; weights without strides are the
// library's to lay out.
func matmul(m, k, n int64, weights primitive.Tensor) primitive.Spec {
	return primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []primitive.Tensor{
		Dense("f32", m, k), weights, Dense("f32", 1, n), Dense("f32", m, n)}}}
}

// A product with weights as the library wants them, which a reorder brings there.
func TestProduct(t *testing.T) {
	r := open1(t, limit.Limit{})
	t.Logf("%+v", r.About())
	const m, k, n = 7, 384, 1536
	p := r.kernel(matmul(m, k, n, primitive.Tensor{Type: "f32", Dims: []int64{k, n}}))
	chosen := p.Descriptor().Tensors()[1]
	t.Log(p.Descriptor().Name(), chosen, p.Descriptor().Scratchpad())
	plain, weights := r.filled(1, Dense("f32", k, n)), r.memory(chosen)
	reorder, err := primitive.Reorder([]primitive.Tensor{Dense("f32", k, n), chosen})
	if err != nil {
		t.Fatal(err)
	}
	r.run(r.kernel(reorder), Arg{Src, plain}, Arg{Dst, weights})
	src, bias, dst := r.filled(2, Dense("f32", m, k)), r.filled(3, Dense("f32", 1, n)), r.memory(Dense("f32", m, n))
	r.run(p, Arg{Src, src}, Arg{Weights, weights}, Arg{Bias, bias}, Arg{Dst, dst})
	want := product(Of[float32](src), Of[float32](plain), m, k, n)
	for i := range want {
		want[i] += float64(Of[float32](bias)[i%n])
	}
	near(t, "product", Of[float32](dst), want, 1e-5)
}
