package kernels

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Specs are of one code exactly if they emit one module.
func TestCode(t *testing.T) {
	norm := func(rows int64, epsilon float32) ops.Op {
		op := ops.New(ops.LayerNorm, rows, 20)
		op.Epsilon = epsilon
		return op
	}
	list := []ops.Op{
		ops.New(ops.Gather, 2, 20, 7), ops.New(ops.Gather, 5, 20, 7), ops.New(ops.Gather, 5, 20, 8), ops.New(ops.Gather, 5, 21, 7),
		ops.New(ops.Reorder, 1, 2, 3, 4), ops.New(ops.Reorder, 2, 2, 3, 4), ops.New(ops.Reorder, 2, 3, 2, 4), ops.New(ops.Reorder, 2, 2, 3, 5),
		ops.New(ops.Slice, 2, 3, 20), ops.New(ops.Slice, 4, 3, 20), ops.New(ops.Slice, 2, 4, 20), ops.New(ops.Slice, 2, 3, 21),
		ops.New(ops.GELU, 1, 20), ops.New(ops.GELU, 9, 20), ops.New(ops.GELU, 9, 21), ops.New(ops.Tanh, 1, 20), ops.New(ops.Tanh, 9, 20),
		ops.New(ops.Softmax, 1, 2, 3, 4), ops.New(ops.Softmax, 7, 2, 3, 4), ops.New(ops.Softmax, 7, 3, 3, 4), ops.New(ops.Softmax, 7, 2, 3, 5),
		norm(1, 1e-12), norm(9, 1e-12), norm(9, 1e-5),
		ops.New(ops.Add, 1, 20, 1), ops.New(ops.Add, 8, 20, 8), ops.New(ops.Add, 8, 20, 1), ops.New(ops.Add, 4, 20, 1),
		ops.New(ops.Add, 8, 20, 4), ops.New(ops.Add, 8, 20, 2), ops.New(ops.Add, 4, 20, 2), ops.New(ops.Add, 4, 21, 2),
	}
	modules := make([][]byte, len(list))
	for i, op := range list {
		var err error
		if modules[i], err = (Spec{op}).Emit(); err != nil {
			t.Fatal(err)
		}
		for j := range i {
			code, module := Spec{op}.code() == Spec{list[j]}.code(), bytes.Equal(modules[i], modules[j])
			if code != module {
				t.Errorf("%s and %s: of one code: %v, of one module: %v", op, list[j], code, module)
			}
		}
	}
}

// Programs of one code use each other's instances.
func TestProgramsShareInstances(t *testing.T) {
	e, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var before *Instance
	for _, rows := range []int64{3, 900} {
		p, err := e.Compile(t.Context(), Spec{ops.New(ops.Tanh, rows, 20)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		i, err := p.NewInstance()
		if err != nil {
			t.Fatal(err)
		}
		if before != nil && i != before {
			t.Error("the second program has an instance of its own")
		}
		before = i
		if err := i.Call([]uint32{0, 1 << 20}, 0, 1); err != nil {
			t.Error(err)
		}
		i.Close()
	}
}

// E3: a program for other rows ends with the one that it was made of, and its instances run no more.
func TestProgramOfRowsEnds(t *testing.T) {
	e, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	p, err := e.Compile(t.Context(), Spec{ops.New(ops.Tanh, 1, 20)})
	if err != nil {
		t.Fatal(err)
	}
	many := p.OfRows(900, 0)
	i, err := many.NewInstance()
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Call([]uint32{0, 1 << 20}, 0, 900); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := i.Call([]uint32{0, 1 << 20}, 0, 900); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("a call: %v, want ErrClosed", err)
	}
	if _, err := many.NewInstance(); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("an instance: %v, want ErrClosed", err)
	}
}

// What was freed is compiled again.
func TestFreedCodeIsNotFound(t *testing.T) {
	e, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for range 2 {
		p, err := e.Compile(t.Context(), Spec{ops.New(ops.Tanh, 3, 20)})
		if err != nil {
			t.Fatal(err)
		}
		if i, err := p.NewInstance(); err != nil {
			t.Error(err)
		} else {
			i.Close()
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		known := func() int {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.mu.known)
		}
		for late := time.After(10 * time.Second); known() > 0; { // the flight of the compile has it for a moment more
			select {
			case <-late:
				t.Fatal("code is found that no program has")
			case <-time.After(time.Millisecond):
			}
		}
	}
}
