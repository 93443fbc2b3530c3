package kiln_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln"
)

// What a forward pass leaves for the backward pass has no key: it is set under a
// name, found by that name alone, and taken once.
func ExampleTake() {
	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{}))
	defer rt.Close(ctx)
	session := must(rt.Session(kiln.SessionConfig{Name: "trainer"}))
	group := must(session.Group(ctx, []int64{32, 128})) // one step
	defer group.Close()

	forward := func(layer string, activations []float32) error {
		return kiln.Set(ctx, group, layer, kiln.Made[[]float32]{
			Value: activations, Bytes: int64(4 * len(activations)),
			Free: func() { fmt.Println("free", layer) }, // back to the device's pool, for example
		})
	}
	backward := func(layer string) error {
		saved, err := kiln.Take[[]float32](ctx, group, layer)
		if err != nil {
			return err
		}
		defer saved.Free() // runs when no group can see the value any more
		fmt.Println(layer, saved.Value)
		return nil
	}
	fmt.Println(forward("layer 0", []float32{1, 2}), forward("layer 1", []float32{3}))
	fmt.Println(session.Stats().Bytes, "bytes for the backward pass")
	fmt.Println(backward("layer 1"), backward("layer 0"))
	fmt.Println(session.Stats().Bytes, "bytes left")
	group.Close()
	// Unordered output:
	// <nil> <nil>
	// 12 bytes for the backward pass
	// layer 1 [3]
	// layer 0 [1 2]
	// <nil> <nil>
	// 0 bytes left
	// free layer 0
	// free layer 1
}
