package primitive_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

var named = map[string]op{"a": {kind: "matmul", impls: 2}, "b": {kind: "convolution"}, "n": {kind: "matmul", engine: "none"}}

// blobID is the id of a request on one engine.
func blobID(t *testing.T, e *primitive.Engine, s *primitive.Spec) string {
	t.Helper()
	d, _, err := e.Descriptor(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Release()
	id := d.BlobID()
	if again := d.BlobID(); again != id {
		t.Errorf("the second call gave %s, not %s", again, id)
	}
	return id
}

// X05, on one cache for all: B1
func TestBlobID(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	id := blobID(t, r.Engine, r.spec("a"))
	if len(id) != 64 {
		t.Errorf("id %q", id)
	}
	if blobID(t, r.Engine, r.spec("b")) == id || blobID(t, r.Engine, r.spec("a", "id=1")) == id {
		t.Error("another request has the same id")
	}
	if got := blobID(t, r.Engine, r.spec("n")); got != "" {
		t.Errorf("an engine without blobs has the id %s", got)
	}
	v := reflect.TypeFor[gpuexec.Identity]()
	for i := range v.NumField() {
		other := machine
		if f := reflect.ValueOf(&other).Elem().Field(i); f.Kind() == reflect.String {
			f.SetString("other")
		} else {
			other.ISA = []string{"avx2"}
		}
		if blobID(t, engine(t, r.cache, r.lib, other), r.spec("a")) == id {
			t.Errorf("%s is not in the id", v.Field(i).Name)
		}
	}
	if blobID(t, engine(t, r.cache, r.lib, machine), r.spec("a")) != id {
		t.Error("the same machine has another id")
	}
	if builds := r.lib.describes.Load(); builds != 4+int64(v.NumField()) {
		t.Errorf("%d builds: identities do not keep to themselves, or one does not share", builds)
	}
}

// The id is the same in every process and version of the runtime: B1
func TestBlobIDIsStable(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	const then = "61610fda3a5d71943b654196c899d6199d9fde5d86d8aa56114927ceba2e41a2"
	if id := blobID(t, r.Engine, r.spec("a")); id != then {
		t.Errorf("the id is %s, not %s: stored blobs are lost", id, then)
	}
}

func TestBlobIDCoversTheKey(t *testing.T) { // B1, K4
	r := open(t, limit.Limit{}, named)
	seen := map[string]int{blobID(t, r.Engine, r.spec("a")): -1}
	for i, change := range []func(*primitive.Spec){
		func(s *primitive.Spec) { s.Kind = "other" },
		func(s *primitive.Spec) { s.Op.Direction = "forward" },
		func(s *primitive.Spec) { s.Op.Algorithm = "auto" },
		func(s *primitive.Spec) { s.Op.Tensors[0].Dims[0]++ },
		func(s *primitive.Spec) { s.Attr.FPMath = "bf16" },
		func(s *primitive.Spec) { s.Attr.PostOps = []primitive.PostOp{{Kind: "sum"}} },
		func(s *primitive.Spec) { s.Impl = 1 },
		func(s *primitive.Spec) { s.Op.Direction, s.Hints = "backward", []primitive.Tensor{{Type: "u8"}} },
		func(s *primitive.Spec) { s.Engine = "cpu" },
		func(s *primitive.Spec) { s.Runtime = "seq" },
		func(s *primitive.Spec) { s.Device = "1" },
		func(s *primitive.Spec) { s.Context = "c" },
		func(s *primitive.Spec) { s.Threads = 4 },
		func(s *primitive.Spec) { s.Skip = []int{3} },
		func(s *primitive.Spec) { s.Scratchpad = "user" },
		func(s *primitive.Spec) { s.Inputs = []primitive.Input{{Name: "include", Digest: []byte{1}}} },
	} {
		s := r.spec("a")
		change(s)
		id := blobID(t, r.Engine, s)
		if other, taken := seen[id]; taken {
			t.Errorf("change %d has the id of change %d", i, other)
		}
		seen[id] = i
	}
}

// numbered is a library whose primitives no other runs.
type numbered struct {
	*library
	number uint64
}

func (n numbered) Number() uint64 { return n.number }

// K4, B1: libraries of two numbers share no primitive in a cache, of one number they do; a blob of
// one is a blob of all.
func TestNumberedLibraries(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	want := blobID(t, r.Engine, r.spec("a"))
	for i, number := range []uint64{1, 2, 1, 2, 300} {
		before := r.lib.describes.Load()
		if got := blobID(t, engine(t, r.cache, numbered{r.lib, number}, machine), r.spec("a")); got != want {
			t.Errorf("number %d has the id %s, want %s", number, got, want)
		}
		if built := r.lib.describes.Load() > before; built != (i != 2 && i != 3) {
			t.Errorf("engine %d, on library %d: built %v", i, number, built)
		}
	}
}

// Without a build nothing is named, and no two openings are taken for one: P12
func TestUnknownBuild(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	for _, id := range []gpuexec.Identity{{Library: "fake 1", Driver: "d"}, {Build: "b"}, {}} {
		before := r.lib.describes.Load()
		for range 2 {
			e := engine(t, r.cache, r.lib, id)
			if got := blobID(t, e, r.spec("a")); got != "" {
				t.Errorf("%+v has the id %s", id, got)
			}
			blobID(t, e, r.spec("a")) // within one opening it is a hit
		}
		if got := r.lib.describes.Load() - before; got != 2 {
			t.Errorf("%+v: %d builds by two openings", id, got)
		}
	}
}

func TestBlobs(t *testing.T) { // B2, B3
	r := open(t, limit.Limit{}, named)
	ctx := context.Background()
	l, _, err := r.Primitive(ctx, r.spec("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	blob, err := r.Blob(ctx, l.Primitive().Descriptor())
	l.End()
	if err != nil || string(blob) != "a" {
		t.Fatalf("blob %q, %v", blob, err)
	}
	other := open(t, limit.Limit{}, named)
	take := func(name string, blob []byte) string {
		l, o, err := other.FromBlob(ctx, other.spec(name), "", blob)
		if err != nil {
			return failure(err)
		}
		defer l.End()
		again, err := other.Blob(ctx, l.Primitive().Descriptor())
		if err != nil || !bytes.Equal(again, blob) {
			t.Errorf("round trip: %q, %v", again, err)
		}
		return string(o.Event)
	}
	for _, step := range []struct{ name, blob, want string }{
		{"a", "", "error invalid"}, {"b", "a", "error"}, {"a", "a", "persistent_hit"}, {"a", "a", "hit"},
	} {
		if got := take(step.name, []byte(step.blob)); !strings.HasPrefix(got, step.want) {
			t.Errorf("%s from %q: %s, want %s", step.name, step.blob, got, step.want)
		}
	}
	if _, _, err := other.FromBlob(ctx, other.spec("n"), "", blob); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("an engine without blobs: %v", err)
	}
	other.expect("desc a", "0 by=hit shared=yes")
	if n := other.lib.creates.Load(); n != 0 {
		t.Errorf("%d primitives were built", n)
	}
}

// P3: a store is asked with the identity of the engine, not with the one that its
// configuration has for the backend's name.
func TestIdentityTravels(t *testing.T) {
	other := machine
	other.Device = "gpu1"
	seen := &asked{}
	r := openWith(t, artefacts.Config{Store: seen}, named)
	for _, e := range []*primitive.Engine{r.Engine, engine(t, r.cache, r.lib, other)} {
		l, _, err := e.Primitive(t.Context(), r.spec("a"), "")
		if err != nil {
			t.Fatal(err)
		}
		l.End()
	}
	if len(seen.of) != 2 || !reflect.DeepEqual(*seen.of[0], machine) || !reflect.DeepEqual(*seen.of[1], other) {
		t.Errorf("the store was asked for %v", seen.of)
	}
}

// P3: a store is asked by what another device of the same kind asks by: the device's own
// number and the context of one process are no part of that.
func TestStoredKeyIsPortable(t *testing.T) {
	seen := &asked{}
	r := openWith(t, artefacts.Config{Store: seen}, named)
	for _, context := range []string{"1", "2"} {
		s := r.spec("a")
		s.Device, s.Context = "gpu"+context, context
		l, _, err := r.Primitive(t.Context(), s, "")
		if err != nil {
			t.Fatal(err)
		}
		l.End()
	}
	if len(seen.keys) != 2 || seen.keys[0] != seen.keys[1] {
		t.Errorf("the store was asked for %q", seen.keys)
	}
}

// asked is a store that has nothing and remembers what it was asked for, and for which
// identity.
type asked struct {
	of   []*gpuexec.Identity
	keys []string
}

func (a *asked) Find(_ context.Context, s artefacts.Subject) artefacts.Found {
	a.of, a.keys = append(a.of, s.Identity), append(a.keys, s.Key)
	return artefacts.Found{Reason: fault.Absent}
}
