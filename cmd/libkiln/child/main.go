// Command kiln-child stands beside libkiln.so, which starts it: it does in a process of its own
// what a driver's code may crash at.
package main

import (
	"fmt"
	"os"

	_ "github.com/kiln-cache/kiln/gpuexec/cuda"   // serves from its init: NVRTC's compiles
	_ "github.com/kiln-cache/kiln/gpuexec/opencl" // and first loads of blobs
)

func main() {
	fmt.Fprintln(os.Stderr, "kiln-child: is started by libkiln.so, and by nobody else")
	os.Exit(2)
}
