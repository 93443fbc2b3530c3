package rooms

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// descriptors binds an engine of package primitive over a fake library.
type descriptors struct {
	engine *primitive.Engine
	cache  *artefactCache
	builds atomic.Int64
	ops    outside.Register[string, operation]
}

// operation is a declared request and what the fake library has for it.
type operation struct {
	kind, dir, alg, resolves, engine string
	impls                            int
	valid                            []int
	all                              bool // every position accepts it
}

// making is a call's creator, which travels in the call's context.
type making struct {
	call    *engine.Call
	creator outside.Creator
}

type makingKey struct{}

// machineOf is the script's machine and build, as backends tell them.
func machineOf(w *outside.World) gpuexec.Identity {
	known := func(field, byDefault string) string {
		if v := w.Identity(field, byDefault); v != "unknown" {
			return v
		}
		return ""
	}
	isa := list(known("isa", "avx2,fma"))
	slices.Sort(isa)
	return gpuexec.Identity{
		Library: known("library", "1.0"), Build: known("build", "b1"), Compiler: known("compiler", "c1"),
		Driver: known("driver", "d1"), Device: known("device", "device"), ISA: isa,
	}
}

func openDescriptors(c *engine.Call) (engine.Component, error) {
	name, _ := c.Option("cache")
	cache := engine.At[*artefactCache](c, name)
	d := &descriptors{cache: cache}
	cfg := primitive.Config{Cache: cache.cache, Library: d, Backend: testBackend, Identity: machineOf(c.World)}
	d.engine = engine.Must(primitive.Open(cfg))
	return d, nil
}

// Close has nothing to end: an engine owns entries of its cache only.
func (d *descriptors) Close(context.Context) error { return nil }

func (d *descriptors) Verbs() engine.Verbs {
	const asked = "id skip hint lane "
	return engine.Verbs{
		"op":        {Least: 1, Most: 1, Options: "kind dir impls valid alg resolves engine", Run: d.declare},
		"desc":      {Least: 1, Most: 1, Options: asked, Run: d.describe},
		"list":      {Least: 1, Most: 1, Options: asked, Run: d.list},
		"primitive": {Least: 1, Most: 1, Options: asked + engine.CreatorOptions + "owner lease", Flags: engine.CreatorFlags, Run: d.primitive},
		"builds":    engine.Count(d.builds.Load),
		"allocs":    {Least: 1, Most: 1, Options: asked, Run: d.allocs},
		"count":     {Least: 1, Most: 1, Run: d.cache.count},
		"blobid":    {Least: 1, Most: 1, Options: asked + "as", Run: d.blobID},
	}
}

// ints reads a list of positions.
func ints(text string) ([]int, error) { return listOf(text, strconv.Atoi) }

func (d *descriptors) declare(c *engine.Call) (script.Result, error) {
	o := operation{
		kind: c.Or("kind", ""), dir: c.Or("dir", "forward"), alg: c.Or("alg", ""), resolves: c.Or("resolves", ""), engine: c.Or("engine", "cpu"),
		impls: c.Int("impls", 1), valid: engine.Parsed(c, "valid", nil, ints),
	}
	if o.dir != "forward" && o.dir != "backward" {
		return script.Result{}, fault.Invalidf("conform: op", "dir=%s, want forward or backward", o.dir)
	}
	_, given := c.Option("valid")
	o.all = !given
	d.ops.Set(c.Arg(0), o)
	return engine.OK(), nil
}

func (d *descriptors) operation(name string) (operation, error) {
	o, ok := d.ops.Lookup(name)
	if !ok {
		return o, fault.Invalidf("conform: op", "no operation %q: declare it first", name)
	}
	return o, nil
}

// spec is the request of a declared operation. A lane belongs to a session's
// name and is no part of it (SPEC D7).
func (d *descriptors) spec(c *engine.Call, name string) (*primitive.Spec, error) {
	o, err := d.operation(name)
	if err != nil {
		return nil, err
	}
	s := &primitive.Spec{Kind: o.kind, Engine: o.engine, Op: primitive.Operation{
		Direction: o.dir, Algorithm: o.alg, Params: []primitive.Param{{Name: "op", Text: name}},
		Tensors: []primitive.Tensor{{Type: "f32", Dims: []int64{8, 16}}},
	}}
	s.Impl, s.Skip = c.Int("id", 0), engine.Parsed(c, "skip", nil, ints)
	if hint, ok := c.Option("hint"); ok {
		s.Hints = []primitive.Tensor{{Type: "f32"}, {Type: hint}}
	}
	return s, nil
}

func (d *descriptors) describe(c *engine.Call) (script.Result, error) {
	s := engine.Must(d.spec(c, c.Arg(0)))
	desc, origin, err := d.engine.Descriptor(c.Ctx, s)
	if err != nil {
		return ended(err)
	}
	defer desc.Release()
	by, shared := engine.Word(origin != primitive.Built, "hit", "miss"), engine.Word(origin == primitive.Shared, "yes", "no")
	return engine.Number(desc.Position()).With("id", strconv.Itoa(desc.ID())).With("by", by).With("shared", shared).With("alg", desc.Algorithm()), nil
}

