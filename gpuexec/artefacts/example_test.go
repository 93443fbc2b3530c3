package artefacts_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

func Example() {
	ctx := context.Background()
	cache, err := artefacts.Open(artefacts.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cache.Close(ctx)

	softmax := artefacts.Request{
		Key: "softmax 1x128 f32",
		Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Value: "machine code", Bytes: 4096}, nil
		},
	}
	for range 2 {
		lease, outcome, err := cache.Get(ctx, softmax)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(lease.Value(), outcome.Event)
		lease.End()
	}
	fmt.Println(cache.Len(), "entry of", cache.Bytes(), "bytes")
	// Output:
	// machine code miss
	// machine code hit
	// 1 entry of 4096 bytes
}
