package general_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

func with(op ops.Op, set func(*ops.Op)) ops.Op {
	set(&op)
	return op
}

// each has an operation of each kind, with how many tensors a launch of it gives.
var each = []struct {
	op      ops.Op
	tensors int
}{
	{ops.New(ops.Gather, 2, 3, 4), 3},
	{ops.New(ops.Add, 4, 3, 2), 3},
	{with(ops.New(ops.LayerNorm, 2, 3), func(o *ops.Op) { o.Epsilon = 1e-5 }), 4},
	{ops.New(ops.MatMul, 2, 3, 4), 3},
	{with(ops.New(ops.MatMul, 2, 3, 4), func(o *ops.Op) { o.Bias = true }), 4},
	{ops.New(ops.BatchMatMul, 2, 3, 4, 5, 6), 4},
	{ops.New(ops.Softmax, 2, 3, 4, 5), 3},
	{ops.New(ops.Reorder, 2, 3, 4, 5), 2},
	{ops.New(ops.GELU, 2, 3), 2},
	{ops.New(ops.Tanh, 2, 3), 2},
	{ops.New(ops.Slice, 2, 3, 4), 2},
	{ops.New(ops.Attention, 2, 3, 4, 5), 5},
}

// No device but cpu has weights of another type: where one is asked for them, it says so.
func TestWeightsOfFloat32Alone(t *testing.T) {
	op := with(ops.New(ops.MatMul, 2, 3, 4), func(o *ops.Op) { o.BFloat16 = true })
	if err := general.Check(op, 1); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("a source: %v", err)
	}
	if p, err := general.Panels(op, 1, "x"); !errors.Is(err, fault.ErrUnsupported) || p.Fill != nil {
		t.Errorf("a weight: %v", err)
	}
}

// Parameters are those of the kind and its flags, whatever the dimensions, and a
// launch's values fit them.
func TestParamsServeEveryShape(t *testing.T) {
	for _, c := range each {
		other := c.op
		for i := range c.op.Kind.Dims() {
			other.Dims[i] *= 7
		}
		params, values := general.Params(c.op, 32), general.Values(c.op)
		if !reflect.DeepEqual(params, general.Params(other, 32)) {
			t.Errorf("%s and %s have other parameters", c.op, other)
		}
		if len(params) != c.tensors+len(values) {
			t.Fatalf("%s: %d parameters for %d tensors and %d values", c.op, len(params), c.tensors, len(values))
		}
		for i, p := range params {
			want := gpuexec.ParamBuffer
			switch {
			case i >= c.tensors+len(c.op.Kind.Dims()):
				want = gpuexec.ParamF32
			case i >= c.tensors:
				want = gpuexec.ParamU32
			}
			if p.Kind != want {
				t.Errorf("%s: parameter %d is %v, want kind %d", c.op, i, p, want)
			}
		}
	}
}

// E3: the parameters of a biased product say the sizes of its tensors by its dimensions,
// behind them: the weight's last panel is filled up.
func TestParamsSayTheSizes(t *testing.T) {
	biased := with(ops.New(ops.MatMul, 2, 3, 4), func(o *ops.Op) { o.Bias = true })
	tensor := func(round int64, times ...int) gpuexec.Param {
		return gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Times: times, Round: round}
	}
	want := []gpuexec.Param{tensor(0, 4, 5), tensor(32, 5, 6), tensor(0, 6), tensor(0, 4, 6)}
	if got := general.Params(biased, 32)[:4]; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Values are the dimensions in their order, then the epsilon, or the scale.
func TestValues(t *testing.T) {
	norm := with(ops.New(ops.LayerNorm, 2, 3), func(o *ops.Op) { o.Epsilon = 0.5 })
	batch := ops.New(ops.BatchMatMul, 1, 2, 3, 4, 5)
	scaled := with(batch, func(o *ops.Op) { o.Scale = 0.25 })
	u := func(v uint32) gpuexec.Arg { return gpuexec.ValueArg(v) }
	f := func(v float32) gpuexec.Arg { return gpuexec.ValueArg(v) }
	for _, c := range []struct {
		op   ops.Op
		want []gpuexec.Arg
	}{
		{ops.New(ops.MatMul, 2, 3, 4), []gpuexec.Arg{u(2), u(3), u(4)}},
		{norm, []gpuexec.Arg{u(2), u(3), f(0.5)}},
		{batch, []gpuexec.Arg{u(1), u(2), u(3), u(4), u(5), f(1)}},
		{with(ops.New(ops.Attention, 2, 3, 4, 5), func(o *ops.Op) { o.Scale = 0.25 }), []gpuexec.Arg{u(2), u(3), u(4), u(5), f(0.25)}},
		{ops.New(ops.Attention, 2, 3, 4, 5), []gpuexec.Arg{u(2), u(3), u(4), u(5), f(1)}},
		{scaled, []gpuexec.Arg{u(1), u(2), u(3), u(4), u(5), f(0.25)}},
	} {
		if got := general.Values(c.op); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.op, got, c.want)
		}
	}
}

