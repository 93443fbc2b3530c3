package cpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/gemm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sets gives the backend of each instruction set that this processor has.
func sets(t *testing.T, test func(*testing.T, *Backend)) {
	for _, isa := range []string{"avx512", "avx2", "generic"} {
		t.Run(isa, func(t *testing.T) {
			b, err := New(isa)
			if errors.Is(err, fault.ErrUnavailable) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			test(t, b)
		})
	}
}

func source(t testing.TB, b *Backend, op ops.Op) gpuexec.Source {
	t.Helper()
	src, err := b.Source(op)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func TestContract(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) {
		devicetest.Contract(t, b, source(t, b, ops.New(ops.GELU, 3, 5)), source(t, b, ops.New(ops.Add, 4, 7, 2)), source(t, b, ops.New(ops.MatMul, 3, 4, 5)))
	})
}

func TestOperations(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) { devicetest.Operations(t, b) })
}

func TestUnknownInstructionSet(t *testing.T) {
	if _, err := New("sse"); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	if b, err := New("auto"); err != nil || b.Name() != Name {
		t.Errorf("auto: %v, %v", b, err)
	}
}

// E3: a launch of more blocks than the program has runs none, also where their
// number does not fit into 32 bits.
func TestGridAboveTheBlocks(t *testing.T) {
	b, err := New("auto")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	e, err := gpuexec.Open(ctx, gpuexec.Config{Backend: b, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(ctx)
	sums := ops.New(ops.BatchMatMul, 2, 3, 4, 5, 6)
	sums.MaskK = true // with a length of 0 it writes zeros
	for _, op := range []ops.Op{ops.New(ops.Tanh, 3, 4), ops.New(ops.MatMul, 3, 4, 5), sums} {
		src := source(t, b, op)
		k, err := e.Compile(ctx, src)
		if err != nil {
			t.Fatal(err)
		}
		l := gpuexec.Launch{Kernel: k}
		var written *gpuexec.Buffer // the last argument
		for _, p := range src.Params {
			if written, err = e.Alloc(ctx, p.Bytes); err != nil {
				t.Fatal(err)
			}
			l.Args = append(l.Args, gpuexec.BufferArg(written))
		}
		mark := bytes.Repeat([]byte{1}, int(written.Bytes()))
		if err := e.Write(ctx, written, 0, mark); err != nil {
			t.Fatal(err)
		}
		most := b.blocks(op)
		for _, wide := range []int64{int64(most) + 1, math.MaxInt32, math.MaxInt32 + 2, 1 << 32, 1<<32 + 1, math.MaxInt} {
			grid := int(wide)
			if int64(grid) != wide {
				continue // no int of this machine
			}
			l.Grid = gpuexec.Size{grid}
			if err := e.Submit(ctx, l); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(most)) {
				t.Errorf("%s: grid of %d: %v, want ErrInvalid with %d", op, grid, err, most)
			}
		}
		if !bytes.Equal(written.Mapped(), mark) {
			t.Errorf("%s: a wrong launch has written", op)
		}
		if l.Grid = (gpuexec.Size{most}); e.Submit(ctx, l) != nil || bytes.Equal(written.Mapped(), mark) {
			t.Errorf("%s: a right launch has not written", op)
		}
	}
}

// E4: no call of machine code that cannot be preempted runs more blocks than its
// budget allows, and the blocks of a launch are all run.
func TestCallsAreShort(t *testing.T) {
	for _, op := range []ops.Op{
		ops.New(ops.GELU, 4096, 3072), ops.New(ops.Softmax, 8, 12, 512, 512), ops.New(ops.Reorder, 8, 512, 12, 64),
		ops.New(ops.Gather, 4096, 768, 30522), ops.New(ops.Tanh, 1, 1), ops.New(ops.Slice, 8, 512, 768),
	} {
		spec, isKernel := kernels.Of(op)
		if !isKernel || spec.Validate() != nil {
			t.Fatalf("%s is no kernel", op)
		}
		each := spec.BlocksPerCall()
		if call := time.Duration(each) * spec.BlockCost(); call > 500*time.Microsecond {
			t.Errorf("%s: %d blocks a call, %v in all: more than half a millisecond", op, each, call)
		}
		if each < 1 || each > spec.Blocks() {
			t.Errorf("%s: %d blocks a call of %d", op, each, spec.Blocks())
		}
	}
}

// K4, E8: a product with weights in bfloat16 is that of the rounded weights, bit for bit,
// under keys of its own, and no blob of one is taken for the other's.
func TestBFloat16(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) {
		plain := ops.New(ops.MatMul, 5, 20, 37)
		rounded := plain
		rounded.BFloat16 = true
		x, w := make([]float32, 5*20), make([]float32, 20*37)
		for i := range x {
			x[i] = float32(i%13) / 7
		}
		for i := range w {
			w[i] = math.Float32frombits(uint32(0x3f800000 + i<<16)) // of bfloat16
		}
		products := map[ops.Op][]float32{}
		for _, op := range []ops.Op{plain, rounded} {
			if op.BFloat16 {
				for i := range w {
					w[i] = math.Float32frombits(math.Float32bits(w[i]) + 0x7fff)
				}
			}
			form, err := b.Prepare(op)
			if err != nil {
				t.Fatal(err)
			}
			set, packed := b.setOf(op), make([]float32, form.Bytes/4)
			if err := form.Fill(gpuexec.BytesOf(packed), w); err != nil {
				t.Fatal(err)
			}
			c := make([]float32, 5*37)
			a := gemm.Args{M: 5, K: 20, N: 37, A: x, LDA: 20, B: packed, C: c, LDC: 37}
			if err := set.Run(&a, 0, set.Blocks(5, 37, 20)); err != nil {
				t.Fatal(err)
			}
			products[op] = c
		}
		if !bytes.Equal(gpuexec.BytesOf(products[plain]), gpuexec.BytesOf(products[rounded])) {
			t.Error("the product has other bits")
		}
		one, _ := b.Prepare(plain)
		other, _ := b.Prepare(rounded)
		if one.Format == other.Format || 2*other.Bytes != one.Bytes || source(t, b, plain).Key == source(t, b, rounded).Key {
			t.Errorf("prepared as %q, %d bytes, and %q, %d", one.Format, one.Bytes, other.Format, other.Bytes)
		}
		d, err := b.Open(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if p, err := d.Load(t.Context(), source(t, b, rounded), []byte(d.(*device).productBlob(plain))); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("the other's blob: %v, %v", p, err)
		}
	})
}

