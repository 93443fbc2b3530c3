package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/measure"
)

// deviceGates bound a device's speed at a product and its time for a model, both over cpu's.
var deviceGates = map[string]struct{ product, model *measure.Gate }{
	"opencl": {measure.AtLeast(0.85), measure.AtMost(1.5)},
	"vulkan": {measure.AtLeast(0.2), measure.AtMost(8)},
}

// hitGate bounds a hit of a live kernel, over cpu's: it is the same code on each device.
var hitGate = measure.AtMost(1.25)

// benchDevice measures a device beside cpu, or the first one of each backend. One that is
// asked for and absent is ErrUnavailable.
func benchDevice(ctx context.Context, chosen string) (figures []measure.Figure, err error) {
	library := libraries(env.Read(env.Process()), chosen)
	for _, name := range ops.Names() {
		if name == cpu.Name || chosen != "" && name != backendOf(chosen) {
			continue
		}
		lib, index, err := library(name)
		if err != nil {
			return figures, usageError{err}
		}
		all := lib.Devices(ctx)
		info := all[min(index, len(all)-1)] // of an absent backend there is one row
		switch {
		case info.Available:
		case chosen != "":
			return figures, fmt.Errorf("%s: %w: %s", chosen, fault.ErrUnavailable, strings.TrimPrefix(info.Reason, "unavailable: "))
		default:
			figures = append(figures, measure.Figure{Bench: name, RatioTo: cpu.Name, Note: "not measured: " + info.Reason})
			continue
		}
		more, err := benchBeside(ctx, info, library)
		if figures = append(figures, more...); err != nil {
			return figures, err
		}
	}
	return figures, nil
}

// benchBeside measures a device and cpu in turns, with as many callers as the device has
// units, at most as many as there are processors, and one caller of the model alone.
func benchBeside(ctx context.Context, info gpuexec.DeviceInfo, library func(string) (ops.Library, int, error)) (figures []measure.Figure, err error) {
	callers := min(max(info.ComputeUnits, 1), runtime.GOMAXPROCS(0))
	err = withMiniLM(ctx, callers, func(m miniLM) error {
		var sides [2]*benched
		for i, name := range []string{info.Backend, cpu.Name} {
			lib, index, err := library(name)
			if err != nil {
				return err
			}
			if sides[i], err = m.on(ctx, lib, index); err != nil {
				return err
			}
			defer sides[i].close()
		}
		figures, err = besideCPU(ctx, info, sides, m)
		return err
	})
	return figures, err
}

func besideCPU(ctx context.Context, info gpuexec.DeviceInfo, sides [2]*benched, m miniLM) (figures []measure.Figure, err error) {
	gates, what := deviceGates[info.Backend], fmt.Sprintf("%s, %s", info.Name, info.Driver)
	take := func(name string, callers int, gate *measure.Gate, of func(b *benched, i int) error, show func(seconds float64) float64, unit string) error {
		f := measure.Figure{Bench: fmt.Sprintf("%s %s, callers: %d", info.Backend, name, callers), RatioTo: "cpu's", Goroutines: callers, Gate: gate}
		f, err := beside(ctx, f, sides, of, show, unit)
		f.Note += "; " + what
		figures = append(figures, f)
		return err
	}
	d := benchProduct.Dims
	err = take(fmt.Sprintf("speed of matmul %dx%dx%d", d[0], d[1], d[2]), m.callers, gates.product,
		func(b *benched, i int) error { return b.exec.Submit(ctx, b.products[i]) },
		func(s float64) float64 { return 2e-9 * float64(d[0]*d[1]*d[2]) * float64(m.callers) / s }, "GFLOP/s")
	for n := 1; n <= m.callers && err == nil; n += max(m.callers-1, 1) {
		err = take("time of minilm, 128 tokens", n, gates.model,
			func(b *benched, i int) error { return b.run(ctx, i, m.ids) },
			func(s float64) float64 { return 1e3 * s }, "ms")
	}
	if err == nil {
		err = take("hit of a kernel", 1, hitGate, func(b *benched, _ int) error { return b.hit(ctx) },
			func(s float64) float64 { return 1e9 * s / kernelHits }, "ns")
	}
	return figures, err
}

// beside takes a figure of two devices that run what of runs for each caller, in turns.
func beside(ctx context.Context, f measure.Figure, sides [2]*benched, of func(b *benched, i int) error, show func(seconds float64) float64, unit string) (measure.Figure, error) {
	const rounds, quickest = 9, 5
	var all [2][]float64
	f, err := f.Take(ctx, rounds, func() (float64, error) {
		for i, b := range sides {
			took, err := measure.Quickest(quickest, func() error {
				errs := make([]error, f.Goroutines)
				var wg sync.WaitGroup
				for caller := range errs {
					wg.Go(func() { errs[caller] = of(b, caller) })
				}
				wg.Wait()
				return errors.Join(errs...)
			})
			if err != nil {
				return 0, err
			}
			all[i] = append(all[i], show(took.Seconds()))
		}
		last := len(all[0]) - 1
		return all[0][last] / all[1][last], nil
	})
	f.Note = fmt.Sprintf("%.1f against %.1f %s", measure.SpreadOf(all[0]).Median, measure.SpreadOf(all[1]).Median, unit)
	return f, err
}

