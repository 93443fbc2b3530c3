package sessioncache_test

import (
	"context"
	"fmt"
	"time"

	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// A server keeps one session for a model, and for each request one handle.
func Example() {
	ctx := context.Background()
	bucket, _ := shapegroups.ParseBucketing("multiple:16")
	session, err := sessioncache.Open(sessioncache.Config{Name: "bert", Bucket: bucket})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close(ctx) }()

	for _, tokens := range []int64{10, 13, 40} {
		shape, _ := shapegroups.Of([]int64{1, tokens})
		request, err := session.Group(ctx, shape)
		if err != nil {
			fmt.Println(err)
			return
		}
		compile := func(context.Context) (sessioncache.Value, error) {
			return sessioncache.Value{Any: "kernel for " + request.Shape().String(), Bytes: 4096}, nil
		}
		kernel, event, err := request.Get(ctx, "matmul.0", sessioncache.Options{}, compile)
		fmt.Println(kernel.Value(), event, err)
		request.Close()
	}
	fmt.Println(session.Groups(), "groups of", session.Capacity().Groups, "-", session.Bytes(), "bytes")
	// Output:
	// kernel for [[1,16]] miss <nil>
	// kernel for [[1,16]] hit <nil>
	// kernel for [[1,48]] miss <nil>
	// 2 groups of 64 - 8192 bytes
}

// Names that are asked for in every request are interned: looking them up costs
// no hash. What the forward pass leaves for the backward pass is set and taken.
func ExampleGroup() {
	ctx := context.Background()
	session, _ := sessioncache.Open(sessioncache.Config{Name: "train"})
	defer func() { _ = session.Close(ctx) }()
	query := session.Intern("query")
	shape, _ := shapegroups.Of([]int64{1, 37})
	group, _ := session.Group(ctx, shape)
	defer group.Close()

	_, _, err := group.Get(ctx, "query", sessioncache.Options{Key: "matmul 37x384"}, func(context.Context) (sessioncache.Value, error) {
		return sessioncache.Value{Any: "kernel", Bytes: 4096, Cost: 20 * time.Millisecond}, nil
	})
	ref, found := group.LookupID(query)
	fmt.Println(ref.Value(), ref.Key(), ref.Bytes(), ref.Cost(), found, err)

	_ = group.Set(ctx, "mask", sessioncache.Value{Any: "activations"}, sessioncache.Options{})
	mask, err := group.Take(ctx, "mask", 0, nil)
	fmt.Println(mask.Any, err)
	mask.Free()
	_, found = group.Lookup("mask", 0)
	fmt.Println("found", found)
	// Output:
	// kernel matmul 37x384 4096 20ms true <nil>
	// activations <nil>
	// found false
}

// Two tenants share 100 bytes, of which 30 are the first one's whatever the other
// does.
func ExamplePool() {
	ctx := context.Background()
	pool, _ := sessioncache.NewPool(sessioncache.LimitOf(100))
	floor := sessioncache.Floor{Bytes: 30}
	first, _ := sessioncache.Open(sessioncache.Config{Name: "first", Pool: pool, Floor: floor})
	second, _ := sessioncache.Open(sessioncache.Config{Name: "second", Pool: pool})
	defer func() { _, _ = first.Close(ctx), second.Close(ctx) }()

	for n := range int64(20) { // 200 bytes: what does not fit has the oldest go
		shape, _ := shapegroups.N(1 + n)
		_ = second.Set(ctx, shape, "activations", sessioncache.Value{Any: n, Bytes: 10}, sessioncache.Options{})
	}
	held, spoken := pool.Use()
	fmt.Println(held, "bytes held,", spoken, "spoken for")
	// Output:
	// 70 bytes held, 100 spoken for
}
