package main

import (
	"context"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/measure"
)

// benchForward runs whole passes and their matrix products alone in turn, on
// one worker.
func benchForward(ctx context.Context) (_ []measure.Figure, err error) {
	const tokens, rounds, passes = 128, 11, 3
	const atMost = 1.6 // times the products
	list, err := model("minilm_l6_h384")
	if err != nil {
		return nil, err
	}
	set, err := forward.OpenWeights(list, 1)
	if err != nil {
		return nil, err
	}
	defer set.Close()
	rt, err := kiln.Open(kiln.Config{ArtefactEntries: kiln.Unlimited, Workers: 1})
	if err != nil {
		return nil, err
	}
	defer rt.Close(context.WithoutCancel(ctx))
	lib, err := cpu.New("auto")
	if err != nil {
		return nil, err
	}
	exec, err := rt.Executor(ctx, lib, 0)
	if err != nil {
		return nil, err
	}
	engine, err := rt.Constants().Engine(constants.CPU, 0, "")
	if err != nil {
		return nil, err
	}
	session, err := rt.Session(kiln.SessionConfig{})
	if err != nil {
		return nil, err
	}
	m := forward.New(forward.Config{Session: session, Executor: exec, Library: lib, Engine: engine, Weights: set})
	defer m.Close()
	ids := [][]int32{list.Tokens(1, 0, tokens)}
	if _, err := m.Run(ctx, ids); err != nil { // compiles and packs
		return nil, err
	}
	f := measure.Figure{Bench: "forward minilm 128 tokens", RatioTo: "its matrix products alone", Goroutines: 1, Gate: measure.AtMost(atMost)}
	var ratios []float64
	for range rounds {
		whole, err := measure.Quickest(passes, func() error { _, err := m.Run(ctx, ids); return err })
		if err != nil {
			return []measure.Figure{f}, err
		}
		products, err := measure.Quickest(passes, func() error { return m.Products(ctx) })
		if err != nil {
			return []measure.Figure{f}, err
		}
		ratios = append(ratios, whole.Seconds()/products.Seconds())
		f = f.From(ratios)
	}
	return []measure.Figure{f}, nil
}