// benchProduct is the widest product of BERT-base for 128 tokens.
var benchProduct = ops.New(ops.MatMul, 128, 768, 3072)

// benched is a device with a model and a product for each caller, and a group that has the
// product's kernel by name. What is not the models' is freed with the device.
type benched struct {
	exec     *gpuexec.Executor
	group    *kiln.Group
	source   gpuexec.Source // of that kernel
	models   []*forward.Model
	products []gpuexec.Launch
}

// miniLM is the model with weights of no file, a request of 128 tokens for it, and a
// runtime for that many callers.
type miniLM struct {
	rt      *kiln.Runtime
	weights *forward.Weights
	ids     [][]int32
	callers int
}

func withMiniLM(ctx context.Context, callers int, use func(m miniLM) error) error {
	rt, err := kiln.Open(kiln.Config{ArtefactEntries: kiln.Unlimited, Workers: callers})
	if err != nil {
		return err
	}
	defer rt.Close(context.WithoutCancel(ctx))
	list, err := model("minilm_l6_h384")
	if err != nil {
		return err
	}
	weights, err := forward.OpenWeights(list, 1)
	if err != nil {
		return err
	}
	defer weights.Close()
	return use(miniLM{rt, weights, [][]int32{list.Tokens(1, 0, 128)}, callers})
}

// on makes the model ready on a device. Close it.
func (m miniLM) on(ctx context.Context, lib ops.Library, index int) (*benched, error) {
	exec, err := m.rt.Executor(ctx, lib, index)
	if err != nil {
		return nil, err
	}
	b := &benched{exec: exec}
	engine, err := m.rt.Constants().Engine(constants.CPU, 0, lib.Name())
	if err != nil {
		return nil, err
	}
	if b.source, err = lib.Source(benchProduct); err != nil {
		return nil, err
	}
	session, err := m.rt.Session(kiln.SessionConfig{})
	if err != nil {
		return nil, err
	}
	if b.group, err = session.Group(ctx, benchProduct.Dims[:3]); err != nil {
		return nil, err
	}
	kernel, err := b.group.Kernel(ctx, "product", exec, b.source)
	if err != nil {
		return nil, err
	}
	x, weight, err := b.operands(ctx, lib)
	if err != nil {
		return nil, err
	}
	grid, values := lib.Launch(benchProduct)
	for range m.callers {
		session, err := m.rt.Session(kiln.SessionConfig{})
		if err != nil {
			return nil, err
		}
		out, err := exec.Alloc(ctx, 4*benchProduct.Elements())
		if err != nil {
			return nil, err
		}
		b.models = append(b.models, forward.New(forward.Config{Session: session, Executor: exec, Library: lib, Engine: engine, Weights: m.weights}))
		args := append([]gpuexec.Arg{gpuexec.BufferArg(x), gpuexec.BufferArg(weight), gpuexec.BufferArg(out)}, values...)
		b.products = append(b.products, gpuexec.Launch{Kernel: kernel, Grid: grid, Args: args})
	}
	return b, nil
}

// operands are those of benchProduct, the weight as the device wants it.
func (b *benched) operands(ctx context.Context, lib ops.Library) (x, weight *gpuexec.Buffer, err error) {
	random := rand.New(rand.NewPCG(1, 2))
	numbers := func(n int64) []float32 {
		list := make([]float32, n)
		for i := range list {
			list[i] = float32(random.NormFloat64())
		}
		return list
	}
	d := benchProduct.Dims
	form, err := lib.Prepare(benchProduct)
	if err != nil {
		return nil, nil, err
	}
	packed := make([]byte, form.Bytes)
	if err := form.Fill(packed, numbers(d[1]*d[2])); err != nil {
		return nil, nil, err
	}
	for _, in := range []struct {
		buffer **gpuexec.Buffer
		bytes  []byte
	}{{&x, gpuexec.BytesOf(numbers(d[0] * d[1]))}, {&weight, packed}} {
		if *in.buffer, err = b.exec.Alloc(ctx, int64(len(in.bytes))); err == nil {
			err = b.exec.Write(ctx, *in.buffer, 0, in.bytes)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return x, weight, nil
}

func (b *benched) run(ctx context.Context, caller int, ids [][]int32) error {
	_, err := b.models[caller].Run(ctx, ids)
	return err
}

// kernelHits is how many hits of a kernel are timed together.
const kernelHits = 20_000

func (b *benched) hit(ctx context.Context) error {
	for range kernelHits {
		if _, err := b.group.Kernel(ctx, "product", b.exec, b.source); err != nil {
			return err
		}
	}
	return nil
}

func (b *benched) close() {
	b.group.Close()
	for _, m := range b.models {
		m.Close()
	}
}
