package forward

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
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

// K4: operations that one program of their shape computes are two primitives if the model
// states them differently; and what cannot be compiled has no request.
func TestRequestKeys(t *testing.T) {
	lib, exec := device(t)
	keys, stored := map[string]string{}, map[string]string{}
	for _, op := range []ops.Op{ops.New(ops.Reorder, 2, 3, 1, 8), ops.New(ops.Reorder, 3, 2, 1, 8), ops.New(ops.BatchMatMul, 1, 2, 2, 8, 4)} {
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

// E7, K1: the rows of an operation, and how its model states them, are no part of the key of a
// program that serves any number of them.
func TestRequestKeyHasNoRows(t *testing.T) {
	lib, exec := device(t)
	norm := func(rows, width int64) ops.Op {
		op := ops.New(ops.LayerNorm, rows, width)
		op.Epsilon = 1e-5
		return op
	}
	keys := map[string]ops.Op{}
	for _, c := range []struct{ one, other, differs ops.Op }{
		{ops.New(ops.Gather, 1, 8, 40), ops.New(ops.Gather, 9, 8, 40), ops.New(ops.Gather, 9, 8, 41)},
		{ops.New(ops.Add, 1, 8, 1), ops.New(ops.Add, 9, 8, 9), ops.New(ops.Add, 9, 4, 9)},
		{ops.New(ops.Add, 6, 7, 2), ops.New(ops.Add, 9, 7, 1), ops.New(ops.Add, 9, 3, 1)},
		{norm(1, 8), norm(9, 8), norm(9, 4)},
		{ops.New(ops.MatMul, 1, 8, 4), ops.New(ops.MatMul, 9, 8, 4), ops.New(ops.MatMul, 9, 4, 8)},
		{ops.New(ops.GELU, 1, 8), ops.New(ops.GELU, 9, 8), ops.New(ops.GELU, 9, 4)},
		{ops.New(ops.Tanh, 1, 8), ops.New(ops.Tanh, 9, 8), ops.New(ops.Tanh, 9, 4)},
		{ops.New(ops.Attention, 1, 2, 4, 1), ops.New(ops.Attention, 9, 2, 4, 3), ops.New(ops.Tanh, 9, 5)},
	} {
		var asked []artefacts.Request
		for _, op := range []ops.Op{c.one, c.other, c.differs} {
			r, err := Request(exec, lib, op, op.String())
			if err != nil {
				t.Fatal(err)
			}
			asked = append(asked, r)
		}
		if asked[0].Key != asked[1].Key || asked[0].StoredKey != asked[1].StoredKey {
			t.Errorf("%s and %s have the keys %q and %q", c.one, c.other, asked[0].StoredKey, asked[1].StoredKey)
		}
		for _, r := range asked[1:] {
			if other, taken := keys[r.StoredKey]; taken {
				t.Errorf("%s has the key of %s", r.StoredKey, other)
			}
			keys[r.StoredKey] = c.other
		}
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
	own := ops.New(ops.Reorder, 2, 3, 1, 8)
	for _, c := range []struct {
		lib  ops.Library
		op   ops.Op
		want string
	}{{ops.Find(opencl.Name), op, "gelu"}, {forRows(lib), op, "gelu"}, {forRows(lib), own, own.String()}} {
		if source, _, err := program(exec, c.lib, c.op, "x"); err != nil || source.Name != c.want {
			t.Errorf("a program of %s is called %q, want %q, %v", c.lib.Name(), source.Name, c.want, err)
		}
	}
}
