package onednn

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// described goes through the list of a request, and describes what is in it.
func (r *rig) described(s *primitive.Spec) (n int, err error) {
	for i, err := range r.Implementations(bg, s) {
		if err != nil {
			return n, err
		}
		if !i.Accepts() {
			continue
		}
		d, err := i.Describe()
		if err != nil {
			return n, err
		}
		d.Free()
		n++
	}
	return n, nil
}

// refused wants an error of that kind.
func (r *rig) refused(s primitive.Spec, want error) {
	r.Helper()
	if n, err := r.described(&s); !errors.Is(err, want) {
		r.Errorf("%s %s with %d tensors: %d implementations, %v: want %v", s.Kind, s.Op.Direction, len(s.Op.Tensors), n, err, want)
	}
}

// E3: too few tensors are an error before anything is read of them.
func TestTooFewTensors(t *testing.T) {
	r := open1(t, limit.Limit{})
	for kind, p := range map[string]param{"convolution": ints("strides", 1, 1), "pooling": ints("kernel", 1, 1), "softmax": ints("axis", 1),
		"concat": ints("axis", 0), "sum": float("scales", 1)} {
		for n := range 2 {
			tensors := []tensor{Dense("f32", 2, 2, 4, 4)}[:n]
			r.refused(spec(kind, "", "", []param{p}, tensors...), fault.ErrInvalid)
		}
	}
}

// E3: a pooling without dimensions to pool over ends the process in the library.
func TestPoolingOverNothing(t *testing.T) {
	r := open1(t, limit.Limit{})
	for _, d := range [][]int64{{2}, {2, 2}} {
		r.refused(spec("pooling", "inference", "max", nil, Dense("f32", d...), Dense("f32", d...)), fault.ErrInvalid)
		r.refused(spec("pooling", "inference", "max", []param{ints("kernel", 1, 1)}, Dense("f32", 1, 1, 2, 2), Dense("f32", d...)), fault.ErrInvalid)
	}
}

// E3: strides and blocks whose numbers share places, or that wrap around, get no memory: the
// library would say too few bytes for it.
func TestLayoutsThatOverlap(t *testing.T) {
	r := open1(t, limit.Limit{})
	block := func(dim int, size int64) primitive.Block { return primitive.Block{Dim: dim, Size: size} }
	for _, x := range []tensor{
		{Type: "f32", Dims: []int64{10, 10}, Strides: []int64{10, 9}},
		{Type: "f32", Dims: []int64{10, 10}, Strides: []int64{10, 9}, Blocks: []primitive.Block{block(0, 1)}},
		{Type: "f32", Dims: []int64{10, 10}, Strides: []int64{8, 1}, Blocks: []primitive.Block{block(1, 8)}},
		{Type: "f32", Dims: []int64{10, 10}, Strides: []int64{0, 0}},
		{Type: "f32", Dims: []int64{4, 4}, Strides: []int64{4, 1}, Blocks: []primitive.Block{block(0, 1<<32), block(0, 1<<32)}},
		{Type: "f32", Dims: []int64{4, 4}, Strides: []int64{4, 1}, Blocks: []primitive.Block{block(1, 1<<62)}},
	} {
		m, err := r.NewMemory(x)
		if !errors.Is(err, fault.ErrUnsupported) && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", x, err)
		}
		if err == nil {
			m.Release()
		}
	}
	for _, x := range []tensor{ // these are none of them
		{Type: "s8", Dims: []int64{10, 10}, Strides: []int64{0, 1}},
		{Type: "f16", Dims: []int64{3, 5, 2}, Strides: []int64{40, 1, 8}},
		{Type: "f32", Dims: []int64{2, 32, 4, 4}, Strides: []int64{512, 256, 64, 16}, Blocks: []primitive.Block{block(1, 16)}},
		{Type: "f32", Dims: []int64{0, 10}, Strides: []int64{10, 1}},
	} {
		m, err := r.NewMemory(x)
		if err != nil {
			t.Errorf("%+v: %v", x, err)
			continue
		}
		m.Release()
	}
}

// E2: memory that the machine does not have is an error, and not the process's end; so is
// scratch memory.
func TestMemoryThatIsNotThere(t *testing.T) {
	const n = 16 << 40
	if available(n) {
		t.Skip("this system promises what it does not have")
	}
	r := open1(t, limit.Limit{})
	for _, x := range []tensor{Dense("f32", n/8), {Type: "u8", Dims: []int64{2}, Strides: []int64{n - 8}}} {
		if _, err := r.NewMemory(x); !errors.Is(err, fault.ErrTooLarge) {
			t.Errorf("%v: %v, want ErrTooLarge", x.Dims, err)
		}
	}
	w := <-r.workers
	if err := w.grow(n / 2); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("scratch memory: %v, want ErrTooLarge", err)
	}
	r.workers <- w
}

