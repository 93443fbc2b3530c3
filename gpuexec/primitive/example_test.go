package primitive_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// Two implementations accept a convolution. The primitive of the first owns the
// descriptor that is given out for it from then on.
func ExampleEngine() {
	cache, err := artefacts.Open(artefacts.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close(context.Background())
	lib := &library{ops: map[string]op{"conv": {kind: "convolution", impls: 4, valid: []int{1, 3}, resolves: "winograd"}}}
	engine, err := primitive.Open(primitive.Config{Cache: cache, Library: lib, Backend: "fake", Identity: machine})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	request := &primitive.Spec{Kind: "convolution", Op: primitive.Operation{Algorithm: "auto", Params: []primitive.Param{{Name: "op", Text: "conv"}}}}
	lease, outcome, err := engine.Primitive(ctx, request, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.End()
	fmt.Println(outcome.Event, lease.Primitive().Native())

	d, origin, err := engine.Descriptor(ctx, request)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Release()
	fmt.Println(origin, d == lease.Primitive().Descriptor(), d.Algorithm())

	for d, err := range engine.All(ctx, request) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.ID(), d.Name())
		d.Release()
	}
	// Output:
	// miss primitive conv
	// shared true winograd
	// 0 fake:1
	// 1 fake:3
}
