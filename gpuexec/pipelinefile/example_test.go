//go:build unix

package pipelinefile_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
)

// A second process finds what the first one compiled.
func Example() {
	ctx := context.Background()
	var file []byte
	for range 2 {
		driver := &fakeDriver{id: machine()} // stands for the Vulkan backend's
		c, err := pipelinefile.Open(ctx, pipelinefile.Config{Driver: driver, FrontEnd: &fakeFront{}, Identity: machine()})
		if err != nil {
			panic(err)
		}
		c.Register("softmax", []byte("void main() {}"))
		loaded, _ := c.LoadBytes(ctx, file)
		lease, origin, err := c.Get(ctx, pipelinefile.Request{Shader: "softmax", Constants: []pipelinefile.Constant{{ID: 0, Value: 128}}})
		if err != nil {
			panic(err)
		}
		fmt.Println(loaded.Reason, loaded.Entries, origin)
		lease.End()
		if file, _, err = c.SaveBytes(ctx); err != nil {
			panic(err)
		}
		c.Close(ctx)
	}
	// Output:
	// truncated 0 built
	//  1 spirv
}
