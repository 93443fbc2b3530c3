package onednn

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// stage is an open device with a queue.
type stage struct {
	testing.TB
	b *Backend
	*device
	queue gpuexec.Queue
}

func onStage(t testing.TB) *stage {
	t.Helper()
	b := backend(t)
	opened, err := b.Open(bg, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := opened.(*device)
	q, err := d.OpenQueue()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(q.Close(), d.Close()); err != nil {
			t.Error(err)
		}
		if n := d.lib.Len(); n != 0 {
			t.Errorf("%d objects of the library are left", n)
		}
	})
	return &stage{t, b, d, q}
}

func (s *stage) compile(op ops.Op) *program {
	s.Helper()
	p, err := s.Compile(bg, source(s, s.b, op))
	if err != nil {
		s.Fatal(err)
	}
	return p.(*program)
}

// filled is device memory with numbers, as an argument.
func (s *stage) filled(numbers []float32) gpuexec.DeviceArg {
	s.Helper()
	m, err := s.Alloc(int64(4 * len(numbers)))
	if err != nil {
		s.Fatal(err)
	}
	copy(m.Mapped(), gpuexec.BytesOf(numbers))
	return gpuexec.DeviceArg{Kind: gpuexec.ParamBuffer, Memory: m, Bytes: int64(4 * len(numbers))}
}

func (s *stage) launch(p *program, args ...gpuexec.DeviceArg) {
	s.Helper()
	if err := s.queue.Launch(bg, p, args, gpuexec.Size{1, 1, 1}, gpuexec.Size{1, 1, 1}); err != nil {
		s.Fatal(err)
	}
}

func random(n int64) []float32 {
	rnd := rand.New(rand.NewPCG(uint64(n), 1))
	list := make([]float32, n)
	for i := range list {
		list[i] = 2*rnd.Float32() - 1
	}
	return list
}

// E7: a product runs in the form for any number of rows; one that has run for so long that
// it pays has its exact form built behind, which takes over; one that has run for less has
// not. Both take one copy of the weight, and give the same numbers.
func TestExactFormBehind(t *testing.T) {
	s := onStage(t)
	const k, n = 96, 160
	op := ops.New(ops.MatMul, 33, k, n)
	weight := random(k * n)
	form, err := s.b.Prepare(op)
	if err != nil || form.Bytes != 4*k*n {
		t.Fatalf("%d bytes of a weight, want %d: %v", form.Bytes, 4*k*n, err)
	}
	prepared := make([]float32, form.Bytes/4)
	if err := form.Fill(gpuexec.BytesOf(prepared), weight); err != nil {
		t.Fatal(err)
	}
	x := random(33 * k)
	want := product(x, weight, 33, k, n)
	p, once := s.compile(op), s.compile(ops.New(ops.MatMul, 32, k, n))
	p.pays, once.pays = time.Hour, time.Hour
	args := []gpuexec.DeviceArg{s.filled(x), s.filled(prepared), s.filled(make([]float32, 33*n))}
	s.launch(once, args...)
	for i := range 3 {
		if i == 1 {
			p.spent.Store(int64(p.pays))
		}
		clear(args[2].Memory.Mapped())
		s.launch(p, args...)
		near(t, "product", floats(args[2].Memory.Mapped()), want, 1e-5)
		s.all.Wait()
		if built := p.exact.Load() != nil; built != (i > 0) {
			t.Errorf("after launch %d the exact form is there: %v", i+1, built)
		}
	}
	if once.exact.Load() != nil {
		t.Error("a shape that was launched once, for less than an hour, has an exact form")
	}
	if g, e := s.general.Load(), s.exact.Load(); g != 3 || e != 1 {
		t.Errorf("%d launches in the general form and %d in the exact one, want 3 and 1", g, e)
	}
	if p.general.lease.Primitive() != once.general.lease.Primitive() {
		t.Error("two numbers of rows have two general forms")
	}
	p.Release()
	once.Release()
}

// E7: what Go's loops would take longer for than the library takes to build it is built
// first; less is built behind.
func TestLargeIsBuiltFirst(t *testing.T) {
	s := onStage(t)
	for _, op := range []ops.Op{ops.New(ops.GELU, 3, 5), ops.New(ops.GELU, 300, 50), ops.New(ops.Softmax, 1, 1, 3, 3), ops.New(ops.Softmax, 2, 2, 70, 70)} {
		p := s.compile(op)
		if first := p.exact.Load() != nil; first != (op.Elements() > 5000) {
			t.Errorf("%s is built first: %v", op, first)
		}
		p.Release()
	}
	for _, m := range []int64{64, 640} { // the other form is nearly as fast, but where it reads columns
		for _, transposed := range []bool{false, true} {
			op := ops.New(ops.BatchMatMul, 1, 4, m, 32, m)
			op.TransposeB = transposed
			p := s.compile(op)
			if first := p.exact.Load() != nil; first != (m == 640 && transposed) {
				t.Errorf("%s is built first: %v", op, first)
			}
			p.Release()
		}
	}
}