// ended is the result past the last implementation.
func ended(err error) (script.Result, error) {
	if errors.Is(err, primitive.ErrEnd) {
		return script.Say("end"), nil
	}
	return script.Result{}, err
}

func (d *descriptors) list(c *engine.Call) (script.Result, error) {
	s := engine.Must(d.spec(c, c.Arg(0)))
	var positions []string
	for desc, err := range d.engine.All(c.Ctx, s) {
		if err != nil {
			return script.Result{}, err
		}
		positions = append(positions, strconv.Itoa(desc.Position()))
		desc.Release()
	}
	return script.Say(append(positions, "end")...), nil
}

func (d *descriptors) primitive(c *engine.Call) (script.Result, error) {
	s := engine.Must(d.spec(c, c.Arg(0)))
	creator := c.Creator(c.Arg(0))
	ctx := context.WithValue(c.Ctx, makingKey{}, making{c, creator})
	l, outcome, err := d.engine.Primitive(ctx, s, c.Or("owner", ""))
	if err != nil {
		return ended(err)
	}
	position := l.Primitive().Descriptor().Position()
	c.Lease(lease{func() any { return l.Primitive().Native() }, l.End})
	return engine.Number(position).With("by", string(outcome.Event)), nil
}

// allocs is the mean number of allocations of a descriptor's hit lookup.
func (d *descriptors) allocs(c *engine.Call) (script.Result, error) {
	s := engine.Must(d.spec(c, c.Arg(0)))
	mean := measure.Allocations(func() {
		desc, origin, err := d.engine.Descriptor(c.Ctx, s)
		if err == nil && origin == primitive.Built {
			err = fault.Invalidf("conform: allocs", "%s is no hit: ask for it first", c.Arg(0))
		}
		engine.Must(desc, err).Release()
	})
	return engine.Number(int(mean)), nil
}

func (d *descriptors) blobID(c *engine.Call) (script.Result, error) {
	s := engine.Must(d.spec(c, c.Arg(0)))
	desc, _, err := d.engine.Descriptor(c.Ctx, s)
	if err != nil {
		return ended(err)
	}
	defer desc.Release()
	id := desc.BlobID()
	if name, ok := c.Option("as"); ok {
		c.KeepIdentity(name, identity{key: id})
	}
	if id == "" {
		return script.Say("empty"), nil
	}
	return engine.OK(), nil
}

// Implementations is the fake library's list.
func (d *descriptors) Implementations(_ context.Context, s *primitive.Spec) iter.Seq2[primitive.Implementation, error] {
	return func(yield func(primitive.Implementation, error) bool) {
		o, err := d.operation(s.Op.Params[0].Text)
		if err != nil {
			yield(nil, err)
			return
		}
		for position := range o.impls {
			if !yield(implementation{d, o, position}, nil) {
				return
			}
		}
	}
}

type implementation struct {
	of       *descriptors
	op       operation
	position int
}

func (i implementation) Accepts() bool { return i.op.all || slices.Contains(i.op.valid, i.position) }

func (i implementation) Describe() (primitive.Description, error) {
	i.of.builds.Add(1)
	about := primitive.Description{Name: fmt.Sprintf("test:%d", i.position)}
	if i.op.alg == "auto" {
		about.Algorithm = i.op.resolves
	}
	return about, nil
}

// Create is the fake library's compiler: the creator of the call that asked.
func (d *descriptors) Create(ctx context.Context, desc *primitive.Descriptor) (artefacts.Built, error) {
	m := ctx.Value(makingKey{}).(making)
	name := desc.Spec().Op.Params[0].Text
	hooks := d.cache.hooks(m.call, m.call.Tally())
	hooks.Nest = func(ctx context.Context, part string) error {
		s, err := d.spec(m.call, part)
		if err != nil {
			return err
		}
		s.Impl, s.Skip, s.Hints = 0, nil, nil
		ctx = context.WithValue(ctx, makingKey{}, making{m.call, m.call.CreatorOf(part)})
		l, _, err := d.engine.Primitive(ctx, s, m.call.Or("owner", ""))
		if err == nil {
			l.End()
		}
		return err
	}
	v, err := m.call.World.Create(ctx, m.creator, name, hooks, m.call.Tally())
	if err != nil {
		return artefacts.Built{}, err
	}
	return d.cache.built(v), nil
}

// Blobs reports whether the engine of a request has them.
func (d *descriptors) Blobs(s *primitive.Spec) bool { return s.Engine != "none" && d.cache.blobs }

// Load is the fake driver with a stored blob.
func (d *descriptors) Load(ctx context.Context, desc *primitive.Descriptor, blob []byte) (artefacts.Built, error) {
	m := ctx.Value(makingKey{}).(making)
	name := desc.Spec().Op.Params[0].Text
	m.call.Tally().Loads.Add(name)
	return d.cache.load(m.call, name, m.creator, blob)
}
