package primitive_test

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// The request is the caller's, and the caller's data is not copied.
func TestHitsDoNotAllocate(t *testing.T) { // D4
	sum, err1 := primitive.Sum([]float64{1, 2}, f32(3, 8, 16))
	concat, err2 := primitive.Concat(1, f32(3, 8, 16))
	reorder, err3 := primitive.Reorder(f32(2, 8, 16))
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	matmul := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Direction: "forward", Tensors: f32(3, 384, 1536)},
		Attr: primitive.Attributes{PostOps: []primitive.PostOp{{Kind: "eltwise", Algorithm: "gelu_erf"}}}}
	for _, s := range []*primitive.Spec{&sum, &concat, &reorder, &matmul} {
		s.Op.Params = append([]primitive.Param{{Name: "op", Text: "any"}}, s.Op.Params...) // for the fake library
		for _, alone := range []bool{true, false} {
			r := open(t, limit.Limit{}, map[string]op{"any": {kind: s.Kind}})
			var err error
			if alone {
				_, err = describe(r.Engine, s)
			} else {
				var l primitive.Lease
				l, _, err = r.Primitive(t.Context(), s, "")
				l.End()
			}
			if err != nil {
				t.Fatal(err)
			}
			hits := 0
			if n := testing.AllocsPerRun(1000, func() {
				if origin, _ := describe(r.Engine, s); origin != primitive.Built {
					hits++
				}
			}); n != 0 || hits != 1001 {
				t.Errorf("%s, alone %v: %v allocations a hit, %d hits", s.Kind, alone, n, hits)
			}
			d, _, err := r.Descriptor(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			for name, hit := range map[string]func() (primitive.Lease, artefacts.Outcome, error){
				"key built": func() (primitive.Lease, artefacts.Outcome, error) { return r.Primitive(context.Background(), s, "") },
				"key kept":  func() (primitive.Lease, artefacts.Outcome, error) { return r.Make(context.Background(), d, "") },
			} {
				if n := testing.AllocsPerRun(1000, func() {
					l, _, err := hit()
					if err != nil {
						t.Error(err)
					}
					l.End()
				}); n != 0 {
					t.Errorf("%s, %s: %v allocations for a leased primitive", s.Kind, name, n)
				}
			}
			d.Release()
		}
	}
}

func describe(e *primitive.Engine, s *primitive.Spec) (primitive.Origin, error) {
	d, origin, err := e.Descriptor(context.Background(), s)
	if err == nil {
		d.Release()
	}
	return origin, err
}

// f32 gives n tensors of one shape.
func f32(n int, dims ...int64) []primitive.Tensor {
	tensors := make([]primitive.Tensor, n)
	for i := range tensors {
		tensors[i] = primitive.Tensor{Type: "f32", Dims: dims}
	}
	return tensors
}

