package opencl_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/opencl"
)

// E1: one program runs in different grids from different queues at once. PoCL before
// version 6 ends the process there if it is let.
func TestOneProgramInManyGrids(t *testing.T) {
	device(t)
	for _, devices := range []string{"basic", "pthread"} {
		t.Run(devices, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), must(os.Executable()), "-test.run=^TestChild$", "-child=grids")
			cmd.Env = append(cmd.Environ(), "POCL_DEVICES="+devices, "POCL_MAX_PTHREAD_COUNT=16")
			if text, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(text), "<<done>>") {
				t.Errorf("%v: %.600s", err, text)
			}
		})
	}
}

// grids has eight workers launch each of several programs with a grid of their own.
func grids(ctx context.Context) {
	const share = 16 << 10 // bytes
	e := must(gpuexec.Open(ctx, gpuexec.Config{Backend: gpuexec.Find(opencl.Name), Workers: 8}))
	defer e.Close(ctx)
	b := must(e.Alloc(ctx, 8*share))
	defer b.Release()
	for program := range 4 {
		src := must(gpuexec.Code{Language: opencl.Language, Entry: "k", Text: "kernel void k(global float *a, float n) { size_t i = get_global_id(0); for (int j = 0; j < 300; j++) n = n * 0.5f + N; a[i] = n; }",
			Defines: map[string]string{"N": fmt.Sprint(program)}}.Source(
			gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}, gpuexec.Param{Kind: gpuexec.ParamF32}))
		k := must(e.Compile(ctx, src))
		var all sync.WaitGroup
		for worker := range 8 {
			all.Go(func() {
				for i := range 40 {
					n := 1 + 8*i + worker // blocks, ever more
					check(e.Submit(ctx, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{n}, Block: gpuexec.Size{8},
						Args: []gpuexec.Arg{gpuexec.PartArg(b, int64(worker)*share, int64(n)*8*4), gpuexec.ValueArg(float32(1))}}))
				}
			})
		}
		all.Wait()
		k.Release()
	}
	fmt.Print("<<done>>")
}