// E7: the budget: a device has so many exact forms waiting and one in the making; a program
// that found no place asks again. What is released meanwhile leaves nothing.
func TestBudgetOfForms(t *testing.T) {
	s := onStage(t)
	s.mu.building = true // as if one were being built
	var all []*program
	for m := range int64(mostWanted + 1) {
		p := s.compile(ops.New(ops.Tanh, 1, m+1))
		all = append(all, p)
		p.spent.Store(int64(p.pays))
		x := s.filled(random(m + 1))
		s.launch(p, x, x)
	}
	last := all[mostWanted]
	if len(s.mu.wanted) != mostWanted || last.asked.Load() {
		t.Errorf("%d wait, and the last has asked: %v", len(s.mu.wanted), last.asked.Load())
	}
	all[0].Release()
	s.all.Go(s.build)
	s.all.Wait()
	x := s.filled(random(mostWanted + 1))
	s.launch(last, x, x)
	s.all.Wait()
	if last.exact.Load() == nil || all[1].exact.Load() == nil || all[0].exact.Load() != nil {
		t.Error("want the exact form of the last and the second, and not of what was released")
	}
	for _, p := range all[1:] {
		p.Release()
	}
}

// E7: a program that is released is nothing to its device any more.
func TestReleasedProgramIsForgotten(t *testing.T) {
	s := onStage(t)
	for range 3 {
		s.compile(ops.New(ops.GELU, 2, 3)).Release()
	}
	if n := len(s.mu.programs); n != 0 {
		t.Errorf("the device has %d programs, want none", n)
	}
}

// A length that no sequence can have is that of all positions.
func TestLengthsThatAreNone(t *testing.T) {
	lengths := gpuexec.BytesOf([]int32{0, 3, 4, 5, -1, math.MaxInt32, math.MinInt32})
	for item, want := range []int64{0, 3, 4, 4, 4, 4, 4} {
		if got := valid(lengths, int64(item), 4); got != want {
			t.Errorf("item %d: %d, want %d", item, got, want)
		}
	}
}

// E7: a product with a scale has it in both forms. The form for any size takes it as that of
// an argument, where the version has those, and another scale is the same primitive then.
func TestScaleOfForms(t *testing.T) {
	s := onStage(t)
	const heads, m, k, n = 2, 7, 6, 5
	a, b := random(heads*m*k), random(heads*k*n)
	_, old := s.lib.b.(*table2)
	var general []*runner
	for _, scale := range []float32{0.25, -3} {
		op := ops.New(ops.BatchMatMul, 1, heads, m, k, n)
		op.Scale = scale
		p := s.compile(op)
		defer p.Release()
		p.pays, general = time.Hour, append(general, p.general)
		args := []gpuexec.DeviceArg{s.filled(a), s.filled(b), s.filled([]float32{0}), s.filled(make([]float32, heads*m*n))}
		for _, exact := range []bool{false, true} {
			if p.Exact(bg, exact) != exact {
				t.Fatalf("the exact form is there: want %v", exact)
			}
			clear(args[3].Memory.Mapped())
			s.launch(p, args...)
			for block := range heads {
				want := product(a[block*m*k:(block+1)*m*k], b[block*k*n:(block+1)*k*n], m, k, n)
				for i := range want {
					want[i] *= float64(scale)
				}
				near(t, "block", floats(args[3].Memory.Mapped())[block*m*n:(block+1)*m*n], want, 1e-5)
			}
		}
	}
	if shared := general[0].lease.Primitive() == general[1].lease.Primitive(); shared == old {
		t.Errorf("two scales have one primitive: %v", shared)
	}
}

// E7, E8: sequences of several lengths in one batch sum over what is theirs, whatever lies
// behind it.
func TestRaggedProduct(t *testing.T) {
	for _, scale := range []float32{0, 0.5} {
		ragged(t, scale)
	}
}

