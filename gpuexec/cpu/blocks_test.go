package cpu

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// E8: blocks have the same bits one by one, in any order, several at once and with any
// scratch memory as all together.
func TestBlocksAreIndependent(t *testing.T) {
	norm, attention := ops.New(ops.LayerNorm, 37, 24), ops.New(ops.Attention, 90, 3, 24, 4)
	norm.Epsilon, attention.Scale = 1e-5, 0.5
	starts, lengths := gpuexec.BytesOf([]int32{0, 1, 33, 33, 90}), gpuexec.BytesOf([]int32{17, 5, 9})
	sets(t, func(t *testing.T, b *Backend) {
		for _, c := range []struct {
			op   ops.Op
			ints []byte // of the argument that has as many
		}{
			{op: ops.New(ops.MatMul, 70, 96, 200)}, {op: ops.New(ops.MatMul, 200, 1100, 130)}, {op: ops.New(ops.GELU, 33, 50)}, {op: norm},
			{op: ops.New(ops.BatchMatMul, 3, 4, 17, 8, 17), ints: lengths}, {op: ops.New(ops.Softmax, 3, 4, 17, 17), ints: lengths},
			{op: attention, ints: starts},
		} {
			q, p, args := launchedOp(t, b, c.op, c.ints)
			size, _ := b.Launch(c.op)
			out := view(args[0])
			for _, a := range args { // the last buffer is the result
				if a.Kind == gpuexec.ParamBuffer {
					out = view(a)
				}
			}
			before := bytes.Repeat([]byte{0x7f}, len(out)) // padding is not written
			copy(out, before)
			if err := q.Launch(t.Context(), p, args, size, gpuexec.Size{1, 1, 1}); err != nil {
				t.Fatalf("%s: %v", c.op, err)
			}
			want := slices.Clone(out)
			copy(out, before)
			all, _, err := q.bind(p, args, size[0])
			if err != nil {
				t.Fatal(err)
			}
			order := rand.New(rand.NewPCG(1, 6)).Perm(size[0])
			var wg sync.WaitGroup
			errs := make([]error, 3)
			for i := range errs {
				wg.Go(func() {
					with := new(scratch)
					for at := i; at < len(order) && errs[i] == nil; at += len(errs) {
						errs[i] = all.run(t.Context(), order[at], order[at]+1, with)
					}
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s: %v", c.op, err)
			}
			if !bytes.Equal(out, want) {
				t.Errorf("%s: other bits block by block", c.op)
			}
			closeAll(q, p)
		}
	})
}

// launchedOp gives a launch of an operation on random numbers, with these as the argument
// that has as many bytes.
func launchedOp(t *testing.T, b *Backend, op ops.Op, ints []byte) (*queue, gpuexec.Program, []gpuexec.DeviceArg) {
	t.Helper()
	if op.Kind == ops.Attention {
		l := newLaunchedOn(t, b, op)
		copy(view(l.args[3]), ints)
		return l.queue, l.program, l.args
	}
	d, err := b.Open(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	src := source(t, b, op)
	p, err := d.Compile(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 5))
	var args []gpuexec.DeviceArg
	for _, param := range src.Params {
		m, err := d.Alloc(param.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		for i, list := 0, floats(m.Mapped()); i < len(list); i++ {
			list[i] = float32(rnd.NormFloat64())
		}
		if param.Bytes == int64(len(ints)) {
			copy(m.Mapped(), ints)
		}
		args = append(args, gpuexec.DeviceArg{Kind: gpuexec.ParamBuffer, Memory: m, Bytes: param.Bytes})
	}
	return newQueue(d.(*device)), p, args
}

// closeAll closes what launchedOp gave, and the device.
func closeAll(q *queue, p gpuexec.Program) {
	q.Close()
	p.Release()
	q.d.Close()
}

// E1: a queue is busy from its first launch until Finish, with launches of every kind; while
// another is, a launch wakes nobody.
func TestLaunchesWakeHelpers(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(before)
	norm, attention := ops.New(ops.LayerNorm, 4000, 384), ops.New(ops.Attention, 512, 12, 32, 1)
	norm.Epsilon, attention.Scale = 1e-5, 0.5
	sets(t, func(t *testing.T, b *Backend) {
		wakesHelpers(t, b, norm, nil)
		if b.set.Name() == "generic" { // has a kernel for gelu, and less of the others takes as long
			wakesHelpers(t, b, ops.New(ops.MatMul, 64, 96, 1536), nil)
			return
		}
		wakesHelpers(t, b, ops.New(ops.MatMul, 512, 384, 384), nil)
		wakesHelpers(t, b, ops.New(ops.GELU, 4000, 1536), nil)
		wakesHelpers(t, b, ops.New(ops.BatchMatMul, 2, 12, 512, 32, 512), gpuexec.BytesOf([]int32{512, 512}))
		wakesHelpers(t, b, attention, gpuexec.BytesOf([]int32{0, 512}))
	})
}

func wakesHelpers(t *testing.T, b *Backend, op ops.Op, ints []byte) {
	t.Helper()
	q, p, args := launchedOp(t, b, op, ints)
	other := newQueue(q.d)
	size, _ := b.Launch(op)
	launch := func(name string, wakes bool) {
		t.Helper()
		q.team.all.Wait() // else helpers look out still
		if err := q.Launch(t.Context(), p, args, size, gpuexec.Size{1, 1, 1}); err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		if q.team.woken != wakes || !q.team.running {
			t.Errorf("%s, %s: helpers woken: %v; running: %v", op, name, q.team.woken, q.team.running)
		}
		if err := q.Finish(t.Context()); err != nil || q.team.running || q.team.woken {
			t.Errorf("%s, %s: %v; running after Finish: %v", op, name, err, q.team.running)
		}
	}
	launch("alone", true)
	other.team.begin()
	launch("beside another", false)
	other.team.finish()
	launch("alone again", true)
	other.Close()
	closeAll(q, p)
}

// launchKind is an operation with its argument of numbers that are no floats, if it has one.
type launchKind struct {
	op   ops.Op
	ints []byte
}

// kinds are launches of each kind but attention.
func kinds() []launchKind {
	norm := ops.New(ops.LayerNorm, 37, 24)
	norm.Epsilon = 1e-5
	return []launchKind{{ops.New(ops.MatMul, 20, 96, 40), nil}, {ops.New(ops.GELU, 33, 50), nil}, {norm, nil},
		{ops.New(ops.BatchMatMul, 3, 4, 17, 8, 17), gpuexec.BytesOf([]int32{17, 5, 9})}}
}

// E4: launches of no kind leave garbage, once their queue has had one.
func TestLaunchesAllocateNothing(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) {
		for _, c := range kinds() {
			q, p, args := launchedOp(t, b, c.op, c.ints)
			size, _ := b.Launch(c.op)
			if n := testing.AllocsPerRun(50, func() {
				if err := errors.Join(q.Launch(t.Context(), p, args, size, gpuexec.Size{1, 1, 1}), q.Finish(t.Context())); err != nil {
					t.Fatal(err)
				}
			}); n > 0 {
				t.Errorf("%s: %v allocations a launch", c.op, n)
			}
			closeAll(q, p)
		}
	})
}

// E3: a launch of any kind computes in the parts of a buffer that its arguments are.
func TestLaunchesInPartsOfABuffer(t *testing.T) {
	attention := ops.New(ops.Attention, 90, 3, 24, 4)
	attention.Scale = 0.5
	sets(t, func(t *testing.T, b *Backend) {
		for _, c := range append(kinds(), launchKind{attention, gpuexec.BytesOf([]int32{0, 1, 33, 33, 90})}) {
			q, p, args := launchedOp(t, b, c.op, c.ints)
			whole, err := q.d.Alloc(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			parts, last, end := slices.Clone(args), 0, int64(alignment)
			for i, a := range args { // the last buffer is the result
				if a.Kind == gpuexec.ParamBuffer {
					last = i
					parts[i].Memory, parts[i].Offset = whole, end
					copy(view(parts[i]), view(a))
					end += (a.Bytes + 2*alignment - 1) / alignment * alignment
				}
			}
			size, _ := b.Launch(c.op)
			for _, in := range [][]gpuexec.DeviceArg{args, parts} {
				if err := q.Launch(t.Context(), p, in, size, gpuexec.Size{1, 1, 1}); err != nil {
					t.Fatalf("%s: %v", c.op, err)
				}
			}
			if !bytes.Equal(view(parts[last]), view(args[last])) {
				t.Errorf("%s: other bits in parts of a buffer", c.op)
			}
			closeAll(q, p)
		}
	})
}
