package primitive_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// machine is an identity that is known.
var machine = gpuexec.Identity{Library: "fake 1", Build: "b1", Compiler: "c1", Driver: "d1", Device: "gpu0", ISA: []string{"avx2", "fma"}}

// op is a request by name, with what a fake library makes of it.
type op struct {
	kind, dir, alg, resolves, engine string
	impls                            int
	valid                            []int // nil = all
	bytes                            int64 // of a descriptor
}

// library is a fake one; its fields are set before it is used.
type library struct {
	ops map[string]op

	// What happens in a description or a creation, if not nil.
	describing, creating func(ctx context.Context, name string) error

	describes, creates, loads atomic.Int64
	live, twice               atomic.Int64 // native objects not freed; freed again
	stale                     atomic.Int64 // descriptors used when they were freed, or freed before their primitive
}

func nameOf(s *primitive.Spec) string { return s.Op.Params[0].Text }

func (l *library) Implementations(ctx context.Context, s *primitive.Spec) iter.Seq2[primitive.Implementation, error] {
	o, ok := l.ops[nameOf(s)]
	return func(yield func(primitive.Implementation, error) bool) {
		if !ok {
			yield(nil, fmt.Errorf("no operation %q: %w", nameOf(s), fault.ErrInvalid))
			return
		}
		at := &listed{library: l, op: o, ctx: ctx, spec: s}
		for at.position = range max(o.impls, 1) {
			if !yield(at, nil) {
				return
			}
		}
	}
}

// listed stands for a native iterator: it is where it is.
type listed struct {
	*library
	op       op
	ctx      context.Context
	spec     *primitive.Spec
	position int
}

func (i *listed) Accepts() bool { return i.op.valid == nil || slices.Contains(i.op.valid, i.position) }

func (i *listed) Describe() (primitive.Description, error) {
	name := nameOf(i.spec)
	i.describes.Add(1)
	if i.describing != nil {
		if err := i.describing(i.ctx, name); err != nil {
			return primitive.Description{}, err
		}
	}
	n := &native{name: name}
	free := i.free()
	i.live.Add(1)
	d := primitive.Description{
		Name: "fake:" + strconv.Itoa(i.position), Native: n, Bytes: i.op.bytes, Free: func() { free(); n.freed.Store(true) },
		Hints: []primitive.Tensor{{Type: "dst"}, {Type: "workspace"}},
	}
	if i.spec.Op.Algorithm == "auto" {
		d.Algorithm = i.op.resolves
	}
	return d, nil
}

// native is a descriptor of the fake library.
type native struct {
	name  string
	freed atomic.Bool
}

// use gives the native of a descriptor that is being used.
func (l *library) use(d *primitive.Descriptor) *native {
	n := d.Native().(*native)
	if n.freed.Load() {
		l.stale.Add(1)
	}
	return n
}

// free is the release of one native object, which is to happen once.
func (l *library) free() func() {
	var done atomic.Bool
	return func() {
		if done.Swap(true) {
			l.twice.Add(1)
		}
		l.live.Add(-1)
	}
}

func (l *library) Create(ctx context.Context, d *primitive.Descriptor) (artefacts.Built, error) {
	l.creates.Add(1)
	n := l.use(d)
	if l.creating != nil {
		if err := l.creating(ctx, n.name); err != nil {
			return artefacts.Built{}, err
		}
	}
	return l.built(d), nil
}

func (l *library) built(d *primitive.Descriptor) artefacts.Built {
	n, free := l.use(d), l.free()
	l.live.Add(1)
	return artefacts.Built{
		Value: "primitive " + n.name, Bytes: 1, Cost: time.Second,
		Free: func() { l.use(d); free() },
		Blob: func(context.Context) ([]byte, error) { return []byte(n.name), nil },
	}
}

func (l *library) Blobs(s *primitive.Spec) bool { return s.Engine != "none" }

func (l *library) Load(_ context.Context, d *primitive.Descriptor, blob []byte) (artefacts.Built, error) {
	l.loads.Add(1)
	if string(blob) != l.use(d).name {
		return artefacts.Built{}, errors.New("another operation's blob")
	}
	return l.built(d), nil
}

// rig is an engine with a cache and a library behind it, spoken to in the
// language of the conformance scripts.
type rig struct {
	t     testing.TB
	lib   *library
	cache *artefacts.Cache
	*primitive.Engine
}

func open(t testing.TB, entries limit.Limit, ops map[string]op) *rig {
	return openWith(t, artefacts.Config{Entries: entries}, ops)
}