// A queue that rests keeps no machine code of a program that was released.
func TestProgramsAreNotKept(t *testing.T) {
	b, _ := New("auto")
	norm := ops.New(ops.LayerNorm, 4, 16)
	norm.Epsilon = 1e-5
	kept, end := func() (weak.Pointer[program], func()) {
		q, p, args := launchedOp(t, b, norm, nil)
		size, _ := b.Launch(norm)
		if err := errors.Join(q.Launch(t.Context(), p, args, size, gpuexec.Size{1, 1, 1}), q.Finish(t.Context())); err != nil {
			t.Fatal(err)
		}
		p.Release()
		return weak.Make(p.(*program)), func() { q.Close(); q.d.Close() }
	}()
	runtime.GC()
	if kept.Value() != nil {
		t.Error("the queue keeps the program of its last launch")
	}
	end()
}

// E1: an estimate knows what the processor lacks: without vectors a turn would take a hundred times as long.
func TestEstimatesKnowTheSet(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) {
		least, most := 0.005, 0.05 // ns a flop
		if b.set.Name() == "generic" {
			least, most = 0.5, 2.5
		}
		if got := float64(b.set.Takes(1e9)) / 1e9; got < least || got > most {
			t.Errorf("%g ns a flop, want %g to %g", got, least, most)
		}
	})
}

// E4: a launch ends with its context, between two calls: one with helpers too.
func TestLaunchesEndWithTheirContext(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(before)
	b, _ := New("auto")
	few, many := ops.New(ops.LayerNorm, 4, 384), ops.New(ops.LayerNorm, 4000, 384)
	few.Epsilon, many.Epsilon = 1e-5, 1e-5
	for _, op := range []ops.Op{few, many, ops.New(ops.MatMul, 2, 30, 40), ops.New(ops.MatMul, 512, 384, 384), ops.New(ops.GELU, 3, 40), ops.New(ops.GELU, 3000, 1536)} {
		q, p, args := launchedOp(t, b, op, nil)
		other := newQueue(q.d)
		size, _ := b.Launch(op)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := q.Launch(ctx, p, args, size, gpuexec.Size{1, 1, 1}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", op, err)
		}
		other.Close()
		closeAll(q, p)
	}
}

// A launch that goes on looks at its context after some blocks, and leaves none out.
func TestPartsOfALaunch(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 1000} {
		ctx, cancel := context.WithCancel(t.Context())
		at := 7
		err := inParts(ctx, 7, 7+n, 64, func(first, end int) error {
			if first != at || end <= first || end > first+64 {
				t.Errorf("blocks %d to %d after %d", first, end, at)
			}
			at = end
			return nil
		})
		if err != nil || at != 7+n {
			t.Errorf("%d blocks: %v at %d", n, err, at)
		}
		parts := 0
		err = inParts(ctx, 0, n, 64, func(int, int) error { parts++; cancel(); return nil })
		if parts != min(n, 1) || (err != nil) != (n > 64) {
			t.Errorf("%d blocks: %d parts after the end of the context, %v", n, parts, err)
		}
	}
}
