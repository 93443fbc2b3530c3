package primitive_test

import (
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// C13, D3, F10: a descriptor that somebody holds is found by its key when its entry, or that
// of its primitive, was evicted for others, and has an entry again. What was cleared is not.
func TestHeldDescriptorIsFound(t *testing.T) {
	for _, made := range []bool{false, true} {
		for what, end := range map[string]func(r *rig, s *primitive.Spec){
			"evicted": func(r *rig, _ *primitive.Spec) {},
			"capacity 0": func(r *rig, _ *primitive.Spec) {
				r.resize(limit.Of(0))
				r.resize(limit.Of(1))
			},
			"capacity 0 before it was evicted": nil,
		} {
			r := open(t, limit.Of(1), map[string]op{"a": {kind: "matmul"}, "b": {kind: "sum"}})
			s := r.spec("a")
			held, _, err := r.Descriptor(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if made {
				l, _, err := r.Make(t.Context(), held, "owner")
				if err != nil {
					t.Fatal(err)
				}
				l.End()
			}
			if end == nil {
				r.resize(limit.Of(0))
				r.resize(limit.Of(1))
			}
			r.expect("desc b", "0 by=miss")
			if end != nil {
				end(r, s)
			}
			again, origin, err := r.Descriptor(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if found := again == held; found != (what == "evicted") || found != (origin == primitive.Cached) {
				t.Errorf("%s, with a primitive %v: found %v, %s", what, made, found, origin)
			}
			again.Release()
			r.expect("len", "1")
			r.expect("desc a", "0 by=hit shared=no")
			r.expect("desc b", "0 by=miss") // it goes again
			if l, _, err := r.Primitive(t.Context(), s, ""); err != nil {
				t.Error(err)
			} else if l.End(); what == "evicted" && r.lib.describes.Load() != 3 {
				t.Errorf("%s, with a primitive %v: %d descriptors were built, want 1, and 2 of b", what, made, r.lib.describes.Load())
			}
			held.Release()
			r.expect("desc b", "0 by=miss")
			builds := r.lib.describes.Load()
			r.expect("desc a", "0 by=miss") // nobody holds it
			if n := r.lib.describes.Load() - builds; n != 1 {
				t.Errorf("%s: %d descriptors built for one that nobody holds", what, n)
			}
		}
	}
}

// C13: nor is one found that its owner's release cleared.
func TestResetDescriptorIsNotFound(t *testing.T) {
	r := open(t, limit.Of(2), map[string]op{"a": {kind: "matmul"}, "b": {kind: "sum"}})
	s := r.spec("a")
	held, _, err := r.Descriptor(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	l, _, err := r.Make(t.Context(), held, "owner")
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	if err := r.cache.Reset("another"); err != nil {
		t.Fatal(err)
	}
	r.expect("desc b", "0 by=miss")
	if err := r.cache.Reset("owner"); err != nil {
		t.Fatal(err)
	}
	r.expect("desc a", "0 by=miss shared=no")
}

func (r *rig) resize(entries limit.Limit) {
	r.t.Helper()
	if err := r.cache.SetCapacity(entries, limit.Limit{}); err != nil {
		r.t.Fatal(err)
	}
}
