package cpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// onRowsOps has an operation of each kind on rows, of so many rows.
func onRowsOps(rows int64) []ops.Op {
	norm, bias, halves := ops.New(ops.LayerNorm, rows, 37), ops.New(ops.MatMul, rows, 30, 41), ops.New(ops.MatMul, rows, 30, 41)
	norm.Epsilon, bias.Bias, halves.BFloat16 = 1e-5, true, true
	return []ops.Op{norm, bias, halves, ops.New(ops.MatMul, rows, 30, 40), ops.New(ops.Gather, rows, 8, 5), ops.New(ops.Add, rows, 7, rows),
		ops.New(ops.Add, rows, 7, 1), ops.New(ops.Add, 2*rows, 7, rows), ops.New(ops.GELU, rows, 37), ops.New(ops.Tanh, rows, 37)}
}

func TestOperationsOnAnyRows(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) { devicetest.Operations(t, rowsLibrary{b}) })
}

// rowsRun launches operations on an executor, on numbers of their own.
type rowsRun struct {
	t    *testing.T
	exec *gpuexec.Executor
}

// operands gives the tensors of a launch of random numbers, gathers' ids in range, and the result last.
func (r rowsRun) operands(b *Backend, op ops.Op) (tensors []*gpuexec.Buffer) {
	r.t.Helper()
	ctx := r.t.Context()
	exact, err := b.Source(op)
	if err != nil {
		r.t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, uint64(op.Dims[0])))
	for i, p := range exact.Params {
		tensor, err := r.exec.Alloc(ctx, p.Bytes)
		if err != nil {
			r.t.Fatal(err)
		}
		numbers := make([]float32, p.Bytes/4)
		for at := range numbers {
			numbers[at] = float32(random.NormFloat64())
		}
		text := gpuexec.BytesOf(numbers)
		if op.Kind == ops.Gather && i == 0 {
			ids := make([]int32, len(numbers))
			for at := range ids {
				ids[at] = random.Int32N(int32(op.Dims[2]))
			}
			text = gpuexec.BytesOf(ids)
		}
		if err := r.exec.Write(ctx, tensor, 0, text); err != nil {
			r.t.Fatal(err)
		}
		tensors = append(tensors, tensor)
	}
	return tensors
}

func (r rowsRun) launch(lib ops.Library, op ops.Op, k *gpuexec.Kernel, tensors []*gpuexec.Buffer) []byte {
	r.t.Helper()
	ctx := r.t.Context()
	grid, numbers := lib.Launch(op)
	var args []gpuexec.Arg
	for _, b := range tensors {
		args = append(args, gpuexec.BufferArg(b))
	}
	if err := r.exec.Submit(ctx, gpuexec.Launch{Kernel: k, Grid: grid, Args: append(args, numbers...)}); err != nil {
		r.t.Fatalf("%s: %v", op, err)
	}
	return r.read(tensors[len(tensors)-1])
}

func (r rowsRun) read(b *gpuexec.Buffer) []byte {
	r.t.Helper()
	out := make([]byte, b.Bytes())
	if err := r.exec.Read(r.t.Context(), b, 0, out); err != nil {
		r.t.Fatal(err)
	}
	return out
}

func newRowsRun(t *testing.T, b *Backend, workers int) rowsRun {
	t.Helper()
	exec, err := gpuexec.Open(t.Context(), gpuexec.Config{Backend: b, Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exec.Close(context.Background()) })
	return rowsRun{t, exec}
}

// E7, E8: one program serves any number of rows, compiled or from its blob, also several at once; it has the bits
// of the program for the shape.
func TestOneProgramForAnyRows(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) {
		r, many := newRowsRun(t, b, 2), rowsLibrary{b}
		for at := range onRowsOps(1) {
			src, err := many.Source(onRowsOps(1)[at])
			if err != nil {
				t.Fatal(err)
			}
			compiled, err := r.exec.Compile(t.Context(), src)
			if err != nil {
				t.Fatal(err)
			}
			blob, err := compiled.Blob(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			loaded, err := r.exec.Load(t.Context(), src, blob)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for _, rows := range []int64{1, 2, 9, 17, 64, 300} {
				op := onRowsOps(rows)[at]
				of, err := many.Source(op)
				if err != nil || of.Key != src.Key {
					t.Fatalf("%s has the key %q, want %q, %v", op, of.Key, src.Key, err)
				}
				exact, err := b.Source(op)
				if err != nil || exact.Key == src.Key {
					t.Fatalf("%s has the key %q, too, %v", op, exact.Key, err)
				}
				own, err := r.exec.Compile(t.Context(), exact)
				if err != nil {
					t.Fatal(err)
				}
				defer own.Release()
				wg.Go(func() {
					tensors := r.operands(b, op)
					want := r.launch(b, op, own, tensors)
					for range 5 {
						for _, k := range []*gpuexec.Kernel{compiled, loaded} {
							if got := r.launch(many, op, k, tensors); !bytes.Equal(got, want) {
								t.Errorf("%s: other bits than of its own program", op)
							}
						}
					}
				})
			}
			wg.Wait()
			compiled.Release()
			loaded.Release()
		}
	})
}

