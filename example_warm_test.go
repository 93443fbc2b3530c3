package kiln_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/kiln-cache/kiln"
)

// One process notes what its requests needed; the next has it ready before its
// first request, dearest first. The manifest is usually a file.
func ExampleRuntime_Warm() {
	ctx := context.Background()
	var manifest bytes.Buffer
	{
		rt := must(kiln.Open(kiln.Config{Record: true}))
		session := must(rt.Session(kiln.SessionConfig{Name: "tenant-a"}))
		group := must(session.Group(ctx, []int64{1, 37}))
		must(kiln.Get(ctx, group, "query", program("matmul 37x384x384")))
		group.Close()
		fmt.Println(rt.Record(&manifest), rt.Close(ctx)) // when the server stops, or every hour
	}
	rt := must(kiln.Open(kiln.Config{})) // the next process
	defer rt.Close(ctx)
	warmed, err := rt.Warm(ctx, &manifest, func(ctx context.Context, group *kiln.Group, e kiln.Entry) error {
		_, err := kiln.Get(ctx, group, e.Name, program(e.Key))
		return err
	})
	fmt.Println(warmed.Made, "made,", warmed.Failed, "failed,", err)
	// Output:
	// compile matmul 37x384x384
	// <nil> <nil>
	// compile matmul 37x384x384
	// 1 made, 0 failed, <nil>
}
