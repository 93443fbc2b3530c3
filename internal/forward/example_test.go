package forward_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/internal/forward"
)

// A model that computes two requests of one shape compiles for the first alone.
func Example() {
	ctx := context.Background()
	rt, err := kiln.Open(kiln.Config{Listen: forward.Listen})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	library, err := cpu.New("auto")
	if err != nil {
		log.Fatal(err)
	}
	executor, err := rt.Executor(ctx, library, 0)
	if err != nil {
		log.Fatal(err)
	}
	engine, err := rt.Constants().Engine(constants.CPU, 0, "")
	if err != nil {
		log.Fatal(err)
	}
	session, err := rt.Session(kiln.SessionConfig{})
	if err != nil {
		log.Fatal(err)
	}
	list, err := forward.ReadList("../data/models/bert_tiny_l2_h128.jsonl")
	if err != nil {
		log.Fatal(err)
	}
	weights, err := forward.OpenWeights(list, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer weights.Close()
	model := forward.New(forward.Config{Session: session, Executor: executor, Library: library, Engine: engine, Weights: weights})
	defer model.Close()
	for request := range 2 {
		answer, err := model.Run(ctx, [][]int32{list.Tokens(1, request, 12)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d values, %d compiles\n", len(answer.Output), answer.Compiles)
	}
	// Output:
	// 128 values, 15 compiles
	// 128 values, 0 compiles
}
