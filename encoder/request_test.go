package encoder

import (
	"context"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// K7: what a kernel needs travels with it to the store, built or loaded.
func TestRequestRequires(t *testing.T) {
	ctx := context.Background()
	lib, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	exec, err := gpuexec.Open(ctx, gpuexec.Config{Backend: lib, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer exec.Close(ctx)
	source, err := lib.Source(ops.Op{Kind: ops.GELU, Dims: [5]int64{2, 8}})
	if err != nil {
		t.Fatal(err)
	}
	r := Request(exec, source, "descriptor")
	built, err := r.Create(ctx)
	if err != nil {
		t.Fatal(err)
	}
	blob, err := built.Blob(ctx)
	if err != nil {
		t.Fatal(err)
	}
	built.Free()
	loaded, err := r.Load(ctx, blob)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Free()
	if built.Requires == nil || !slices.Equal(built.Requires, loaded.Requires) {
		t.Errorf("it needs %v, and from its blob %v", built.Requires, loaded.Requires)
	}
}
