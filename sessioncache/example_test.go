package sessioncache_test

import (
	"context"
	"fmt"

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
