package kiln_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// embedding is what a server does for a request: find the group of its shape,
// find the operation by name, run it. The first request compiles.
func embedding(ctx context.Context, s *kiln.Session, exec *gpuexec.Executor, lib ops.Library, x []float32) ([]float32, sessioncache.Event, error) {
	shape, err := shapegroups.Of([]int64{1, int64(len(x))})
	if err != nil {
		return nil, "", err
	}
	h, err := s.Group(ctx, shape)
	if err != nil {
		return nil, "", err
	}
	defer h.Close()
	op := ops.New(ops.Tanh, 1, int64(len(x)))
	src, err := lib.Source(op)
	if err != nil {
		return nil, "", err
	}
	ref, how, err := s.Artefact(ctx, h, "pooler", sessioncache.Options{}, artefacts.Request{Key: src.Key,
		Create: func(ctx context.Context) (artefacts.Built, error) {
			k, err := exec.Compile(ctx, src)
			if err != nil {
				return artefacts.Built{}, err
			}
			return artefacts.Built{Value: k, Bytes: k.Bytes(), Free: k.Release}, nil
		}})
	if err != nil {
		return nil, "", err
	}
	y, err := run(ctx, exec, gpuexec.Launch{Kernel: ref.Value().(*gpuexec.Kernel), Grid: lib.Grid(op)}, x)
	return y, how.Event, err
}

// run passes x through an operation of one operand, in place.
func run(ctx context.Context, exec *gpuexec.Executor, l gpuexec.Launch, x []float32) ([]float32, error) {
	b, err := exec.Alloc(ctx, int64(4*len(x)))
	if err != nil {
		return nil, err
	}
	defer b.Release()
	text := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(text[4*i:], math.Float32bits(v))
	}
	if err := exec.Write(ctx, b, 0, text); err != nil {
		return nil, err
	}
	l.Args = []gpuexec.Arg{gpuexec.BufferArg(b), gpuexec.BufferArg(b)}
	if err := exec.Submit(ctx, l); err != nil {
		return nil, err
	}
	if err := exec.Read(ctx, b, 0, text); err != nil {
		return nil, err
	}
	y := make([]float32, len(x))
	for i := range y {
		y[i] = math.Float32frombits(binary.LittleEndian.Uint32(text[4*i:]))
	}
	return y, nil
}

func Example() {
	ctx := context.Background()
	r, err := kiln.Open(kiln.Config{})
	if err != nil {
		panic(err)
	}
	defer r.Close(ctx)
	lib := ops.Find(cpu.Name)
	exec, err := r.Executor(ctx, lib, 0)
	if err != nil {
		panic(err)
	}
	session, err := r.Session(r.SessionDefaults())
	if err != nil {
		panic(err)
	}
	for range 2 {
		y, how, err := embedding(ctx, session, exec, lib, []float32{-1, 0, 1})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%.3f %v\n", y, how)
	}
	// Output:
	// [-0.762 0.000 0.762] miss
	// [-0.762 0.000 0.762] hit
}
