// Library lib compiles for a program in C, as libkiln.so does where there is a GPU.
package main

import "C"

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/nvrtc"
)

func main() {}

// Compile compiles one kernel by the compiler of that path, and says what came of it.
//
//export Compile
func Compile(path *C.char) {
	h := nvrtc.Share(C.GoString(path))
	defer h.LeaveIdle()
	out, err := h.Compile(context.Background(), nvrtc.Request{Target: "sm_80", Text: `extern "C" __global__ void k(float *a) { a[0] = 1; }`})
	fmt.Println(len(out.Cubin) > 0, err)
}
