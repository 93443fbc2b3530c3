package kiln_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln"
)

// A server with two tenants. Each has a session with bounds of its own, and a part
// of the shared bytes that the other cannot take. What both ask for is compiled
// once.
func ExampleRuntime_Session() {
	ctx := context.Background()
	var compiles, hits atomic.Int64
	rt := must(kiln.Open(kiln.Config{
		SessionBytes: kiln.LimitOf(1 << 20), // of all tenants together
		Listen: func(e kiln.Event) { // metrics
			if e.Artefact == kiln.Miss {
				compiles.Add(1)
			} else {
				hits.Add(1)
			}
		},
	}))
	defer rt.Close(ctx)
	tenants := map[string]*kiln.Session{}
	for _, name := range []string{"alice", "bob"} {
		tenants[name] = must(rt.Session(kiln.SessionConfig{
			Name: name, Groups: kiln.LimitOf(16), Floor: kiln.Floor{Bytes: 256 << 10},
			Bucket: must(kiln.ParseBucketing("multiple:16")), // 37 tokens run as 48
		}))
	}
	serve := func(tenant string, tokens int64) (string, error) {
		group, err := tenants[tenant].Group(ctx, []int64{1, tokens})
		if err != nil {
			return "", err
		}
		defer group.Close()
		shape := group.Shape().String()
		var run []string
		for _, op := range []string{"embed", "attend"} {
			code, err := kiln.Get(ctx, group, op, kiln.Recipe[string]{
				Key: op + " " + shape,
				Make: func(context.Context) (kiln.Made[string], error) {
					return kiln.Made[string]{Value: op + shape, Bytes: 4 << 10}, nil // your compiler
				},
			})
			if err != nil {
				return "", err
			}
			run = append(run, code)
		}
		return strings.Join(run, " "), nil
	}
	var requests sync.WaitGroup
	for i := range int64(8) {
		requests.Go(func() { must(serve([]string{"alice", "bob"}[i%2], 33+i)) }) // all run as [[1,48]]
	}
	requests.Wait()
	fmt.Println(serve("alice", 37))
	fmt.Println(serve("bob", 64))
	fmt.Println(compiles.Load(), "compiles for", compiles.Load()+hits.Load(), "look-ups")
	// Output:
	// embed[[1,48]] attend[[1,48]] <nil>
	// embed[[1,64]] attend[[1,64]] <nil>
	// 4 compiles for 20 look-ups
}
