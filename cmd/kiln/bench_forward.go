package main

import (
	"context"

	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/internal/measure"
)

// benchForward runs whole passes and their matrix products alone in turn, on
// one worker.
func benchForward(ctx context.Context) ([]measure.Figure, error) {
	const rounds, passes = 11, 3
	const atMost = 1.6 // times the products
	f := measure.Figure{Bench: "forward minilm 128 tokens", RatioTo: "its matrix products alone", Goroutines: 1, Gate: measure.AtMost(atMost)}
	err := withMiniLM(ctx, 1, func(m miniLM) error {
		lib, err := cpu.New("auto")
		if err != nil {
			return err
		}
		b, err := m.on(ctx, lib, 0)
		if err != nil {
			return err
		}
		defer b.close()
		run := func() error { return b.run(ctx, 0, m.ids) }
		if err := run(); err != nil { // compiles and packs
			return err
		}
		f, err = f.Take(ctx, rounds, func() (float64, error) {
			whole, err := measure.Quickest(passes, run)
			if err != nil {
				return 0, err
			}
			products, err := measure.Quickest(passes, func() error { return b.models[0].Products(ctx) })
			return whole.Seconds() / products.Seconds(), err
		})
		return err
	})
	return []measure.Figure{f}, err
}