// E3: a softmax into a smaller tensor writes behind it in every version of the library.
func TestSoftmaxIntoAnotherShape(t *testing.T) {
	r := open1(t, limit.Limit{})
	axis := []param{ints("axis", 0)}
	for _, d := range [][]int64{{2, 4}, {0, 4}, {256, 64}, {64, 256, 1}, {64 * 256}} {
		r.refused(spec("softmax", "inference", "accurate", axis, Dense("f32", 64, 256), Dense("f32", d...)), fault.ErrInvalid)
		r.refused(spec("softmax", "inference", "log", axis, Dense("f32", d...), Dense("f32", 64, 256)), fault.ErrInvalid)
		forward := r.kernel(spec("softmax", "forward", "accurate", axis, Dense("f32", 64, 256), Dense("f32", 64, 256)))
		for i := range 3 {
			shapes := []tensor{Dense("f32", 64, 256), Dense("f32", 64, 256), Dense("f32", 64, 256)}
			shapes[i] = Dense("f32", d...)
			r.refused(r.hinted(spec("softmax", "backward_data", "accurate", axis, shapes...), forward), fault.ErrInvalid)
		}
	}
}

// E3: a product of nothing divides by zero in 2.6, and is one in 3.x.
func TestProductOfNothing(t *testing.T) {
	r := open1(t, limit.Limit{})
	for _, d := range [][2]int64{{0, 8}, {4, 0}, {0, 0}} {
		s := matmul(d[0], d[1], 16, Dense("f32", d[1], 16))
		if n, err := r.described(&s); r.is3() && (err != nil || n == 0) || !r.is3() && !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("%v: %d implementations, %v", d, n, err)
		}
	}
}

// E2, E3: a reorder or a concatenation that writes no number runs without the library, which
// divides by its sizes, when it makes the primitive or when it runs.
func TestCopyOfNothing(t *testing.T) {
	r := open1(t, limit.Limit{})
	turned := tensor{Type: "f32", Dims: []int64{0, 2}, Strides: []int64{1, 2}}
	copies := []primitive.Spec{spec("concat", "", "", []param{ints("axis", 1)}, Dense("f32", 0, 2), turned, Dense("f32", 0, 4))}
	for _, d := range [][]int64{{5, 1, 0}, {0, 17, 0, 3}, {0, 8}, {0}} {
		for _, scales := range [][]primitive.Quant{nil, {{Arg: "src", Mask: 1}}} {
			s := spec("reorder", "", "", nil, Dense("f32", d...), Dense("s8", d...))
			if s.Attr.Scales = scales; scales == nil || r.is3() {
				copies = append(copies, s)
			}
		}
	}
	for _, s := range copies {
		lease, _, err := r.Primitive(bg, &s, "")
		if errors.Is(err, primitive.ErrEnd) || errors.Is(err, fault.ErrUnsupported) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var args []Arg
		for _, a := range lease.Primitive().Native().(*kernel).plan.args {
			args = append(args, Arg{a.slot, r.memory(a.tensor)})
		}
		r.run(lease.Primitive(), args...)
		lease.End()
	}
}

// E3: a layout in the library's bytes is one that the library gave: it reads others without a
// look, beyond their end, too.
func TestLayoutOfNobody(t *testing.T) {
	r := open1(t, limit.Limit{})
	s := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []tensor{Dense("s8", 4, 64), {Type: "s8", Dims: []int64{64, 32}}, {}, Dense("f32", 4, 32)}}}
	weights := r.kernel(s).Descriptor().Tensors()[1]
	wrong := []string{"x", string(make([]byte, 16)), string(bytes.Repeat([]byte{0xff}, 16)), string(bytes.Repeat([]byte{0xff}, 1<<12))}
	if whole := weights.Layout; whole != "" {
		r.memory(weights)
		for i := range len(whole) {
			changed := []byte(whole)
			changed[i] ^= 1 << (i % 8)
			wrong = append(wrong, whole[:i], string(changed))
		}
		blob, err := layouts.Open(r.image.version, []byte(whole))
		if err != nil {
			t.Fatal(err)
		}
		wrong = append(wrong[1:], whole+"x", string(layouts.Seal("3.99.0", blob)))
	}
	for _, w := range wrong {
		if w == "" {
			continue
		}
		_, err := r.NewMemory(tensor{Type: "s8", Dims: []int64{64, 32}, Layout: w})
		if !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("%q: %v, want ErrInvalid", w, err)
		}
	}
}