// D3: a primitive is freed before its descriptor, also where it was the last to hold
// that: rig.close counts what is freed the other way round.
func TestPrimitiveIsFreedFirst(t *testing.T) {
	r := open(t, limit.Limit{}, map[string]op{"a": {kind: "matmul"}})
	d, _, err := r.Descriptor(t.Context(), r.spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	l, _, err := r.Make(t.Context(), d, "")
	if err != nil {
		t.Fatal(err)
	}
	d.Release()
	l.End()
	if err := r.cache.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.lib.live.Load(); n != 0 {
		t.Errorf("%d native objects are left", n)
	}
}

// D3: a caller of Make may leave and release its descriptor before the creator looks
// at it. The primitive is then made of another one.
func TestMakeOfAReleasedDescriptor(t *testing.T) {
	r := open(t, limit.Of(0), map[string]op{"a": {kind: "matmul"}})
	d, _, err := r.Descriptor(t.Context(), r.spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	d.Release() // with a capacity of 0 nobody else has it
	l, _, err := r.Make(t.Context(), d, "")
	if err != nil {
		t.Fatal(err)
	}
	if r.lib.use(l.Primitive().Descriptor()); r.lib.describes.Load() != 2 {
		t.Errorf("%d descriptors were built, want another one for the primitive", r.lib.describes.Load())
	}
	l.End()
}

func TestInternalOperations(t *testing.T) { // D4
	tensors := f32(3, 8, 16)
	sum, err := primitive.Sum([]float64{1, 2}, tensors)
	if err != nil || sum.Kind != "sum" || &sum.Op.Tensors[0] != &tensors[0] {
		t.Errorf("%+v, %v: want the caller's tensors", sum, err)
	}
	for name, err := range map[string]error{
		"a sum without sources":            second(primitive.Sum(nil, tensors[:1])),
		"a sum with too few scales":        second(primitive.Sum([]float64{1}, tensors)),
		"a concat without sources":         second(primitive.Concat(0, tensors[:1])),
		"a concat along what is not there": second(primitive.Concat(2, tensors)),
		"a concat along what never is":     second(primitive.Concat(-1, tensors)),
		"a reorder of one":                 second(primitive.Reorder(tensors[:1])),
	} {
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	key := func(s primitive.Spec, err error) string {
		k, err2 := s.Key()
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return k
	}
	keys := []string{key(sum, nil), key(primitive.Sum([]float64{1, 3}, tensors)), key(primitive.Sum([]float64{1}, tensors[:2])),
		key(primitive.Concat(0, tensors)), key(primitive.Concat(1, tensors)), key(primitive.Reorder(tensors[:2]))}
	for i, k := range keys {
		if slices.Index(keys, k) != i {
			t.Errorf("key %d is that of %d", i, slices.Index(keys, k))
		}
	}
}

func second(_ primitive.Spec, err error) error { return err }

// The caller may do with its request what it likes once a call has returned.
func TestRequestsAreCopied(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	s := r.spec("a")
	d, _, err := r.Descriptor(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Release()
	s.Op.Tensors[0].Dims[0], s.Op.Params[0].Text = 99, "b"
	if want := r.spec("a"); !reflect.DeepEqual(d.Spec().Op, want.Op) {
		t.Errorf("the descriptor's request became %+v", d.Spec().Op)
	}
	r.expect("desc a", "0 by=hit")
}

// A backward operation gets what it needs from the forward descriptor: D5.
// Neither carries a lane, so two workers have the very same one: D7.
func TestHintsAndWorkers(t *testing.T) {
	r := open(t, limit.Limit{}, map[string]op{"fwd": {kind: "pooling", dir: "forward"}, "bwd": {kind: "pooling", dir: "backward"}})
	all := make(chan *primitive.Descriptor, 2)
	for range 2 {
		go func() {
			d, _, err := r.Descriptor(context.Background(), r.spec("fwd"))
			if err != nil {
				t.Error(err)
			}
			all <- d
		}()
	}
	fwd, same := <-all, <-all
	if fwd == nil || fwd != same || r.lib.describes.Load() != 1 {
		t.Fatalf("two workers have %p and %p after %d builds", fwd, same, r.lib.describes.Load())
	}
	bwd := r.spec("bwd")
	bwd.Hints = fwd.Hints()
	if len(bwd.Hints) != 2 {
		t.Errorf("hints %v", bwd.Hints)
	}
	for i, want := range []bool{false, true} {
		if origin, err := describe(r.Engine, bwd); err != nil || (origin != primitive.Built) != want {
			t.Errorf("backward %d: %s, %v", i, origin, err)
		}
	}
	fwd.Release()
	same.Release()
}

// A descriptor lives as long as somebody holds it, and as long as its primitive;
// rig.close checks that all was freed once.
func TestDescriptorOutlivesItsPrimitive(t *testing.T) { // C5
	r := open(t, limit.Limit{}, named)
	d, _, err := r.Descriptor(t.Context(), r.spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	l, o, err := r.Make(t.Context(), d, "owner")
	if err != nil || o.Event != artefacts.Miss || l.Primitive().Descriptor() != d || l.Primitive().Native() != "primitive a" {
		t.Fatalf("%v, %v", o, err)
	}
	if err := r.cache.SetCapacity(limit.Of(0), limit.Limit{}); err != nil {
		t.Fatal(err)
	}
	l.End()
	until(t, "only the descriptor that is held was alive", func() bool { return r.lib.live.Load() == 1 })
	d.Release()
	until(t, "all was freed", func() bool { return r.lib.live.Load() == 0 })
	if r.lib.describes.Load() != 1 {
		t.Errorf("%d builds", r.lib.describes.Load())
	}
	other := open(t, limit.Limit{}, named)
	if _, _, err := other.Make(t.Context(), d, ""); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("another engine's descriptor: %v", err)
	}
}

// K4: what an engine gives it makes the primitive of, also where another engine of the same library
// on the same cache had it described. That was ErrInvalid.
func TestDescriptorOfASharedCache(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	first, _, err := r.Descriptor(t.Context(), r.spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()
	twin := engine(t, r.cache, r.lib, machine)
	d, origin, err := twin.Descriptor(t.Context(), r.spec("a"))
	if err != nil || origin != primitive.Cached || d != first {
		t.Fatalf("%s, %v", origin, err)
	}
	defer d.Release()
	l, _, err := twin.Make(t.Context(), d, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.End()
	if again, o, err := r.Make(t.Context(), d, ""); err != nil || o.Event != artefacts.Hit || again.Primitive() != l.Primitive() {
		t.Errorf("the first engine: %v, %v", o, err)
	} else {
		again.End()
	}
	id := machine
	id.Build += "+"
	for what, other := range map[string]*primitive.Engine{"build": engine(t, r.cache, r.lib, id), "library": engine(t, r.cache, numbered{r.lib, 1}, machine)} {
		if _, _, err := other.Make(t.Context(), d, ""); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("an engine of another %s: %v, want ErrInvalid", what, err)
		}
	}
}

// A descriptor whose younger twin has come and gone, and that is used again, is
// found without copying as before: D4.
func TestOlderDescriptorAgain(t *testing.T) {
	r := open(t, limit.Of(1), named)
	s := r.spec("a")
	old, _, err := r.Descriptor(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Release()
	r.resize(limit.Of(0)) // what was cleared is not found again
	r.resize(limit.Of(1))
	twin, origin, err := r.Descriptor(t.Context(), s)
	if err != nil || origin != primitive.Built || twin == old {
		t.Fatalf("%s, %v", origin, err)
	}
	twin.Release()
	r.expect("primitive b", "0 by=miss")
	until(t, "the twin was freed", func() bool { return r.lib.live.Load() == 3 })
	l, _, err := r.Make(t.Context(), old, "")
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	if n := testing.AllocsPerRun(1000, func() {
		if origin, err := describe(r.Engine, s); origin != primitive.Shared {
			t.Error(origin, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a hit", n)
	}
}

// Nothing of a descriptor is kept when nobody has it any more.
func TestNothingIsKept(t *testing.T) {
	r := open(t, limit.Of(1), named)
	gone := func() weak.Pointer[primitive.Spec] {
		d, _, err := r.Descriptor(t.Context(), r.spec("a"))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Release()
		return weak.Make(d.Spec())
	}()
	r.expect("primitive b", "0 by=miss")
	until(t, "the request was collected", func() bool { runtime.GC(); return gone.Value() == nil })
}

// C1: a primitive's bytes are its own and its descriptor's.
func TestBytes(t *testing.T) {
	r := open(t, limit.Limit{}, map[string]op{"a": {kind: "matmul", bytes: 40}, "b": {kind: "sum", bytes: 2}, "bad": {kind: "matmul", bytes: -1}})
	for _, step := range []struct {
		statement, want string
		bytes           int64
	}{
		{"desc b", "0 by=miss", 2}, {"primitive a", "0 by=miss", 43},
		{"desc bad", "error invalid", 43}, {"primitive bad", "error invalid", 43},
	} {
		r.expect(step.statement, step.want)
		if got := r.cache.Bytes(); got != step.bytes {
			t.Errorf("%s: %d bytes, want %d", step.statement, got, step.bytes)
		}
	}
}

// C10: a primitive is credited to its owner.
func TestOwners(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	for _, use := range []struct{ name, owner string }{{"a", "x"}, {"b", "x"}, {"b", "y"}} {
		l, _, err := r.Primitive(t.Context(), r.spec(use.name), use.owner)
		if err != nil {
			t.Fatal(err)
		}
		l.End()
	}
	if err := r.cache.Reset("x"); err != nil {
		t.Fatal(err)
	}
	r.expect("primitive a", "0 by=miss")
	r.expect("primitive b", "0 by=hit")
}

func TestFailures(t *testing.T) { // F2, F3
	r := open(t, limit.Limit{}, named)
	broken := errors.New("broken")
	how := func(fail bool, f func() error) func(context.Context, string) error {
		return func(context.Context, string) error {
			if fail {
				return f()
			}
			return nil
		}
	}
	var panicked *fault.PanicError
	for i, c := range []struct {
		fail func() error
		is   func(error) bool
	}{
		{func() error { return broken }, func(err error) bool { return errors.Is(err, broken) }},
		{func() error { panic("broken") }, func(err error) bool { return errors.As(err, &panicked) }},
	} {
		r.lib.creating = how(true, c.fail)
		if _, _, err := r.Primitive(t.Context(), r.spec("a"), ""); !c.is(err) {
			t.Errorf("creation %d: %v", i, err)
		}
		r.lib.creating, r.lib.describing = nil, how(true, c.fail)
		if _, _, err := r.Descriptor(t.Context(), r.spec("a")); !c.is(err) {
			t.Errorf("description %d: %v", i, err)
		}
		if _, _, err := r.Primitive(t.Context(), r.spec("a"), ""); !c.is(err) {
			t.Errorf("primitive %d: %v", i, err)
		}
		r.lib.describing = nil
		if n := r.cache.Len(); n != 0 {
			t.Errorf("%d entries after failures", n)
		}
	}
	r.expect("primitive a", "0 by=miss")
	r.expect("desc a", "0 by=hit shared=yes")
}

// K6: what has no key is made for the call alone.
func TestUnhashable(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	s := r.spec("a")
	s.Inputs = []primitive.Input{{Name: "include"}}
	for range 2 {
		d, origin, err := r.Descriptor(t.Context(), s)
		if err != nil || origin != primitive.Built || d.Key() != "" || d.BlobID() != "" {
			t.Fatalf("%s, %v", origin, err)
		}
		if _, err := r.Blob(t.Context(), d); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("blob: %v", err)
		}
		before := r.lib.describes.Load()
		l, o, err := r.Make(t.Context(), d, "")
		if err != nil || o.Event != artefacts.Miss || o.Reason != fault.KeyRefused || o.Field != "include" || r.lib.describes.Load() != before {
			t.Fatalf("%+v, %v", o, err)
		}
		l.End()
		d.Release()
	}
	if l, o, err := r.Primitive(t.Context(), s, ""); err != nil || o.Reason != fault.KeyRefused {
		t.Errorf("%+v, %v", o, err)
	} else {
		l.End()
	}
	if r.cache.Len() != 0 {
		t.Errorf("%d entries", r.cache.Len())
	}
	if _, _, err := r.Descriptor(t.Context(), &primitive.Spec{}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no kind: %v", err)
	}
}

func TestClosed(t *testing.T) { // F8
	r := open(t, limit.Limit{}, named)
	r.expect("desc a", "0 by=miss")
	r.expect("primitive b", "0 by=miss")
	if err := r.cache.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if _, _, err := r.Descriptor(t.Context(), r.spec(name)); !errors.Is(err, fault.ErrClosed) {
			t.Errorf("descriptor %s: %v", name, err)
		}
		if _, _, err := r.Primitive(t.Context(), r.spec(name), ""); !errors.Is(err, fault.ErrClosed) {
			t.Errorf("primitive %s: %v", name, err)
		}
	}
}

func TestConfig(t *testing.T) {
	r := open(t, limit.Limit{}, nil)
	for _, cfg := range []primitive.Config{{}, {Cache: r.cache}, {Library: r.lib}} {
		if _, err := primitive.Open(cfg); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// C10: so is one that was made from a blob.
func TestOwnerOfABlob(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	l, _, err := r.FromBlob(t.Context(), r.spec("a"), "x", []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	if err := r.cache.Reset("x"); err != nil {
		t.Fatal(err)
	}
	r.expect("primitive a", "0 by=miss")
}

// K4: an engine refuses descriptors of another device, also where both have one cache.
func TestDescriptorOfAnotherEngine(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	d, _, err := r.Descriptor(t.Context(), r.spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Release()
	other := machine
	other.Device = "gpu1"
	if _, _, err := engine(t, r.cache, r.lib, other).Make(t.Context(), d, ""); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// minus is a library whose primitives take less than nothing.
type minus struct{ *library }

func (m minus) Create(ctx context.Context, d *primitive.Descriptor) (artefacts.Built, error) {
	b, err := m.library.Create(ctx, d)
	b.Bytes = -1
	return b, err
}

// The bytes of a descriptor do not hide that a primitive's own make no sense.
func TestNegativeBytesOfAPrimitive(t *testing.T) {
	r := open(t, limit.Limit{}, map[string]op{"a": {kind: "matmul", bytes: 42}})
	e := engine(t, r.cache, minus{r.lib}, machine)
	if _, _, err := e.Primitive(t.Context(), r.spec("a"), ""); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// D4: an older descriptor that goes does not take the younger one out of what is found
// without a copy.
func TestOlderDescriptorGoes(t *testing.T) {
	r := open(t, limit.Of(1), named)
	s := r.spec("a")
	old, _, err := r.Descriptor(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	r.resize(limit.Of(0)) // what was cleared is not found again
	r.resize(limit.Of(1))
	if origin, err := describe(r.Engine, s); origin != primitive.Built {
		t.Fatal(origin, err)
	}
	old.Release()
	until(t, "the older was freed", func() bool { return r.lib.live.Load() == 1 })
	if n := testing.AllocsPerRun(1000, func() {
		if origin, err := describe(r.Engine, s); origin != primitive.Cached {
			t.Error(origin, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a hit", n)
	}
}
