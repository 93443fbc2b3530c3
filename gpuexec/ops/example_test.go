package ops_test

import (
	"fmt"

	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// An Op is what it computes and its exact dimensions; its text is canonical.
func ExampleNew() {
	op := ops.New(ops.MatMul, 37, 384, 1536)
	op.Bias = true
	fmt.Println(op, op.Elements(), op.Validate())

	same, err := ops.Parse(op.String())
	fmt.Println(same == op, err)

	fmt.Println(ops.New(ops.MatMul, 37, 384).Validate())
	// Output:
	// matmul m=37 k=384 n=1536 bias 56832 <nil>
	// true <nil>
	// ops: validate: invalid argument: matmul takes 3 dimensions (m, k, n): n is 0, want at least 1
}