// E2: a path that leads to no library is answered at once, with what it leads to: the
// loader would wait for a pipe.
func TestPathsOfNoLibrary(t *testing.T) {
	dir := t.TempDir()
	text, empty, pipe := filepath.Join(dir, "text"), filepath.Join(dir, "empty"), filepath.Join(dir, "pipe")
	for name, content := range map[string]string{text: strings.Repeat("a text\n", 1000), empty: ""} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wants := map[string]string{dir: "a folder", text: "is no shared library: it begins with", empty: "is no shared library", filepath.Join(dir, "none"): "no such file"}
	if err := exec.Command("mkfifo", pipe).Run(); err == nil {
		wants[pipe] = "is no file, but p"
	}
	for path, want := range wants {
		_, err := Open(Config{Path: path})
		if !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "KILN_ONEDNN_LIBRARY") {
			t.Errorf("%s: %v, want ErrUnavailable with %q", path, err, want)
		}
	}
}

// C1: a panic in the body of a loop over implementations leaves nothing of the library.
func TestPanicAmongImplementations(t *testing.T) {
	r := open1(t, limit.Limit{})
	before := r.Len()
	s := matmul(3, 4, 5, Dense("f32", 4, 5))
	for at := range 2 {
		func() {
			defer func() { _ = recover() }()
			n := 0
			for range r.Implementations(bg, &s) {
				if n == at {
					panic("in the body")
				}
				n++
			}
		}()
	}
	if after := r.Len(); after != before {
		t.Errorf("%d objects of the library are left", after-before)
	}
}

// K4: as many post-operations as the library takes; of one more the error says how many.
func TestManyPostOps(t *testing.T) {
	r := open1(t, limit.Limit{})
	s := matmul(3, 4, 5, Dense("f32", 4, 5))
	for range mostPostOps {
		s.Attr.PostOps = append(s.Attr.PostOps, primitive.PostOp{Kind: "eltwise", Algorithm: "relu"})
	}
	r.kernel(s)
	s.Attr.PostOps = append(s.Attr.PostOps, s.Attr.PostOps[0])
	_, _, err := r.Primitive(bg, &s, "")
	if !errors.Is(err, fault.ErrUnsupported) || !strings.Contains(err.Error(), "33 post-operations: want at most 32") {
		t.Errorf("%v, want ErrUnsupported with the number", err)
	}
}

// K3, E3: tensors that differ in one thing are not each other's, but for the stride of a
// dimension of one block.
func TestTensorsThatAreNotTheSame(t *testing.T) {
	base := func() tensor {
		d := Dense("f32", 32, 1, 16)
		d.Blocks = []primitive.Block{{Dim: 0, Size: 16}, {Dim: 2, Size: 4}}
		return d
	}
	a := base()
	for what, change := range map[string]func(*tensor){
		"type":                func(b *tensor) { b.Type = "s32" },
		"a dimension":         func(b *tensor) { b.Dims[0] = 48 },
		"a stride":            func(b *tensor) { b.Strides[0]++ },
		"no strides":          func(b *tensor) { b.Strides = nil },
		"a block's size":      func(b *tensor) { b.Blocks[0].Size = 8 },
		"a block's dimension": func(b *tensor) { b.Blocks[1].Dim = 1 },
		"the order of blocks": func(b *tensor) { b.Blocks[0], b.Blocks[1] = b.Blocks[1], b.Blocks[0] },
		"one block less":      func(b *tensor) { b.Blocks = b.Blocks[:1] },
		"an offset":           func(b *tensor) { b.Offset = 4 },
		"a layout":            func(b *tensor) { b.Layout = "x" },
		"one dimension more":  func(b *tensor) { b.Dims, b.Strides = append(b.Dims, 1), append(b.Strides, 1) },
	} {
		b := base()
		change(&b)
		if same(&a, &b) || same(&b, &a) {
			t.Errorf("with another %s they are the same", what)
		}
	}
	b := base()
	if b.Strides[1] = 7; !same(&a, &b) {
		t.Error("the stride of a dimension of size 1 counts")
	}
}

