package kiln_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// A kernel of the embedded device: what is absent is compiled for it or loaded
// from the store, once.
func ExampleGroup_Kernel() {
	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{Listen: func(e kiln.Event) { fmt.Println(e.Name, e.Kind) }}))
	defer rt.Close(ctx)
	library := ops.Find(cpu.Name)
	executor := must(rt.Executor(ctx, library, 0))
	session := must(rt.Session(kiln.SessionConfig{}))
	op := ops.New(ops.Tanh, 1, 3)
	source := must(library.Source(op))
	grid, _ := library.Launch(op)
	for range 2 { // two requests of one shape
		group := must(session.Group(ctx, []int64{1, 3}))
		kernel := must(group.Kernel(ctx, "pooler", executor, source))
		y := must(run(ctx, executor, gpuexec.Launch{Kernel: kernel, Grid: grid}, []float32{-1, 0, 1}))
		fmt.Printf("%.3f\n", y)
		group.Close()
	}
	// Output:
	// pooler miss
	// [-0.762 0.000 0.762]
	// pooler hit
	// [-0.762 0.000 0.762]
}

// run passes x through an operation of one operand, in place.
func run(ctx context.Context, executor *gpuexec.Executor, l gpuexec.Launch, x []float32) ([]float32, error) {
	buffer, err := executor.Alloc(ctx, int64(4*len(x)))
	if err != nil {
		return nil, err
	}
	defer buffer.Release()
	text := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(text[4*i:], math.Float32bits(v))
	}
	if err := executor.Write(ctx, buffer, 0, text); err != nil {
		return nil, err
	}
	l.Args = []gpuexec.Arg{gpuexec.BufferArg(buffer), gpuexec.BufferArg(buffer)}
	if err := executor.Submit(ctx, l); err != nil {
		return nil, err
	}
	if err := executor.Read(ctx, buffer, 0, text); err != nil {
		return nil, err
	}
	y := make([]float32, len(x))
	for i := range y {
		y[i] = math.Float32frombits(binary.LittleEndian.Uint32(text[4*i:]))
	}
	return y, nil
}
