package onednn

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// plan is the library's primitive descriptor, with what its execution takes. It is a
// Description's Native.
type plan struct {
	lib     *Library
	pd      handle
	args    []argument
	scratch int64 // bytes
	late    bool  // sizes come with the memory of an execution
	nothing bool  // it writes no numbers
}

// argument is what an execution takes at a slot.
type argument struct {
	slot   Slot
	id     int32 // the library's number of it
	tensor primitive.Tensor
}

// kernel is a primitive of the library, a Primitive's Native.
type kernel struct {
	plan *plan
	h    handle // 0 where the plan writes nothing
}

// Implementations implements primitive.Library. The list is the library's own, which with
// its cache off depends on the request alone (SPEC D1). Left out is an implementation that
// chooses a layout for which the library gives no name and no bytes.
func (l *Library) Implementations(ctx context.Context, s *primitive.Spec) iter.Seq2[primitive.Implementation, error] {
	return func(yield func(primitive.Implementation, error) bool) {
		if err := l.pin("describe"); err != nil {
			yield(nil, err)
			return
		}
		defer l.cell.Unpin()
		for each, err := range l.walk(ctx, s) {
			if !yield(&implementation{lib: l, spec: s, pd: each.pd}, err) {
				return
			}
		}
	}
}

// implementation is one of a list, until its next step.
type implementation struct {
	lib  *Library
	spec *primitive.Spec
	pd   handle

	asked   bool
	tensors []primitive.Tensor // nil: as the request has them
	err     error
}

func (i *implementation) Accepts() bool {
	i.choose()
	return !errors.Is(i.err, fault.ErrUnsupported) && !i.spoils()
}

// choose reads the layouts, where the request leaves some to the library.
func (i *implementation) choose() {
	if i.asked {
		return
	}
	i.asked = true
	list, slots := i.spec.Op.Tensors, slotsOf(i.spec)
	for n := range list {
		if concrete(&list[n]) || absent(&list[n]) && (slots[n] != Mean || !hasStatistics(i.spec)) {
			continue
		}
		t, err := i.lib.chosen(i.pd, slots[n])
		if err != nil {
			i.err = err
			return
		}
		if i.tensors == nil {
			i.tensors = append(i.tensors, list...)
		}
		i.tensors[n] = t
	}
}

// Describe implements primitive.Implementation.
func (i *implementation) Describe() (d primitive.Description, err error) {
	if i.choose(); i.err != nil {
		return d, i.err
	}
	l := i.lib
	tensors := i.tensors
	if tensors == nil {
		tensors = i.spec.Op.Tensors
	}
	p := &plan{lib: l}
	var name *byte
	if err := l.c.status("dnnl_primitive_desc_query", l.c.PlanText(i.pd, queryName, 0, &name)); err != nil {
		return d, err
	}
	if md := l.c.PlanDesc(i.pd, queryArg, int32(scratchpad)); md != nil {
		p.scratch = int64(l.c.DescBytes(md))
	}
	if d.Algorithm, err = l.resolved(i.spec, i.pd); err != nil {
		return d, err
	}
	workspace, err := l.chosen(i.pd, Workspace)
	if err != nil {
		return d, err
	}
	if p.args, err = l.arguments(i.pd, i.spec, tensors, &workspace); err != nil {
		return d, err
	}
	for n := range tensors {
		p.late = p.late || late(&tensors[n])
	}
	p.nothing = single(i.spec.Kind) && empty(tensors[len(tensors)-1])
	if s := i.spec; directions[s.Op.Direction] == training {
		d.Hints = append(append(d.Hints, tensors...), workspace)
	}
	if err := l.pin("describe"); err != nil {
		return d, err
	}
	if p.pd, err = l.clone(i.pd); err != nil {
		l.cell.Unpin()
		return d, err
	}
	d.Name, d.Tensors, d.Scratchpad, d.Native, d.Bytes = text(name), i.tensors, p.scratch, p, planBytes
	d.Free = func() {
		l.free(l.c.PlanFree, p.pd)
		l.cell.Unpin()
	}
	return d, nil
}

