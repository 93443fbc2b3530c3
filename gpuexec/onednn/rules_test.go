package onednn

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// names lists the implementations of a request.
func (r *rig) names(s primitive.Spec) (names []string) {
	r.Helper()
	for d, err := range r.All(bg, &s) {
		if err != nil {
			r.Fatal(err)
		}
		if d.ID() != len(names)+s.Impl {
			r.Errorf("%s has the id %d, want %d", d.Name(), d.ID(), len(names))
		}
		names = append(names, d.Name())
		d.Release()
	}
	return names
}

// D1: the same list cold, warm, and with any of its primitives in the cache; what is
// skipped is not numbered, and past the end it says so each time.
func TestImplementations(t *testing.T) {
	for _, s := range []primitive.Spec{
		matmul(8, 64, 32, Dense("f32", 64, 32)), spec("eltwise", "inference", "relu", nil, Dense("f32", 4, 16), Dense("f32", 4, 16)),
		spec("reduction", "", "sum", nil, Dense("f32", 4, 16), Dense("f32", 4, 1)),
	} {
		cold := open1(t, limit.Limit{}).names(s)
		t.Log(s.Kind, cold)
		if len(cold) < 2 || len(cold) > 8 {
			t.Fatalf("%s: %d implementations", s.Kind, len(cold))
		}
		for subset := range 1 << len(cold) {
			r := open1(t, limit.Limit{})
			for id := range cold {
				if subset>>id&1 != 0 {
					one := s
					one.Impl = id
					if p := r.kernel(one); p.Descriptor().Name() != cold[id] {
						t.Errorf("implementation %d is %s, want %s", id, p.Descriptor().Name(), cold[id])
					}
				}
			}
			for range 2 {
				if warm := r.names(s); !slices.Equal(warm, cold) {
					t.Fatalf("%s: %v with %b in the cache, want %v", s.Kind, warm, subset, cold)
				}
			}
		}
		r := open1(t, limit.Limit{})
		skipping := s
		skipping.Skip = []int{0}
		if got := r.names(skipping); !slices.Equal(got, cold[1:]) {
			t.Errorf("%v without the first, want %v", got, cold[1:])
		}
		past := s
		past.Impl = len(cold)
		for range 3 {
			if _, _, err := r.Descriptor(bg, &past); !errors.Is(err, primitive.ErrEnd) {
				t.Errorf("past the end: %v", err)
			}
		}
	}
}

// D1, K3, E3: the stride of a dimension of size 1 is in no key, and so changes no list of
// implementations, whether it is a number or known at execution only; nor does a softmax walk by
// it, as in 3.2 and 2.6, where it writes outside of its memory.
func TestStridesOfOnes(t *testing.T) {
	in := func(stride int64, dims ...int64) tensor {
		x := Dense("f32", dims...)
		for i, n := range dims {
			if n == 1 {
				x.Strides[i] = stride
			}
		}
		return x
	}
	for _, ask := range []func(stride int64) primitive.Spec{
		func(stride int64) primitive.Spec {
			return spec("softmax", "inference", "accurate", []param{ints("axis", 1)}, Dense("f32", 1, 16), in(stride, 1, 16))
		},
		func(stride int64) primitive.Spec {
			return spec("binary", "", "add", nil, in(stride, 1, 16, 2), in(stride, 1, 16, 2), in(stride, 1, 16, 2))
		},
		func(stride int64) primitive.Spec {
			return spec("matmul", "", "", nil, in(stride, 1, 64), Dense("f32", 64, 48), tensor{}, in(stride, 1, 48))
		},
	} {
		dense := open1(t, limit.Limit{}).names(ask(1))
		for _, stride := range []int64{7, 1000, atExecution} {
			s := ask(stride)
			if stride == atExecution && s.Kind != "matmul" {
				continue
			}
			if got := open1(t, limit.Limit{}).names(s); !slices.Equal(got, dense) {
				t.Errorf("%s, stride %d: %v, want %v", s.Kind, stride, got, dense)
			}
		}
	}
	r := open1(t, limit.Limit{})
	src, dst := Dense("bf16", 33, 1, 2), Dense("bf16", 33, 1, 2)
	if len(r.names(spec("softmax", "inference", "accurate", []param{ints("axis", 2)}, src, src))) == 0 {
		t.Skip("oneDNN has no bf16 for this processor")
	}
	dst.Strides[1] = 7
	out := r.memory(dst)
	r.run(r.kernel(spec("softmax", "inference", "accurate", []param{ints("axis", 2)}, src, dst)), Arg{Src, r.memory(src)}, Arg{Dst, out})
	for i, got := range Of[uint16](out) {
		if half := uint16(0x3f00); got != half {
			t.Fatalf("number %d is %#x, want %#x", i, got, half)
		}
	}
}

