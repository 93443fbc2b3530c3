package constants_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/limit"
)

// A weight is packed by the first who needs it and shared by all others.
func Example() {
	ctx := context.Background()
	cache, err := constants.Open(constants.Config{})
	if err != nil {
		panic(err)
	}
	defer cache.Close(ctx)
	device, err := cache.Engine(constants.CPU, 0, "")
	if err != nil {
		panic(err)
	}
	weight := []byte{1, 2, 3, 4}
	key := constants.Key{Backend: 7, ID: constants.Content(weight)}
	for range 2 {
		packed, cached, err := device.Get(ctx, key, 4, constants.Options{}, func(context.Context) (constants.Value, error) {
			fmt.Println("packing")
			return constants.Value{Any: []byte{4, 3, 2, 1}, Bytes: 4}, nil
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(packed.Value(), cached)
		packed.End()
	}
	fmt.Println(device.Size(), "bytes resident")
	// Output:
	// packing
	// [4 3 2 1] true
	// [4 3 2 1] true
	// 4 bytes resident
}

// An owner that computes elsewhere delivers when it is ready; nothing is evicted
// to make room.
func ExampleEngine_GetOrAdd() {
	ctx := context.Background()
	cache, err := constants.Open(constants.Config{})
	if err != nil {
		panic(err)
	}
	defer cache.Close(ctx)
	if err := cache.SetCapacity(ctx, constants.GPU, limit.Of(1)); err != nil {
		panic(err)
	}
	device, err := cache.Engine(constants.GPU, 0, "")
	if err != nil {
		panic(err)
	}
	get := func(name string, bytes int64) constants.Outcome {
		out, err := device.GetOrAdd(ctx, constants.Key{ID: constants.Versioned(name, 1)}, bytes, constants.Options{})
		if err != nil {
			panic(err)
		}
		return out
	}
	owner := get("embedding", 1<<20).Owner
	fmt.Println(get("head", 1).Bypass)
	lease, err := owner.Fulfil("buffer", 1<<20, func() { fmt.Println("freed") })
	if err != nil {
		panic(err)
	}
	removed, err := device.Remove(ctx, constants.Key{ID: constants.Versioned("embedding", 1)})
	fmt.Println(removed, err, lease.Value(), lease.Resident())
	lease.End()
	// Output:
	// full
	// true <nil> buffer false
	// freed
}
