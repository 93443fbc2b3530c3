package artefacts_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
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

// Of two tenants that share a cache of 100 bytes one has a floor of 60: the other's
// flood leaves that alone.
func ExampleCache_AddFloor() {
	cache, err := artefacts.Open(artefacts.Config{Bytes: limit.Of(100)})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	defer cache.Close(ctx)
	if err := cache.AddFloor("a", 60); err != nil {
		fmt.Println(err)
	}
	use := func(owner, key string) {
		lease, _, err := cache.Get(ctx, artefacts.Request{Key: key, Owner: owner, Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Value: key, Bytes: 20}, nil
		}})
		if err != nil {
			fmt.Println(err)
			return
		}
		lease.End()
	}
	use("a", "a1")
	use("a", "a2")
	for i := range 50 {
		use("b", fmt.Sprint("b", i))
	}
	fmt.Println(cache.Has("a1"), cache.Has("a2"), cache.Bytes())
	// Output: true true 100
}