func openWith(t testing.TB, cfg artefacts.Config, ops map[string]op) *rig {
	t.Helper()
	c, err := artefacts.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, lib: &library{ops: ops}, cache: c}
	r.Engine = engine(t, c, r.lib, machine)
	t.Cleanup(r.close)
	return r
}

func engine(t testing.TB, c *artefacts.Cache, lib primitive.Library, id gpuexec.Identity) *primitive.Engine {
	t.Helper()
	e, err := primitive.Open(primitive.Config{Cache: c, Library: lib, Backend: "fake", Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// close ends the cache; nothing native may be left behind.
func (r *rig) close() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.cache.Close(ctx); err != nil {
		r.t.Errorf("close: %v", err)
	}
	if live, twice, stale := r.lib.live.Load(), r.lib.twice.Load(), r.lib.stale.Load(); live != 0 || twice != 0 || stale != 0 {
		r.t.Errorf("%d native objects were not freed, %d freed again, %d used when they were", live, twice, stale)
	}
}

// spec is the request of a name with script options.
func (r *rig) spec(name string, options ...string) *primitive.Spec {
	o := r.lib.ops[name]
	s := &primitive.Spec{Kind: o.kind, Engine: o.engine, Op: primitive.Operation{
		Direction: o.dir, Algorithm: o.alg, Params: []primitive.Param{{Name: "op", Text: name}},
		Tensors: []primitive.Tensor{{Type: "f32", Dims: []int64{8, 16}}},
	}}
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "id":
			s.Impl, _ = strconv.Atoi(value)
		case "skip":
			for p := range strings.SplitSeq(value, ",") {
				n, _ := strconv.Atoi(p)
				s.Skip = append(s.Skip, n)
			}
		case "hint":
			s.Hints = []primitive.Tensor{{Type: "f32"}, {Type: value}}
		default:
			r.t.Fatalf("option %s", option)
		}
	}
	return s
}

// say runs "desc|list|primitive NAME OPTIONS", "builds" or "len".
func (r *rig) say(statement string) string {
	words := strings.Fields(statement)
	ctx := context.Background()
	switch words[0] {
	case "builds":
		return fmt.Sprint(r.lib.describes.Load())
	case "len":
		return fmt.Sprint(r.cache.Len())
	case "desc":
		d, origin, err := r.Descriptor(ctx, r.spec(words[1], words[2:]...))
		if err != nil {
			return failure(err)
		}
		defer d.Release()
		by, shared := "miss", "no"
		if origin != primitive.Built {
			by = "hit"
		}
		if origin == primitive.Shared {
			shared = "yes"
		}
		return fmt.Sprintf("%d id=%d by=%s shared=%s alg=%s", d.Position(), d.ID(), by, shared, d.Algorithm())
	case "list":
		var all []string
		for d, err := range r.All(ctx, r.spec(words[1], words[2:]...)) {
			if err != nil {
				return failure(err)
			}
			all = append(all, strconv.Itoa(d.Position()))
			d.Release()
		}
		return strings.Join(append(all, "end"), " ")
	case "primitive":
		l, o, err := r.Primitive(ctx, r.spec(words[1], words[2:]...), "")
		if err != nil {
			return failure(err)
		}
		defer l.End()
		return fmt.Sprintf("%d by=%s", l.Primitive().Descriptor().Position(), o.Event)
	}
	r.t.Fatalf("statement %s", statement)
	return ""
}

func failure(err error) string {
	switch {
	case errors.Is(err, primitive.ErrEnd):
		return "end"
	case errors.Is(err, fault.ErrInvalid):
		return "error invalid"
	}
	return "error " + err.Error()
}

// agrees compares as the scripts do: all words, and the fields that are wanted.
func agrees(got, want string) bool {
	split := func(s string) (words, fields []string) {
		for _, w := range strings.Fields(s) {
			if strings.Contains(w, "=") {
				fields = append(fields, w)
			} else {
				words = append(words, w)
			}
		}
		return
	}
	gotWords, gotFields := split(got)
	wantWords, wantFields := split(want)
	return slices.Equal(gotWords, wantWords) && !slices.ContainsFunc(wantFields, func(f string) bool { return !slices.Contains(gotFields, f) })
}

// expect runs a statement and compares.
func (r *rig) expect(statement, want string) {
	r.t.Helper()
	if got := r.say(statement); !agrees(got, want) {
		r.t.Errorf("%s: got %s, want %s", statement, got, want)
	}
}