func ragged(t *testing.T, scale float32) {
	s := onStage(t)
	const items, heads, m, k, n = 4, 2, 7, 7, 5
	op := ops.New(ops.BatchMatMul, items, heads, m, k, n)
	op.MaskK, op.Scale = true, scale
	p := s.compile(op)
	defer p.Release()
	a, b := random(items*heads*m*k), random(items*heads*k*n)
	lengths := []int32{3, 7, 0, -1}
	for i := range items * heads {
		for row := range m * k {
			if l := int(lengths[i/heads]); l >= 0 && row%k >= l {
				a[i*m*k+row] = 1e30
			}
		}
	}
	list := s.filled(make([]float32, items))
	copy(list.Memory.Mapped(), gpuexec.BytesOf(lengths))
	out := s.filled(slices.Repeat([]float32{9}, items*heads*m*n))
	s.launch(p, s.filled(a), s.filled(b), list, out)
	for block := range items * heads {
		depth := int(lengths[block/heads])
		if depth < 0 {
			depth = k
		}
		want := make([]float64, m*n)
		for i := range m {
			for j := range n {
				for x := range depth {
					want[i*n+j] += float64(a[block*m*k+i*k+x]) * float64(b[block*k*n+x*n+j])
				}
				if scale != 0 {
					want[i*n+j] *= float64(scale)
				}
			}
		}
		near(t, "block", floats(out.Memory.Mapped())[block*m*n:(block+1)*m*n], want, 1e-5)
	}
}

// E3: an id that the table has no row for, and a launch whose context has ended.
func TestRefusedLaunches(t *testing.T) {
	s := onStage(t)
	p := s.compile(ops.New(ops.Gather, 1, 2, 3))
	defer p.Release()
	for _, id := range []int32{-1, 3} {
		ids := s.filled([]float32{0})
		copy(ids.Memory.Mapped(), gpuexec.BytesOf([]int32{id}))
		err := s.queue.Launch(bg, p, []gpuexec.DeviceArg{ids, s.filled(random(6)), s.filled(random(2))}, gpuexec.Size{1}, gpuexec.Size{1})
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("id %d: %v, want ErrInvalid", id, err)
		}
	}
	ended, stop := context.WithCancel(bg)
	stop()
	if err := s.queue.Launch(ended, p, nil, gpuexec.Size{1}, gpuexec.Size{1}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's", err)
	}
	if _, err := s.b.Open(bg, 1); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("device 1: %v", err)
	}
	if _, err := s.Load(bg, gpuexec.Source{}, []byte("blob")); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("a blob: %v", err)
	}
}

// E7: both forms of a softmax give nothing behind an item's length, and nothing at all for
// an item without any valid position.
func TestSoftmaxOfNoPosition(t *testing.T) {
	s := onStage(t)
	const items, heads, rows, keys = 4, 2, 3, 5
	lengths := []int32{3, 0, keys, -1}
	x := random(items * heads * rows * keys)
	list, out := s.filled(make([]float32, items)), s.filled(make([]float32, len(x)))
	copy(list.Memory.Mapped(), gpuexec.BytesOf(lengths))
	p := s.compile(ops.New(ops.Softmax, items, heads, rows, keys))
	defer p.Release()
	p.pays = time.Hour
	want := make([]float64, len(x))
	for at := 0; at < len(x); at += keys {
		n, sum := int(lengths[at/(heads*rows*keys)]), 0.0
		if n < 0 {
			n = keys
		}
		for i := range n {
			want[at+i] = math.Exp(float64(x[at+i]))
			sum += want[at+i]
		}
		for i := range n {
			want[at+i] /= sum
		}
	}
	for _, exact := range []bool{false, true} {
		if p.Exact(bg, exact) != exact {
			t.Fatalf("the exact form is there: want %v", exact)
		}
		s.launch(p, s.filled(x), list, out)
		near(t, "softmax", floats(out.Memory.Mapped()), want, 1e-5)
	}
}

// E7: what a program takes has its exact form in it from the start: what is built behind it
// comes when nobody counts any more.
func TestBytesOfAProgram(t *testing.T) {
	s := onStage(t)
	p := s.compile(ops.New(ops.GELU, 3, 5)) // Go's loops else: all that is kept is the exact form
	defer p.Release()
	before := p.Bytes()
	if !p.Exact(bg, true) {
		t.Fatal("there is no exact form")
	}
	if kept := s.cache.Bytes(); before < kept || p.Bytes() != before {
		t.Errorf("the program says %d bytes, then %d, and its exact form takes %d", before, p.Bytes(), kept)
	}
}

// What a primitive takes of memory doubled with 3.6.
func TestBytesByVersion(t *testing.T) {
	product := primitive.Spec{Kind: "matmul"}
	fused := primitive.Spec{Kind: "matmul", Attr: primitive.Attributes{PostOps: []primitive.PostOp{{Kind: "sum"}}}}
	for v, times := range map[version]int64{
		{major: 2, minor: 6}: 1, {major: 2, minor: 7, patch: 1}: 1, {major: 3, minor: 2, patch: 1}: 1, {major: 3, minor: 5, patch: 3}: 1,
		{major: 3, minor: 6}: newer, {major: 3, minor: 13}: newer, {major: 4}: newer,
	} {
		l := &Library{image: &image{newer: v.newer()}}
		if a, b := l.bytes(&product), l.bytes(&fused); a != times*codeBytes || b != 2*times*codeBytes {
			t.Errorf("%d.%d: a product takes %d bytes, with post-operations %d", v.major, v.minor, a, b)
		}
	}
}

