//go:build unix

package blobstore_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/limit"
)

// A process stores what it compiled; the next one, with the same build, finds it.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "kernels")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	cfg := blobstore.Config{
		Dir: dir, Capacity: limit.Of(64 << 20),
		Identity: func(string) gpuexec.Identity { return gpuexec.Identity{Library: "1.0", Build: "abc", Driver: "535"} },
	}
	s, err := blobstore.Open(ctx, cfg)
	if err != nil {
		panic(err)
	}
	_, claim, miss, _ := s.Obtain(ctx, "cpu", "matmul 8x8")
	fmt.Println(miss.Reason)
	fmt.Println(claim.Save(ctx, []byte("machine code"), 2*time.Second), s.Close(ctx))

	s, _ = blobstore.Open(ctx, cfg)
	blob, _, _ := s.Get(ctx, "cpu", "matmul 8x8")
	fmt.Printf("%s, saved %v %v\n", blob.Payload, blob.Cost, s.Close(ctx))

	cfg.Identity = func(string) gpuexec.Identity { return gpuexec.Identity{Library: "1.0", Build: "abc", Driver: "999"} }
	s, _ = blobstore.Open(ctx, cfg)
	_, miss, _ = s.Get(ctx, "cpu", "matmul 8x8")
	why, _ := s.Explain(ctx, "cpu", "matmul 8x8")
	fmt.Println(miss.Reason, miss.Field, why.Factors, s.Close(ctx))
	// Output:
	// absent
	// <nil> <nil>
	// machine code, saved 2s <nil>
	// outdated driver [driver] <nil>
}
