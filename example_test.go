package kiln_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln"
)

// Program is what the compiler of this example makes.
type Program struct{ code string }

// program is how one is compiled, stored and loaded again.
func program(key string) kiln.Recipe[*Program] {
	made := func(p *Program) (kiln.Made[*Program], error) {
		return kiln.Made[*Program]{Value: p, Bytes: int64(len(p.code)), Blob: func(context.Context) ([]byte, error) {
			return []byte(p.code), nil // as Load takes it
		}}, nil
	}
	return kiln.Recipe[*Program]{
		Key: key, // equal keys are one artefact, for all sessions
		Make: func(ctx context.Context) (kiln.Made[*Program], error) {
			fmt.Println("compile", key) // your compiler
			return made(&Program{code: "code of " + key})
		},
		Load: func(ctx context.Context, blob []byte) (kiln.Made[*Program], error) {
			fmt.Println("load", key) // what an earlier run stored
			return made(&Program{code: string(blob)})
		},
	}
}

// A server finds the group of a request's input shape and then each operation by
// its name. What is absent is compiled once. With Config.StoreDir it is kept for
// the next run, too.
func Example() {
	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{})) // zero values follow the environment
	defer rt.Close(ctx)
	session := must(rt.Session(kiln.SessionConfig{Name: "tenant-a"}))
	group := must(session.Group(ctx, []int64{1, 37})) // what is cached for this input shape
	defer group.Close()                               // what was seen through it is good until then
	for _, name := range []string{"query", "key", "value"} {
		p := must(kiln.Get(ctx, group, name, program("matmul 37x384x384")))
		fmt.Println(name, "runs the", p.code)
	}
	p, ok := kiln.Lookup[*Program](group, "query") // no lock, no closure, no allocation
	fmt.Println("query again:", p.code, ok)
	// Output:
	// compile matmul 37x384x384
	// query runs the code of matmul 37x384x384
	// key runs the code of matmul 37x384x384
	// value runs the code of matmul 37x384x384
	// query again: code of matmul 37x384x384 true
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