// ending is a context that ends after some looks at it.
type ending struct {
	context.Context
	looks int
}

func (e *ending) Err() error {
	if e.looks--; e.looks < 0 {
		return context.Canceled
	}
	return nil
}

// A product that goes through a batch by itself ends with its context, between two items.
func TestRaggedProductEndsWithItsContext(t *testing.T) {
	s := onStage(t)
	op := ops.New(ops.BatchMatMul, 3, 1, 2, 2, 2)
	op.MaskK = true
	p := s.compile(op)
	defer p.Release()
	if p.general == nil {
		t.Skip("this version has no product for any shape")
	}
	list, out := s.filled(make([]float32, 3)), s.filled(make([]float32, 12))
	copy(list.Memory.Mapped(), gpuexec.BytesOf([]int32{1, 1, 1}))
	args := []gpuexec.DeviceArg{s.filled(slices.Repeat([]float32{1}, 12)), s.filled(slices.Repeat([]float32{1}, 12)), list, out}
	err := s.queue.Launch(&ending{bg, 2}, p, args, gpuexec.Size{1, 1, 1}, gpuexec.Size{1, 1, 1}) // one look ahead of the launch
	got := floats(out.Memory.Mapped())
	if !errors.Is(err, context.Canceled) || got[3] != 1 || got[4] != 0 {
		t.Errorf("%v, behind %v: want the context's error behind the first item", err, got)
	}
}

// F2, E7: an exact form that could not be built, for memory was short just then, is built when the
// program has run on; one that the library does not have is asked for once.
func TestExactFormAfterAFault(t *testing.T) {
	need(t, 1)
	s := onStage(t)
	im, err := newImage(loaded.image.lib) // a table of its own
	if err != nil {
		t.Fatal(err)
	}
	c, short := im.tables.base(), true
	whole := c.Make
	c.Make = func(h *handle, pd handle) int32 {
		if short {
			return outOfMemory
		}
		return whole(h, pd)
	}
	s.lib.b, s.lib.c, s.lib.image = im.tables, c, im
	p := s.compile(ops.New(ops.GELU, 16, 64))
	defer p.Release()
	for _, short = range []bool{true, false} {
		p.ran(p.pays)
		s.all.Wait()
		if built := p.exact.Load() != nil; built == short || p.asked.Load() == short {
			t.Fatalf("memory is short: %v; the exact form is there: %v", short, built)
		}
		if spent := p.spent.Load(); short && spent != 0 {
			t.Errorf("a form that failed is asked for %v before it pays", time.Duration(spent))
		}
	}
	for _, err := range []error{fault.ErrUnsupported, primitive.ErrEnd} {
		if p.failed(err); !p.asked.Load() {
			t.Errorf("%v is asked for again", err)
		}
	}
}

// E7: a softmax writes 0 for padding in both forms, also where no valid score is finite.
func TestPaddingBehindInfinity(t *testing.T) {
	s := onStage(t)
	inf := float32(math.Inf(1))
	for _, first := range []float32{-inf, inf, float32(math.NaN())} {
		p := s.compile(ops.New(ops.Softmax, 1, 1, 1, 4))
		in, out := s.filled([]float32{first, -inf, 5, 6}), s.filled(make([]float32, 4))
		lengths := s.filled([]float32{math.Float32frombits(2)})
		for _, exact := range []bool{false, true} {
			if p.Exact(bg, exact) != exact {
				t.Fatalf("the exact form is there: want %v", exact)
			}
			s.launch(p, in, lengths, out)
			if got := floats(view(out)); got[2] != 0 || got[3] != 0 {
				t.Errorf("behind %v, exact form %v: %v, want 0 for the padding", first, exact, got)
			}
		}
		p.Release()
	}
}

// E7: a copy has one form: nothing is built for it, also where a caller would wait.
func TestCopiesHaveOneForm(t *testing.T) {
	s := onStage(t)
	for _, op := range []ops.Op{ops.New(ops.Add, 4, 7, 2), ops.New(ops.Gather, 1, 2, 3)} {
		p := s.compile(op)
		if p.Exact(bg, true) || s.cache.Len() != 0 {
			t.Errorf("%s: %d primitives", op, s.cache.Len())
		}
		p.Release()
	}
}