// E3: what is of one library is refused by another one of the same process.
func TestAnotherLibrarysObjects(t *testing.T) {
	one, two := open1(t, limit.Limit{}), open1(t, limit.Limit{})
	shape := Dense("f32", 3, 4)
	s := spec("eltwise", "inference", "abs", nil, shape, shape)
	mine, theirs := one.kernel(s), two.kernel(s)
	if b, err := two.Create(bg, mine.Descriptor()); !errors.Is(err, fault.ErrInvalid) {
		if err == nil {
			b.Free()
		}
		t.Errorf("a primitive of another library's descriptor: %v, want ErrInvalid", err)
	}
	args := func(r *rig) []Arg { return []Arg{{Src, r.memory(shape)}, {Dst, r.memory(shape)}} }
	if err := two.Execute(bg, mine, args(two)...); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("another library's primitive: %v, want ErrInvalid", err)
	}
	if err := two.Execute(bg, theirs, args(one)...); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("another library's memory: %v, want ErrInvalid", err)
	}
	if err := two.Execute(bg, theirs, args(two)...); err != nil {
		t.Error(err)
	}
}

// F9: Close waits for what is built behind: it uses the engine.
func TestCloseWaitsForForms(t *testing.T) {
	opened, err := backend(t).Open(bg, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := opened.(*device)
	var ended atomic.Bool
	d.all.Go(func() {
		<-d.ctx.Done()
		time.Sleep(20 * time.Millisecond)
		ended.Store(true)
	})
	if err := d.Close(); err != nil || !ended.Load() {
		t.Errorf("Close: %v; what was built behind had ended: %v", err, ended.Load())
	}
}

// E3: sizes whose product wraps around are too large, and a bias is of its product's rows.
func TestSizesThatWrap(t *testing.T) {
	for _, x := range []tensor{
		{Type: "f32", Dims: []int64{1 << 22}, Strides: []int64{1 << 43}}, // 2^65 places
		{Type: "f32", Dims: []int64{1 << 43, 1 << 43}},
		{Type: "f32", Dims: []int64{1 << 22, 1 << 21, 1 << 21}},
	} {
		if err := check(&x, false); !errors.Is(err, fault.ErrTooLarge) {
			t.Errorf("%v, strides %v: %v, want ErrTooLarge", x.Dims, x.Strides, err)
		}
	}
	src, weights, dst := []int64{2, 5, 3}, []int64{1, 3, 4}, []int64{2, 5, 4}
	for _, bias := range [][]int64{nil, {1, 1, 4}, {2, 5, 4}, {1, 1, 1}} {
		if !multiplies(src, weights, bias, dst) {
			t.Errorf("a bias of %v is refused for %v", bias, dst)
		}
	}
	for _, bias := range [][]int64{{1, 1, 5}, {1, 4, 4}, {3, 1, 4}} {
		if multiplies(src, weights, bias, dst) {
			t.Errorf("a bias of %v is taken for %v", bias, dst)
		}
	}
}

// F9: a library is opened again where its file has gone since it was loaded, as an upgrade
// of the system takes it: it stays in the process.
func TestFileGoneSinceItWasLoaded(t *testing.T) {
	need(t, 1)
	gone := filepath.Join(t.TempDir(), "libdnnl.so.3")
	loaded.Lock()
	asked := loaded.asked
	loaded.asked = gone // as if it had been loaded from there
	loaded.Unlock()
	defer func() {
		loaded.Lock()
		loaded.asked = asked
		loaded.Unlock()
	}()
	l, err := Open(Config{Path: gone, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// E3: an execution of no primitive is refused.
func TestExecutionOfNoPrimitive(t *testing.T) {
	if err := need(t, 1).Execute(bg, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// K4: a sum behind an operation adds what is there, also where no scale is given: that is 1.
func TestSumWithoutAScale(t *testing.T) {
	r := open1(t, limit.Limit{})
	row := Dense("f32", 1, 2)
	for _, scale := range []float64{0, 1, 2} {
		s := spec("matmul", "", "", nil, row, Dense("f32", 2, 2), tensor{}, row)
		s.Attr.PostOps = []primitive.PostOp{{Kind: "sum", Scale: scale}}
		dst := r.memory(row)
		copy(Of[float32](dst), []float32{100, 200})
		r.run(r.kernel(s), Arg{Src, r.memory(row)}, Arg{Weights, r.memory(Dense("f32", 2, 2))}, Arg{Dst, dst})
		near(t, "sum", Of[float32](dst), []float64{100 * max(scale, 1), 200 * max(scale, 1)}, 0)
	}
}