// E3: what a 32-bit index cannot hold is refused, whichever tensor it is.
func TestCheck(t *testing.T) {
	for _, c := range each {
		if err := general.Check(c.op, 32); err != nil {
			t.Errorf("%s: %v", c.op, err)
		}
	}
	for what, op := range map[string]ops.Op{
		"the output":      ops.New(ops.GELU, 1<<31, 1),
		"the table":       ops.New(ops.Gather, 1, 1<<16, 1<<16),
		"what is sliced":  ops.New(ops.Slice, 1, 1<<31, 1),
		"a filled weight": ops.New(ops.MatMul, 1, 1<<27, 1),
		"the left side":   ops.New(ops.BatchMatMul, 1, 1, 1<<16, 1<<16, 1),
		"the queries":     ops.New(ops.Attention, 1<<16, 1, 1<<16, 1),
		"the starts":      ops.New(ops.Attention, 1, 1, 1, 1<<31),
		"the right side":  ops.New(ops.BatchMatMul, 1, 1, 1, 1<<16, 1<<16),
	} {
		if err := general.Check(op, 32); !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("%s is too large: %v, want ErrUnsupported", what, err)
		}
	}
	if err := general.Check(ops.New(ops.GELU, 0, 1), 32); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// E3: a batch_matmul is bounded with all its heads and batches.
func TestCheckCountsBlocks(t *testing.T) {
	for what, op := range map[string]ops.Op{
		"the left side of all heads":    ops.New(ops.BatchMatMul, 1, 1<<10, 1<<11, 1<<11, 1),
		"the right side of all heads":   ops.New(ops.BatchMatMul, 1, 1<<10, 1, 1<<11, 1<<11),
		"the left side of all batches":  ops.New(ops.BatchMatMul, 1<<10, 1, 1<<11, 1<<11, 1),
		"the right side of all batches": ops.New(ops.BatchMatMul, 1<<10, 1, 1, 1<<11, 1<<11),
	} {
		if err := general.Check(op, 32); !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("%s is too large: %v, want ErrUnsupported", what, err)
		}
	}
}

func TestPanels(t *testing.T) {
	op := ops.New(ops.MatMul, 1, 2, 3)
	p, err := general.Panels(op, 2, "panels of 2")
	if err != nil || p.Format != "panels of 2" || p.Bytes != 32 {
		t.Fatalf("%+v, %v", p, err)
	}
	got := []float32{9, 9, 9, 9, 9, 9, 9, 9}
	if err := p.Fill(gpuexec.BytesOf(got), []float32{1, 2, 3, 4, 5, 6}); err != nil {
		t.Fatal(err)
	}
	if want := []float32{1, 2, 4, 5, 3, 0, 6, 0}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if err := p.Fill(gpuexec.BytesOf(got), []float32{1, 2, 3}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("half a weight: %v, want ErrInvalid", err)
	}
	if err := p.Fill(make([]byte, 24), []float32{1, 2, 3, 4, 5, 6}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("too little room: %v, want ErrInvalid", err)
	}
	if _, err := general.Panels(ops.New(ops.GELU, 1, 1), 2, ""); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// A backend without attention says what to do instead, of a right one only.
func TestPadded(t *testing.T) {
	for _, c := range each {
		err := general.Padded(c.op, 32)
		if refused := errors.Is(err, fault.ErrUnsupported) && strings.Contains(err.Error(), "pad the sequences"); refused != (c.op.Kind == ops.Attention) {
			t.Errorf("%s: %v", c.op, err)
		}
	}
	if err := general.Padded(ops.New(ops.Attention, 1, 2, 3, 0), 32); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no sequences: %v, want ErrInvalid", err)
	}
}