// K3: the stride of a dimension of size 1 is that of rows without gaps where a block behind it is
// not full, too.
func TestStrideOfAOneBeforeARest(t *testing.T) {
	x := tensor{Type: "f32", Dims: []int64{1, 20, 3, 3}, Strides: []int64{7, 144, 48, 16}, Blocks: []primitive.Block{{Dim: 1, Size: 16}}}
	if got, want := strides(&x), []int64{2 * 144, 144, 48, 16}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// D2, D3: a descriptor and its primitive are one entry, and one object of the library.
func TestOneEntry(t *testing.T) {
	r := open1(t, limit.Limit{})
	s := matmul(8, 64, 32, Dense("f32", 64, 32))
	d, origin, err := r.Descriptor(bg, &s)
	if err != nil || origin != primitive.Built {
		t.Fatal(origin, err)
	}
	defer d.Release()
	if p := r.kernel(s); p.Descriptor() != d || r.cache.Len() != 1 {
		t.Errorf("%d entries, want the descriptor's to be the primitive's", r.cache.Len())
	}
	again, origin, err := r.Descriptor(bg, &s)
	if err != nil || origin != primitive.Shared || again != d {
		t.Error(origin, err)
	}
	again.Release()
	if err := r.cache.Reset(""); err != nil && !errors.Is(err, fault.ErrInvalid) {
		t.Error(err)
	}
}

// D4: of a sum, a concatenation and a reorder there is one implementation.
func TestSingleImplementation(t *testing.T) {
	r := open1(t, limit.Limit{})
	shape := Dense("f32", 4, 6)
	reorder, err1 := primitive.Reorder([]tensor{shape, shape})
	sum, err2 := primitive.Sum([]float64{1, 1}, []tensor{shape, shape, shape})
	concat, err3 := primitive.Concat(0, []tensor{shape, shape, Dense("f32", 8, 6)})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, s := range []primitive.Spec{reorder, sum, concat} {
		if names := r.names(s); len(names) != 1 {
			t.Errorf("%s: %v", s.Kind, names)
		}
		s.Impl = 1
		if _, _, err := r.Descriptor(bg, &s); !errors.Is(err, primitive.ErrEnd) {
			t.Errorf("%s: the second: %v", s.Kind, err)
		}
	}
}

// D6: "auto" is keyed as it was asked and says what it became; asked again, it hits.
func TestAuto(t *testing.T) {
	r := open1(t, limit.Limit{})
	x, w, y := Dense("f32", 1, 16, 9, 9), tensor{Type: "f32", Dims: []int64{16, 16, 3, 3}}, Dense("f32", 1, 16, 5, 5)
	s := spec("convolution", "inference", "auto", spatial, x, w, tensor{}, y)
	p := r.kernel(s)
	if alg := p.Descriptor().Algorithm(); alg != "direct" && alg != "winograd" {
		t.Errorf("auto became %q", alg)
	}
	d, origin, err := r.Descriptor(bg, &s)
	if err != nil || origin != primitive.Shared {
		t.Error(origin, err)
	}
	d.Release()
	s.Op.Algorithm = p.Descriptor().Algorithm()
	if d, origin, err = r.Descriptor(bg, &s); err != nil || origin != primitive.Built {
		t.Error(origin, err)
	}
	d.Release()
}

// D5: hints that differ give entries that differ, and forward operations heed none. A
// backward one without those of a forward descriptor is refused.
func TestHints(t *testing.T) {
	r := open1(t, limit.Limit{})
	x, y := Dense("f32", 1, 16, 9, 9), Dense("f32", 1, 16, 5, 5)
	last := tensor{Type: "f32", Dims: x.Dims, Strides: []int64{16 * 81, 1, 9 * 16, 16}}
	lastY := tensor{Type: "f32", Dims: y.Dims, Strides: []int64{16 * 25, 1, 5 * 16, 16}}
	params := append([]param{ints("kernel", 3, 3)}, spatial...)
	forward := []*primitive.Primitive{r.kernel(spec("pooling", "forward", "max", params, x, y)), r.kernel(spec("pooling", "forward", "max", params, last, lastY))}
	before := r.cache.Len()
	back := spec("pooling", "backward_data", "max", params, tensor{Type: "f32", Dims: x.Dims}, tensor{Type: "f32", Dims: y.Dims})
	for i, f := range forward {
		p := r.kernel(r.hinted(back, f))
		got := p.Descriptor().Tensors()[0]
		t.Log(p.Descriptor().Name(), got.Strides, got.Blocks)
		if n := r.cache.Len(); n != before+i+1 {
			t.Errorf("%d entries, want %d", n, before+i+1)
		}
	}
	r.kernel(r.hinted(spec("pooling", "forward", "max", params, x, y), forward[1]))
	if n := r.cache.Len(); n != before+2 {
		t.Errorf("%d entries, want %d: a forward operation heeds no hints", n, before+2)
	}
	wrong := r.hinted(back, forward[0])
	wrong.Hints = slices.Clone(wrong.Hints)
	wrong.Hints[2] = Dense("s32", 7)
	for name, s := range map[string]primitive.Spec{"none": back, "a workspace that no pooling has": wrong} {
		if _, _, err := r.Descriptor(bg, &s); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("hints, %s: %v, want ErrInvalid", name, err)
		}
	}
}

