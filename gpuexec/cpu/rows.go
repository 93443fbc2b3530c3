package cpu

import (
	"fmt"
	"math"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/hidden"
)

func init() {
	hidden.ManyRows = func(library any) any {
		if b, ok := library.(*Backend); ok {
			return rowsLibrary{b}
		}
		return nil
	}
}

// rowsLibrary is a Backend whose programs of operations on rows, and of attention, serve any number of
// them: a new shape of a model's needs none. Each launch says how many behind its tensors,
// and an add how many its second tensor has. A Backend itself has a program for each shape,
// whose launches need no numbers.
type rowsLibrary struct{ *Backend }

// manyRows is the Spec of a source of rowsLibrary.
type manyRows struct {
	op ops.Op // of one row
}

// OneRow is the operation of one row in place of all that the program serves.
func (s manyRows) OneRow() ops.Op { return s.op }

// onRows reports whether the first dimension of a kind is a number of rows that have nothing
// to do with each other.
func onRows(k ops.Kind) bool {
	switch k {
	case ops.Gather, ops.Add, ops.LayerNorm, ops.MatMul, ops.GELU, ops.Tanh:
		return true
	}
	return false
}

// Source implements ops.Library.
func (l rowsLibrary) Source(op ops.Op) (gpuexec.Source, error) {
	if !onRows(op.Kind) {
		src, err := l.Backend.Source(op)
		if op.Kind == ops.Attention {
			src.Spec = manyRows{attentions}
		}
		return src, err
	}
	if err := l.check(op); err != nil {
		return gpuexec.Source{}, err
	}
	if op.Dims[0] > math.MaxUint32 {
		return gpuexec.Source{}, &fault.Error{Op: "cpu: source", Key: op.String(), Backend: Name, Err: fmt.Errorf(
			"%w: %d rows, want at most %d", fault.ErrUnsupported, op.Dims[0], uint32(math.MaxUint32))}
	}
	op.Dims[0] = 1
	if op.Kind == ops.Add {
		op.Dims[2] = 1
	}
	return l.rows.Of(op, func() (gpuexec.Source, error) { return l.ofOneRow(op) })
}

func (l rowsLibrary) ofOneRow(op ops.Op) (gpuexec.Source, error) {
	src, err := l.Backend.Source(op) // its buffers are those of one row
	if err != nil {
		return src, err
	}
	src.Spec = manyRows{op}
	for _, rows := range []string{" rows=1", " m=1", " period=1"} {
		src.Key = strings.Replace(src.Key, rows, "", 1)
	}
	last := len(src.Params) - 1
	src.Params[0].Times, src.Params[last].Times = []int{last + 1}, []int{last + 1}
	if op.Kind == ops.Add {
		src.Params[1].Times = []int{last + 2}
	}
	for range numbersOf(op.Kind) {
		src.Params = append(src.Params, gpuexec.Param{Kind: gpuexec.ParamU32})
	}
	return src, nil
}

// Launch implements ops.Library.
func (l rowsLibrary) Launch(op ops.Op) (gpuexec.Size, []gpuexec.Arg) {
	grid, values := l.Backend.Launch(op)
	if onRows(op.Kind) {
		values = []gpuexec.Arg{gpuexec.ValueArg(uint32(op.Dims[0])), gpuexec.ValueArg(uint32(op.Dims[2]))}[:numbersOf(op.Kind)]
	}
	return grid, values
}

// numbersOf is how many numbers a launch has behind its tensors.
func numbersOf(k ops.Kind) int {
	if k == ops.Add {
		return 2
	}
	return 1
}

// withRows is the operation that a launch's arguments make of that of a program. They say
// nothing that can be trusted.
func withRows(op ops.Op, args []gpuexec.DeviceArg) (ops.Op, error) {
	tensors := 0
	for tensors < len(args) && args[tensors].Memory != nil {
		tensors++
	}
	numbers := args[tensors:]
	if want := numbersOf(op.Kind); len(numbers) != want {
		return op, fault.Invalidf("cpu: launch", "%s: %d numbers behind the tensors, want %d", op, len(numbers), want)
	}
	op.Dims[0] = int64(uint32(numbers[0].Value))
	if op.Kind == ops.Add {
		op.Dims[2] = int64(uint32(numbers[1].Value))
	}
	return op, op.Validate()
}
