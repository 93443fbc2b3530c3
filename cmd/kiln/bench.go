package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/figures"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/versus"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/internal/gemm"
	"github.com/kiln-cache/kiln/internal/measure"
)

// benches in the order of `kiln bench all`: stores come before loads, since the
// system goes on writing back the ten thousand entries of loads after they are gone.
var benches = []struct {
	name, about string
	run         func(ctx context.Context) ([]measure.Figure, error)
}{
	{"matmul", "matrix products against oneDNN on one core; KILN_ONEDNN_LIBRARY, or what make fetch-onednn brings, or the installed one", benchMatmul},
	{"hits", "the read paths against a sync.Map with the full key, and what the policy costs", figures.Hits},
	{"scaling", "readers beside each other on two cores, which it needs to itself", figures.Scaling},
	{"misses", "a miss with nothing to compute against a promise in a sync.Map", figures.Misses},
	{"evictions", "readers beside evictions, and what a group's size costs", figures.Evictions},
	{"launches", "what the executor adds to a launch", figures.Launches},
	{"stores", "storing a large blob, against writing it", figures.Stores},
	{"loads", "loading from the persistent store and opening it, against the file operations that this needs at least", figures.Loads},
	{"full", "a store of 100,000 entries at its capacity against one of 1,000, which takes minutes to fill", figures.Full},
	{"restart", "the first pass of kiln run in a process that finds its kernels in the store, against its second", benchRestart},
	{"forward", "a MiniLM forward pass of 128 tokens against its matrix products alone", benchForward},
	{"primitives", "descriptor and primitive, both there, against oneDNN's own cache asked in C, which cc compiles; KILN_ONEDNN_LIBRARY, or what make fetch-onednn brings", benchPrimitives},
	{"device", "each device that is here against cpu, in turns: a matrix product, and MiniLM at 128 tokens", func(ctx context.Context) ([]measure.Figure, error) { return benchDevice(ctx, "") }},
	{"model", "MiniLM's embeddings against onnxruntime's with the same weights, which takes some five minutes; what make model and make fetch-onnxruntime bring", nil},
}

func benchCommand(ctx context.Context, c *call) error {
	var gate, long bool
	var device string
	weights := "float32"
	c.toggle(&gate, "gate", "exit with 4 if a figure is beyond its gate, or bench device finds no driver")
	c.toggle(&long, "long", "bench model: all lengths of first calls and queues of 600 texts, which takes half an hour")
	c.oneOf(&weights, "weights TYPE", "bench model: what our weights are rounded to, float32 or bfloat16", "float32", "bfloat16")
	c.device(&device, "the one that bench device measures (default the first of each backend)")
	names := []string{"all"}
	for _, b := range benches {
		names = append(names, b.name)
		c.about += "\n  " + b.name + ": " + b.about
	}
	if err := c.begin(1); err != nil {
		return err
	}
	if len(c.rest) == 0 {
		return usagef("name what to measure: %s", list(names))
	}
	name := c.rest[0]
	if !slices.Contains(names, name) {
		return usagef("%.40q: no such bench: want %s", name, list(names))
	}
	if (long || weights != "float32") && name != "model" && name != "all" {
		return usagef("--long and --weights: want them with bench model")
	}
	if device != "" && (name != "device" || backendOf(device) == cpu.Name) {
		return usagef("--device %s: want it with bench device, and another one than %s, which it is measured beside", device, cpu.Name)
	}
	for _, b := range benches {
		if name != "all" && b.name != name {
			continue
		}
		switch {
		case b.name == "model":
			b.run = func(ctx context.Context) ([]measure.Figure, error) { return benchModel(ctx, long, weights, c.say) }
		case device != "":
			b.run = func(ctx context.Context) ([]measure.Figure, error) { return benchDevice(ctx, device) }
		}
		figures, failed := b.run(ctx)
		for _, f := range figures { // also those measured before it failed or was interrupted
			if failed != nil && f.N == 0 {
				continue
			}
			if err := c.figure(f); err != nil {
				return err
			}
			if gate && (!f.Holds() || f.N == 0 && name == "device") { // what was to be held was not measured
				c.code = exitFinding
			}
		}
		switch {
		case name == "all" && errors.Is(failed, fault.ErrUnavailable):
			fmt.Fprintf(c.stderr, "kiln: bench: %s is left out: %v\n", b.name, failed)
		case b.name == "model" && errors.Is(failed, fault.ErrUnavailable):
			fmt.Fprintf(c.stderr, "kiln: bench: model: %s\n", oneLine(failed))
			c.code = exitFinding
		case failed != nil:
			return fmt.Errorf("%s: %w", b.name, failed)
		}
	}
	return nil
}

func (c *call) figure(f measure.Figure) error {
	verdict, note := "", ""
	if f.Gate != nil {
		verdict = "  gate " + f.Gate.String()
		if !f.Holds() {
			verdict += " FAILS"
		}
	}
	if f.Note != "" {
		note = "\n    " + f.Note
	}
	return c.say(f, "%-34s %7.3f of %-28s [%.3f, %.3f]  allocs %g  n=%d%s%s", f.Bench, f.Ratio, f.RatioTo, f.Min, f.Max, f.Allocs, f.N, verdict, note)
}

// benchMatmul measures the products with weights of BERT-base and MiniLM for a request
// of 128 tokens, and BERT-base's widest for a short one, with one assembly set: that of
// KILN_CPU_ISA, else the best of this machine. oneDNN takes one width of vectors in a process.
func benchMatmul(ctx context.Context) ([]measure.Figure, error) {
	const rounds = 9
	const atLeast = 0.9 // of oneDNN, in the same rounds
	set, library := instructions(), oneDNN()
	if _, err := os.Stat(library); err != nil && env.Read(env.Process()).OneDNN.Value == "" {
		library = "" // as it is installed
	}
	var out []measure.Figure
	for _, size := range []struct{ m, k, n int }{
		{128, 768, 3072}, {128, 3072, 768}, {128, 768, 768}, {128, 384, 1536}, {128, 1536, 384}, {128, 384, 384},
		{14, 768, 3072}, {14, 3072, 768},
	} {
		r, err := versus.Compare(ctx, versus.Config{M: size.m, K: size.k, N: size.n, Rounds: rounds, Set: set, Library: library})
		if err != nil {
			return out, err
		}
		f := measure.Figure{Bench: fmt.Sprintf("matmul %dx%dx%d %s", size.m, size.k, size.n, r.Set), RatioTo: r.Peer, Ratio: r.Ratio.Median,
			Min: r.Ratio.Min, Max: r.Ratio.Max, Goroutines: 1, N: rounds,
			Note: fmt.Sprintf("%.1f against %.1f GFLOP/s", r.Ours.Median, r.Theirs.Median)}
		if size.m == 128 && set.Name() != "generic" {
			f.Gate = measure.AtLeast(atLeast)
		}
		out = append(out, f)
	}
	return out, nil
}

// oneDNN is the library's file that benches take: a process has one.
func oneDNN() string {
	return cmp.Or(env.Read(env.Process()).OneDNN.Value, ".cache/onednn-3.13/libdnnl.so.3")
}

// instructions is the assembly of KILN_CPU_ISA, else the best of this machine.
func instructions() *gemm.Set {
	asked := env.Read(env.Process()).CPUISA.Value
	for _, s := range gemm.Sets() {
		if s.Name() == asked {
			return s
		}
	}
	return gemm.Best()
}