// D4: the list of a copy has one implementation: 2.6 leaves its memory when it is asked for the next.
func TestListsOfCopies(t *testing.T) {
	r := open1(t, limit.Limit{})
	x, turned := Dense("f32", 4, 8), tensor{Type: "f32", Dims: []int64{4, 8}, Strides: []int64{1, 4}}
	for _, s := range []primitive.Spec{
		spec("reorder", "", "", nil, x, turned), spec("concat", "", "", []param{ints("axis", 0)}, x, x, Dense("f32", 8, 8)),
		spec("sum", "", "", []param{{Name: "scales", Floats: []float64{1, 2}}}, x, x, x),
	} {
		if n, err := r.described(&s); n != 1 || err != nil {
			t.Errorf("%s: %d implementations, %v", s.Kind, n, err)
		}
		s.Skip = []int{0}
		if _, _, err := r.Descriptor(bg, &s); !errors.Is(err, primitive.ErrEnd) {
			t.Errorf("%s without its first implementation: %v, want ErrEnd", s.Kind, err)
		}
	}
}

// D5: the hints of each forward implementation have the layouts that it chose, and none of them
// is left to be chosen again.
func TestHintsOfEachImplementation(t *testing.T) {
	r := open1(t, limit.Limit{})
	open := func(dims ...int64) tensor { return tensor{Type: "f32", Dims: dims} }
	s := spec("convolution", "forward", "direct", spatial, open(2, 16, 9, 9), open(32, 16, 3, 3), tensor{}, open(2, 32, 5, 5))
	n := 0
	for d, err := range r.All(bg, &s) {
		if err != nil {
			t.Fatal(err)
		}
		if got, want := d.Hints()[:4], d.Tensors(); !reflect.DeepEqual(got, want) || !concrete(&got[0]) {
			t.Errorf("%s: the hints are %v, want %v", d.Name(), got, want)
		}
		d.Release()
		n++
	}
	if n < 2 {
		t.Errorf("%d implementations", n)
	}
}