// trimEvery is how many primitives are destroyed before the C library is told to give the
// system what is free. Primitives are made and destroyed on many threads, each with a heap of
// its own there, which would else keep it.
const trimEvery = 256

// What things take of a cache's bytes. The library does not say; these are measured: of
// a product with and without post-operations the growth of the process, rounded up.
const (
	planBytes   = 8 << 10
	simpleBytes = 32 << 10
	codeBytes   = 160 << 10 // machine code of a product; as much again with post-operations
	newer       = 2         // times as much from 3.6 on
)

func (l *Library) bytes(s *primitive.Spec) int64 {
	n := int64(simpleBytes)
	switch s.Kind {
	case "matmul", "inner_product", "convolution":
		n = codeBytes
		if len(s.Attr.PostOps) > 0 {
			n *= 2
		}
	}
	if l.image.newer {
		n *= newer
	}
	return n
}

// clone makes a primitive descriptor of the caller's own.
func (l *Library) clone(pd handle) (handle, error) {
	return l.make("dnnl_primitive_desc_clone", func(h *handle) int32 { return l.c.PlanClone(h, pd) })
}

// resolved is what became of the algorithm "auto" (SPEC D6).
func (l *Library) resolved(s *primitive.Spec, pd handle) (string, error) {
	if s.Op.Algorithm != "auto" {
		return "", nil
	}
	alg, err := l.b.resolved(pd)
	for name, n := range algorithms[s.Kind] {
		if n == alg {
			return name, err
		}
	}
	return "", err
}

// Create implements primitive.Library.
func (l *Library) Create(_ context.Context, d *primitive.Descriptor) (artefacts.Built, error) {
	p, ok := d.Native().(*plan)
	if !ok || p.lib != l {
		return artefacts.Built{}, fault.Invalidf("onednn: create", "the descriptor is another library's: want one of an engine on this one")
	}
	if err := l.pin("create"); err != nil {
		return artefacts.Built{}, err
	}
	k := &kernel{plan: p}
	if p.nothing { // the library divides by its sizes, when it makes it or when it runs
		return artefacts.Built{Value: k, Free: l.cell.Unpin}, nil
	}
	var err error
	if k.h, err = l.assemble(p.pd); err != nil {
		l.cell.Unpin()
		return artefacts.Built{}, fault.Wrap("onednn: create", d.Spec().Kind, d.Name(), err)
	}
	return artefacts.Built{Value: k, Bytes: l.bytes(d.Spec()), Free: func() {
		l.free(l.c.Free, k.h)
		if l.dropped.Add(1)%trimEvery == 0 && l.c.Trim != nil {
			l.c.Trim(0)
		}
		l.cell.Unpin()
	}}, nil
}

// arguments lists what an execution takes.
func (l *Library) arguments(pd handle, s *primitive.Spec, tensors []primitive.Tensor, workspace *primitive.Tensor) ([]argument, error) {
	var args []argument
	add := func(slot Slot, t primitive.Tensor) { args = append(args, argument{slot, l.b.argument(slot), t}) }
	of := make(map[Slot]*primitive.Tensor)
	for i, slot := range slotsOf(s) {
		of[slot] = &tensors[i]
		if !absent(&tensors[i]) && slot != Mean {
			add(slot, tensors[i])
		}
	}
	if !absent(workspace) {
		add(Workspace, *workspace)
	}
	if s.Kind == "layer_normalization" {
		l.normArguments(pd, s, of, add)
	}
	for i := range s.Attr.Scales {
		if err := quantArgument(&s.Attr.Scales[i], ScalesOf, "f32", of, add); err != nil {
			return nil, err
		}
	}
	for i := range s.Attr.ZeroPoints {
		if err := quantArgument(&s.Attr.ZeroPoints[i], ZeroPointsOf, "s32", of, add); err != nil {
			return nil, err
		}
	}
	for i := range s.Attr.PostOps {
		switch p := &s.Attr.PostOps[i]; p.Kind {
		case "binary":
			for d, size := range of[Dst].Dims {
				if size == atExecution && d < len(p.Source.Dims) && p.Source.Dims[d] != 1 {
					return nil, lateValues(Dst, d)
				}
			}
			add(PostOpSource(i), p.Source)
		case "prelu":
			sizes := make([]int64, len(of[Dst].Dims))
			for d := range sizes {
				sizes[d] = 1
				if p.Mask>>d&1 != 0 {
					sizes[d] = of[Dst].Dims[d]
				}
				if sizes[d] == atExecution {
					return nil, lateValues(Dst, d)
				}
			}
			add(PostOpWeights(i), Dense("f32", sizes...))
		}
	}
	return args, nil
}

