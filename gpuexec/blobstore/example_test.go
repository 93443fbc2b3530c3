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

// A process stores what it compiled. The next process finds it, as long as it
// comes from the same build and runs on the same driver.
func Example() {
	dir, err := os.MkdirTemp("", "kernels") // a program has a directory of its own instead
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	run := func(driver string) {
		ctx := context.Background()
		s, err := blobstore.Open(ctx, blobstore.Config{
			Dir: dir, Capacity: limit.Of(64 << 20), // bytes
			Identity: func(backend string) gpuexec.Identity {
				return gpuexec.Identity{Library: "1.0", Build: "abc", Driver: driver}
			},
		})
		if err != nil {
			panic(err)
		}
		defer s.Close(ctx)
		blob, claim, miss, err := s.Obtain(ctx, "cpu", "matmul 8x8")
		switch {
		case err != nil:
			panic(err)
		case miss.None():
			fmt.Printf("found %s, which took %v to compile\n", blob.Payload, blob.Cost)
			return
		}
		fmt.Println("compiling:", miss.Reason)
		if claim != nil { // this process builds, others wait
			err = claim.Save(ctx, []byte("machine code"), 2*time.Second)
		}
		fmt.Println("stored:", err)
	}
	run("535")
	run("535")
	run("536")
	// Output:
	// compiling: absent
	// stored: <nil>
	// found machine code, which took 2s to compile
	// compiling: outdated
	// stored: <nil>
}

// Explain says what differs from the nearest entry.
func ExampleStore_Explain() {
	dir, err := os.MkdirTemp("", "kernels")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	open := func(driver string) *blobstore.Store {
		s, err := blobstore.Open(ctx, blobstore.Config{
			Dir: dir, Capacity: limit.Of(64 << 20),
			Identity: func(string) gpuexec.Identity { return gpuexec.Identity{Library: "1.0", Build: "abc", Driver: driver} },
		})
		if err != nil {
			panic(err)
		}
		return s
	}
	old := open("535")
	fmt.Println(old.Put(ctx, "cpu", "matmul 8x8", []byte("machine code"), time.Second), old.Close(ctx))
	s := open("536")
	defer s.Close(ctx)
	why, err := s.Explain(ctx, "cpu", "matmul 8x8")
	fmt.Println(why.Miss.Reason, why.Factors, err)
	// Output:
	// <nil> <nil>
	// outdated [driver] <nil>
}