// What makes no sense, what this version has not, and what is for another engine.
func TestRefused(t *testing.T) {
	r := open1(t, limit.Limit{})
	good := matmul(4, 8, 8, Dense("f32", 8, 8))
	with := func(change func(s *primitive.Spec)) primitive.Spec {
		s := good
		s.Op.Tensors = slices.Clone(good.Op.Tensors)
		change(&s)
		return s
	}
	for i, c := range []struct {
		s    primitive.Spec
		want error
	}{
		{with(func(s *primitive.Spec) { s.Kind = "rnn" }), fault.ErrUnsupported},
		{with(func(s *primitive.Spec) { s.Kind = "matmull" }), fault.ErrInvalid}, // what no version has is the caller's mistake
		{with(func(s *primitive.Spec) { s.Engine = "gpu" }), fault.ErrUnsupported},
		{with(func(s *primitive.Spec) { s.Runtime = "ocl" }), fault.ErrUnsupported},
		{with(func(s *primitive.Spec) { s.Threads = 7 }), fault.ErrUnsupported},
		{with(func(s *primitive.Spec) { s.Scratchpad = "library" }), fault.ErrUnsupported}, // E5
		{with(func(s *primitive.Spec) { s.Op.Direction = "sideways" }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Op.Direction = "backward" }), fault.ErrUnsupported},
		{with(func(s *primitive.Spec) { s.Op.Algorithm = "direct" }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Op.Params = []param{ints("axis", 1)} }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Op.Tensors = s.Op.Tensors[:3] }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Op.Tensors[0] = tensor{} }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Op.Tensors[0] = Dense("f32", 4, 9) }), fault.ErrInvalid}, // the library says so
		{with(func(s *primitive.Spec) { s.Op.Tensors[0] = Dense("c64", 4, 8) }), fault.ErrUnsupported},
		{with(func(s *primitive.Spec) { s.Op.Tensors[0] = Dense("f32", -4, 8) }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Op.Tensors[0].Strides = []int64{-8, 1} }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Op.Tensors[0].Strides = []int64{8} }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Op.Tensors[0] = Dense("f32", 1<<40, 1<<40) }), fault.ErrTooLarge},
		{with(func(s *primitive.Spec) { s.Op.Tensors[0].Strides = []int64{1 << 62, 1} }), fault.ErrTooLarge}, // the library's sums wrap
		{with(func(s *primitive.Spec) { s.Op.Tensors[0].Offset = 4 }), fault.ErrUnsupported},
		{with(func(s *primitive.Spec) { s.Op.Tensors[0] = Dense("f32", make([]int64, 13)...) }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Op.Tensors[1].Blocks = []primitive.Block{{Dim: 5, Size: 8}} }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) {
			s.Op.Tensors[1].Blocks = []primitive.Block{{Dim: 1, Size: 7}, {Dim: 0, Size: 3}}
		}), nil}, // 3.x has no name for it
		{with(func(s *primitive.Spec) { s.Attr.FPMath = "f8" }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Attr.Accumulation = "loose" }), nil}, // of either kind
		{with(func(s *primitive.Spec) { s.Attr.Scales = []primitive.Quant{{Arg: "source"}} }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Attr.PostOps = []primitive.PostOp{{Kind: "convolution"}} }), fault.ErrUnsupported},
		{with(func(s *primitive.Spec) { s.Attr.PostOps = []primitive.PostOp{{Kind: "eltwise", Algorithm: "sin"}} }), fault.ErrInvalid},
		{with(func(s *primitive.Spec) { s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add"}} }), fault.ErrInvalid},
		{spec("softmax", "inference", "accurate", nil, Dense("f32", 4, 8), Dense("f32", 4, 8)), fault.ErrInvalid},
		{spec("softmax", "inference", "accurate", []param{ints("axis", 2)}, Dense("f32", 4, 8), Dense("f32", 4, 8)), fault.ErrInvalid},
	} {
		d, _, err := r.Descriptor(bg, &c.s)
		if err == nil {
			d.Release()
			if c.want == nil {
				continue
			}
		}
		if _, typed := errors.AsType[*fault.Error](err); !typed || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("case %d: %v, want %v", i, err, c.want)
		}
	}
}

