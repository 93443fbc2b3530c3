package forward

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/opencl"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// device opens the CPU for one test.
func device(t *testing.T) (*cpu.Backend, *gpuexec.Executor) {
	t.Helper()
	lib, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	exec, err := gpuexec.Open(context.Background(), gpuexec.Config{Backend: lib, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exec.Close(context.Background()) })
	return lib, exec
}

// K7: what a kernel needs travels with it to the store, built or loaded.
func TestRequestRequires(t *testing.T) {
	ctx := context.Background()
	lib, exec := device(t)
	r, err := Request(exec, lib, ops.New(ops.GELU, 2, 8), "descriptor")
	if err != nil {
		t.Fatal(err)
	}
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

// K4: operations that one program computes are two primitives if the model states
// them differently; and what cannot be compiled has no request.
func TestRequestKeys(t *testing.T) {
	lib, exec := device(t)
	keys, stored := map[string]string{}, map[string]string{}
	for _, op := range []ops.Op{ops.New(ops.GELU, 2, 8), ops.New(ops.GELU, 8, 2), ops.New(ops.MatMul, 2, 8, 4)} {
		for _, stated := range []string{"one", "another"} {
			r, err := Request(exec, lib, op, stated)
			if err != nil {
				t.Fatal(err)
			}
			if src, _, err := program(exec, lib, op, stated); err != nil || src.Name != op.String() {
				t.Errorf("people read %q of %v, %v", src.Name, op, err) // E6
			}
			what := op.String() + " " + stated
			if keys[r.Key] != "" || stored[r.StoredKey] != "" {
				t.Errorf("%s has the key of %s", what, keys[r.Key]+stored[r.StoredKey])
			}
			keys[r.Key], stored[r.StoredKey] = what, what
			if r.Backend != lib.Name() || primitive.Factors(r.Backend, r.StoredKey)["kind"] != op.Kind.String() {
				t.Errorf("%s: %q of %s", what, r.StoredKey, r.Backend)
			}
		}
	}
	if _, err := Request(exec, lib, ops.New(ops.GELU, 0, 8), "none"); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no operation: %v", err)
	}
}

// K4, P3: the key in memory has the device, and both keys have how the weight lies.
func TestRequestKeyHasDeviceAndLayout(t *testing.T) {
	lib, exec := device(t)
	op := ops.New(ops.MatMul, 2, 8, 4)
	r, err := Request(exec, lib, op, "stated")
	if err != nil {
		t.Fatal(err)
	}
	weight, err := lib.Prepare(op)
	if err != nil {
		t.Fatal(err)
	}
	here, stored := primitive.Factors(r.Backend, r.Key), primitive.Factors(r.Backend, r.StoredKey)
	if here["device"] != "0" || stored["device"] != "" {
		t.Errorf("device %q in memory and %q on the disk, want 0 and none", here["device"], stored["device"])
	}
	if weight.Format == "" || here["layout"] != weight.Format || stored["layout"] != weight.Format {
		t.Errorf("layout %q and %q, want %q", here["layout"], stored["layout"], weight.Format)
	}
}

// E6: a program that serves every shape is not called by the first that asked for it.
func TestNameOfAProgramForAllShapes(t *testing.T) {
	lib, exec := device(t)
	op := ops.New(ops.GELU, 2, 8)
	for _, c := range []struct {
		lib  ops.Library
		want string
	}{{ops.Find(opencl.Name), "gelu"}, {lib, op.String()}} {
		if source, _, err := program(exec, c.lib, op, "x"); err != nil || source.Name != c.want {
			t.Errorf("a program of %s is called %q, want %q, %v", c.lib.Name(), source.Name, c.want, err)
		}
	}
}