// E3: what a launch says of its rows is checked against its tensors, its grid and the operation.
func TestWrongRows(t *testing.T) {
	b, err := New("auto")
	if err != nil {
		t.Fatal(err)
	}
	r, many := newRowsRun(t, b, 1), rowsLibrary{b}
	for at, op := range onRowsOps(6) {
		src, err := many.Source(op)
		if err != nil {
			t.Fatal(err)
		}
		k, err := r.exec.Compile(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Release()
		tensors := r.operands(b, op)
		grid, _ := many.Launch(op)
		rows, period := uint32(op.Dims[0]), uint32(op.Dims[2])
		before := r.read(tensors[len(tensors)-1])
		type said struct {
			grid         int
			rows, period uint32
		}
		wrong := []said{{grid[0], 0, period}, {grid[0], rows + 1, period}, {grid[0], 1 << 31, period}, {grid[0], 1<<32 - 1, period}, {grid[0] + 1, rows, period}}
		if op.Kind == ops.Add {
			wrong = append(wrong, said{grid[0], rows, 0}, said{grid[0], rows, 5}, said{grid[0], rows, 5 * rows})
			if period < rows {
				wrong = append(wrong, said{grid[0], rows, rows}) // the second tensor has fewer
			}
		}
		for _, c := range wrong {
			var args []gpuexec.Arg
			for _, tensor := range tensors {
				args = append(args, gpuexec.BufferArg(tensor))
			}
			args = append(args, []gpuexec.Arg{gpuexec.ValueArg(c.rows), gpuexec.ValueArg(c.period)}[:numbersOf(op.Kind)]...)
			if err := r.exec.Submit(t.Context(), gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{c.grid}, Args: args}); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%s with %+v: %v", op, c, err)
			}
		}
		// Each tensor of rows is too small by itself.
		last := len(tensors) - 1
		of := []int{0, last}
		if op.Kind == ops.Add && period > 1 {
			of = append(of, 1)
		}
		for _, short := range of {
			var args []gpuexec.Arg
			for i, tensor := range tensors {
				if i != short {
					larger, err := r.exec.Alloc(t.Context(), 2*tensor.Bytes())
					if err != nil {
						t.Fatal(err)
					}
					defer larger.Release()
					tensor = larger
				}
				args = append(args, gpuexec.BufferArg(tensor))
			}
			_, numbers := many.Launch(onRowsOps(7)[at])
			if err := r.exec.Submit(t.Context(), gpuexec.Launch{Kernel: k, Grid: grid, Args: append(args, numbers...)}); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%s: tensor %d of 6 rows for 7: %v", op, short, err)
			}
		}
		if after := r.read(tensors[last]); !bytes.Equal(before, after) {
			t.Errorf("%s: a wrong launch has written", op)
		}
	}
}

// E7: what is not on rows has its own program, as in the Backend; more rows than a launch can say are refused.
func TestSourcesOfAnyRows(t *testing.T) {
	b, err := New("auto")
	if err != nil {
		t.Fatal(err)
	}
	many := rowsLibrary{b}
	for _, op := range []ops.Op{ops.New(ops.Reorder, 2, 3, 4, 5), ops.New(ops.Softmax, 2, 3, 4, 5), ops.New(ops.BatchMatMul, 1, 2, 3, 4, 5), ops.New(ops.Slice, 2, 3, 4)} {
		got, err := many.Source(op)
		want, _ := b.Source(op)
		if _, numbers := many.Launch(op); err != nil || fmt.Sprint(got) != fmt.Sprint(want) || len(numbers) > 0 {
			t.Errorf("%s: %+v with %v, %v, want %+v", op, got, numbers, err, want)
		}
	}
	if _, err := many.Source(ops.New(ops.MatMul, 1<<32, 1, 1)); !errors.Is(err, fault.ErrUnsupported) || !strings.Contains(err.Error(), "4294967296 rows") {
		t.Errorf("%v", err)
	}
	if _, err := many.Source(ops.New(ops.GELU, 0, 1)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// looked is a context that counts how often a launch looks at it.
type looked struct {
	context.Context
	times int
}

func (l *looked) Err() error {
	l.times++
	return nil
}

// E4: a launch of many rows is cut into calls by their number, also where the program is of one row.
func TestManyRowsAreCut(t *testing.T) {
	b, _ := New("auto")
	op := ops.New(ops.Tanh, 4000, 384)
	q, p, args := launchedOp(t, b, op, nil)
	defer closeAll(q, p)
	spec, _ := kernels.Of(op)
	one, _ := kernels.Of(ops.New(ops.Tanh, 1, 384))
	of, err := q.d.engine.Compile(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	many := &program{kernel: of, anyRows: true}
	defer many.Release()
	for _, launched := range []*program{p.(*program), many} {
		numbers := []gpuexec.DeviceArg{{Value: 4000}}
		if launched != many {
			numbers = nil
		}
		all, _, err := q.bind(launched, append(args[:len(args):len(args)], numbers...), 4000)
		if err != nil {
			t.Fatal(err)
		}
		ctx := &looked{Context: t.Context()}
		if err := all.run(ctx, 0, 4000, nil); err != nil {
			t.Fatal(err)
		}
		if calls := int(spec.BlocksPerCall()); calls == 4000 || ctx.times != (4000+calls-1)/calls {
			t.Errorf("%d calls, %d rows in each", ctx.times, calls)
		}
	}
}