// K4: what the library would cut, or not see, is refused: it would be another key for the same.
func TestOneWayToSayIt(t *testing.T) {
	r := open1(t, limit.Limit{})
	x := Dense("f32", 4, 6)
	far := matmul(4, 8, 8, Dense("f32", 8, 8))
	far.Attr.PostOps = []primitive.PostOp{{Kind: "sum", Scale: 1, ZeroPoint: 1<<32 + 5}}
	r.refused(far, fault.ErrInvalid)
	for _, name := range []string{"source_00", "source_+0", "source_0x", "source_0 ", "source_", "source_5000"} {
		s := spec("concat", "", "", []param{ints("axis", 0)}, x, x, Dense("f32", 8, 6))
		s.Attr.Scales = []primitive.Quant{{Arg: name}}
		r.refused(s, fault.ErrInvalid)
	}
	r.refused(spec("eltwise", "inference", "relu", []param{float("alpha", 0), float("alpha", 0.5)}, x, x), fault.ErrInvalid)
	r.refused(spec("eltwise", "backward_weights", "relu", nil, x, x, x), fault.ErrUnsupported)
	r.refused(spec("softmax", "backward_weights", "accurate", []param{ints("axis", 1)}, x, x, x), fault.ErrUnsupported)
}

// A1: the numbers of this package are those that the library has for the names.
func TestNumbers(t *testing.T) {
	r := open1(t, limit.Limit{})
	check := func(want string, got *byte) {
		t.Helper()
		if text(got) != want {
			t.Errorf("the library calls it %q, want %q", text(got), want)
		}
	}
	for kind, list := range algorithms {
		for name, n := range list {
			check(kind+"_"+name, r.c.AlgName(n))
		}
	}
	for name, n := range fromDst {
		check("eltwise_"+name, r.c.AlgName(n))
	}
	functions := eltwise2
	if r.is3() {
		functions = eltwise3
	}
	for name, n := range functions {
		check("eltwise_"+name, r.c.AlgName(n))
	}
	for name, n := range dataTypes {
		check(name, r.c.TypeName(n))
	}
	check("any", r.c.TagName(tagAny))
	for code, name := range map[int32]string{success: "success", outOfMemory: "out_of_memory", invalidArguments: "invalid_arguments", unimplemented: "unimplemented"} {
		check(name, r.c.StatusName(code))
	}
	for s, name := range slotNames {
		if got, err := slotNamed(name); err != nil || got != s || fmt.Sprint(s) != name {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// K4: the instructions that the library may use are part of what its primitives are keyed by:
// ONEDNN_MAX_CPU_ISA gives others on one processor.
func TestInstructionsAreOfTheIdentity(t *testing.T) {
	need(t, 1)
	im := loaded.image
	a, b := im.about(0x7).Identity, im.about(0x1f).Identity
	if a.Compiler == b.Compiler {
		t.Errorf("two sets of instructions have one identity: %v", a)
	}
	threads := *im
	threads.runtime = "another"
	if c := threads.about(0x7).Identity; a.Compiler == c.Compiler {
		t.Errorf("two runtimes have one identity: %v", a)
	}
}