// hasStatistics: a layer normalisation gives its statistics when it is trained, and is given
// them where they are global or it goes backward. Without a tensor for them they have the
// layout that the library chooses, by that of the source.
func hasStatistics(s *primitive.Spec) bool {
	prop := directions[s.Op.Direction]
	return prop == training || prop >= backward || slices.ContainsFunc(s.Op.Params, func(p primitive.Param) bool { return p.Name == "global_stats" })
}

// normArguments: statistics, scale and shift. Some versions want the shift backward, which
// they do not need: their number of inputs tells.
func (l *Library) normArguments(pd handle, s *primitive.Spec, of map[Slot]*primitive.Tensor, add func(Slot, primitive.Tensor)) {
	prop := directions[s.Op.Direction]
	has := func(name string) bool {
		for i := range s.Op.Params {
			if s.Op.Params[i].Name == name {
				return true
			}
		}
		return false
	}
	data := of[Dst]
	if prop >= backward {
		data = of[DiffDst]
	}
	if hasStatistics(s) {
		add(Mean, *of[Mean])
		add(Variance, *of[Mean])
	}
	row := Dense("f32", data.Dims[len(data.Dims)-1])
	for _, x := range []struct {
		name       string
		slot, diff Slot
	}{{"scale", Scale, DiffScale}, {"shift", Shift, DiffShift}} {
		if !has(x.name) {
			continue
		}
		const inputs = 4 // without scale and shift: src, diff_dst and the statistics
		needed := x.slot == Scale || prop < backward
		if !needed {
			n := l.c.PlanInt(pd, queryInputs, 0)
			needed = has("scale") && n > inputs+1 || !has("scale") && n > inputs
		}
		if needed {
			add(x.slot, row)
		}
		if prop == backward {
			add(x.diff, row)
		}
	}
}

// quantArgument is one value for each index of the dimensions in a mask, or for each group.
func quantArgument(q *primitive.Quant, at func(Slot) Slot, dataType string, of map[Slot]*primitive.Tensor, add func(Slot, primitive.Tensor)) error {
	slot, err := slotNamed(q.Arg)
	if err != nil {
		return err
	}
	t := of[slot]
	if t == nil {
		return fault.Invalidf("onednn: attributes", "%v is no argument of this operation", slot)
	}
	if q.Type != "" {
		dataType = q.Type
	}
	n := int64(1)
	for d, size := range t.Dims {
		if q.Mask>>d&1 == 0 {
			continue
		}
		if size == atExecution {
			return lateValues(slot, d)
		}
		if g := d - (len(t.Dims) - len(q.Groups)); g >= 0 && len(q.Groups) > 0 && q.Groups[g] > 1 {
			if size%q.Groups[g] != 0 { // a reorder would read values that are not there
				return fault.Invalidf("onednn: attributes", "groups of %d in dimension %d of %v, which is %d", q.Groups[g], d, slot, size)
			}
			size /= q.Groups[g]
		}
		n *= size
	}
	add(at(slot), Dense(dataType, n))
	return nil
}

// lateValues refuses values by a dimension whose size no execution could compare with theirs.
func lateValues(slot Slot, dim int) error {
	return failure("attributes", fault.ErrUnsupported, "values for each index of dimension %d of %v, whose size is known at execution only", dim, slot)
}
