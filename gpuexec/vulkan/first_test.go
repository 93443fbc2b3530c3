package vulkan_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/vulkan"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/drivertest"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/measure"
)

var (
	rounds = flag.Int("rounds", 1, "how often TestFirstResult starts each kind of process")
	child  = flag.String("child", "", "what this process, which TestFirstResult started, is to compute")
	store  = flag.String("store", "", "the store of such a process, with the driver's cache in it; empty = none")
)

// A new process computes its first product, and the first output of a whole model, with the
// driver's cache empty and with the one that Config.DriverCaches keeps, in turns: -rounds=9 -v
// gives figures, those of the model only then. They have the first submit in them, in which
// lavapipe compiles.
func TestFirstResult(t *testing.T) {
	first := map[string]func(*testing.T, string) time.Duration{"product": firstProduct, "model": firstOutput}
	if *child != "" {
		fmt.Printf("<<%d>>", first[*child](t, *store))
		return
	}
	if d := vulkan.New(vulkan.Config{}).Devices(t.Context())[0]; !strings.Contains(d.Name, "llvmpipe") {
		t.Skip("device 0 is not lavapipe", d.Reason)
	}
	for what := range first {
		if what == "model" && *rounds == 1 {
			continue // it takes long
		}
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			for range 3 { // Mesa drops what it did not come to write
				inProcess(t, what, dir)
			}
			var cold, warm, times []float64
			for range *rounds {
				c, w := inProcess(t, what, ""), inProcess(t, what, dir)
				cold, warm, times = append(cold, c), append(warm, w), append(times, c/w)
			}
			t.Logf("median, least, most: empty %.1f ms, kept %.1f ms: %.1f times", measure.SpreadOf(cold), measure.SpreadOf(warm), measure.SpreadOf(times))
		})
	}
}

// inProcess gives the milliseconds of a process of its own, whose home is empty.
func inProcess(t *testing.T, what, store string) float64 {
	t.Helper()
	c := exec.CommandContext(t.Context(), must(os.Executable()), "-test.run=^TestFirstResult$", "-child="+what, "-store="+store)
	c.Env = slices.DeleteFunc(c.Environ(), func(v string) bool { return strings.HasPrefix(v, "MESA_SHADER_CACHE_") })
	c.Env = append(c.Env, "XDG_CACHE_HOME="+t.TempDir())
	said, err := drivertest.Said(c)
	if err != nil {
		t.Fatal(err)
	}
	return float64(must(strconv.ParseInt(said, 10, 64))) / 1e6
}

// opened is a runtime with its executor, in a store that has the driver's cache, if there is one.
func opened(t *testing.T, dir string) (*kiln.Runtime, ops.Library, *gpuexec.Executor) {
	rt := must(kiln.Open(kiln.Config{StoreDir: dir, DriverCaches: dir != "", Listen: forward.Listen}))
	t.Cleanup(func() { _ = rt.Close(context.WithoutCancel(t.Context())) })
	lib := vulkan.New(vulkan.Config{})
	return rt, lib, must(rt.Executor(t.Context(), lib, 0))
}

// firstProduct opens everything and computes one product of 128 x 768 by 768 x 3072.
func firstProduct(t *testing.T, dir string) time.Duration {
	op, ctx := ops.New(ops.MatMul, 128, 768, 3072), t.Context()
	a, b, c := make([]float32, 128*768), make([]float32, 768*3072), make([]float32, 128*3072)
	for _, x := range [][]float32{a, b} {
		for i := range x {
			x[i] = 1
		}
	}
	began := time.Now()
	rt, lib, e := opened(t, dir)
	group := must(must(rt.Session(kiln.SessionConfig{})).Group(ctx, op.Dims[:3]))
	defer group.Close()
	kernel := must(group.Kernel(ctx, "product", e, must(lib.Source(op))))
	grid, args := lib.Launch(op)
	var launches []gpuexec.Launch
	var tensors []gpuexec.Arg
	for _, x := range [][]float32{a, b, c} {
		buffer := must(e.Alloc(ctx, int64(4*len(x))))
		defer buffer.Release()
		launches, tensors = append(launches, gpuexec.CopyTo(buffer, 0, gpuexec.BytesOf(x))), append(tensors, gpuexec.BufferArg(buffer))
		if len(tensors) == 3 {
			launches = append(launches, gpuexec.Launch{Kernel: kernel, Grid: grid, Args: append(tensors, args...)}, gpuexec.CopyFrom(buffer, 0, gpuexec.BytesOf(c)))
		}
	}
	check(e.Submit(ctx, launches...))
	took := time.Since(began)
	if slices.Min(c) != 768 || slices.Max(c) != 768 {
		t.Errorf("from %v to %v, want 768", slices.Min(c), slices.Max(c))
	}
	return took
}

// firstOutput opens everything and runs MiniLM once, on 128 tokens. The making of the weights,
// which no cache helps, is left out.
func firstOutput(t *testing.T, dir string) time.Duration {
	text, _ := data.Model("minilm_l6_h384")
	list := must(forward.Parse("minilm_l6_h384", text))
	weights := must(forward.OpenWeights(list, 1))
	defer weights.Close()
	began := time.Now()
	rt, lib, e := opened(t, dir)
	m := forward.New(forward.Config{Session: must(rt.Session(kiln.SessionConfig{})), Executor: e, Library: lib,
		Engine: must(rt.Constants().Engine(constants.CPU, 0, "")), Weights: weights})
	defer m.Close()
	preparing := time.Now()
	check(m.Prepare(t.Context()))
	prepared := time.Since(preparing)
	must(m.Run(t.Context(), [][]int32{list.Tokens(1, 0, 128)}))
	return time.Since(began) - prepared
}
