package encoder_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
)

// Texts become embeddings, whose products say how alike the texts are. (The model here
// has random weights; make model fetches a real one, into .cache/minilm.)
func Example() {
	ctx := context.Background()
	rt, err := kiln.Open(kiln.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	e, err := encoder.Open(ctx, rt, "testdata/tiny", encoder.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close(ctx)
	embeddings, err := e.Encode(ctx, []string{"w7 w8 w9", "w7 w8 w9 w10", "w40 w41 w42"})
	if err != nil {
		log.Fatal(err)
	}
	for _, other := range embeddings {
		alike := float32(0)
		for i, v := range embeddings[0] {
			alike += v * other[i]
		}
		fmt.Printf("%d numbers, alike %.2f\n", len(other), alike)
	}
	// Output:
	// 24 numbers, alike 1.00
	// 24 numbers, alike 0.96
	// 24 numbers, alike 0.77
}
