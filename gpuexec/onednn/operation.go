package onednn

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

const (
	training        = 64
	backward        = 128
	backwardData    = 160
	backwardWeights = 192

	mostRank = len(dims{})
)

// operation is a request as the library takes it. It owns its descriptors, attributes and
// hint, until free.
type operation struct {
	lib    *Library
	spec   *primitive.Spec
	engine handle
	kind   string
	form   form
	prop   int32
	alg    int32
	descs  []*memoryDesc // of the spec's tensors; nil = left out

	strides, kernel, dilates, before, after *dims
	axis                                    int32
	flags                                   uint32
	alpha, beta, epsilon, p                 float32
	scales                                  []float32

	attr handle
	hint handle // the forward operation's
}

func (o *operation) backward() bool { return o.prop >= backward }

// operation makes the library's form of a request. ErrInvalid or ErrUnsupported, where the
// request has what the library has no form for.
func (l *Library) operation(ctx context.Context, s *primitive.Spec) (_ *operation, err error) {
	o := &operation{lib: l, spec: s, engine: l.engine, kind: s.Kind}
	defer func() {
		if err != nil {
			o.free()
		}
	}()
	if err := l.serves(s); err != nil {
		return nil, err
	}
	var known bool
	if o.prop, known = directions[s.Op.Direction]; !known {
		return nil, fault.Invalidf("onednn: describe", "direction %q: want one of %q", s.Op.Direction, slices.Sorted(maps.Keys(directions)))
	}
	if o.form, known = formOf(s.Kind, o.prop); !known {
		if _, listed := formOf(s.Kind, directions[""]); !listed && !slices.Contains(elsewhere, s.Kind) {
			return nil, fault.Invalidf("onednn: describe", "kind %.40q: oneDNN has none of this name", s.Kind)
		}
		return nil, failure("describe", fault.ErrUnsupported, "kind %q, direction %q", s.Kind, s.Op.Direction)
	}
	for _, take := range []func() error{o.tensors, o.algorithm, o.params, o.inside} { // each relies on those before
		if err := take(); err != nil {
			return nil, err
		}
	}
	if o.attr, err = l.attributes(s); err != nil {
		return nil, err
	}
	if o.backward() {
		o.hint, err = l.forward(ctx, s)
	}
	return o, err
}

// serves refuses a request that is for another engine, and the library's own scratch
// memory: executions that share a primitive would share that (SPEC E5).
func (l *Library) serves(s *primitive.Spec) error {
	switch {
	case cmp.Or(s.Engine, "cpu") != "cpu":
		return failure("describe", fault.ErrUnsupported, "engine %q: want cpu", s.Engine)
	case cmp.Or(s.Runtime, l.about.Runtime) != l.about.Runtime:
		return failure("describe", fault.ErrUnsupported, "runtime %q: want %s", s.Runtime, l.about.Runtime)
	case s.Threads != 0 && s.Threads != l.about.Threads:
		return failure("describe", fault.ErrUnsupported, "%d threads: primitives here run on %d", s.Threads, l.about.Threads)
	case cmp.Or(s.Scratchpad, "user") != "user":
		return failure("describe", fault.ErrUnsupported, "scratchpad %q: want user, so that a primitive can be shared", s.Scratchpad)
	}
	return nil
}

func (o *operation) free() {
	for _, md := range o.descs {
		o.lib.dropDesc(md)
	}
	o.lib.free(o.lib.c.PlanFree, o.hint)
	o.lib.free(o.lib.c.AttrFree, o.attr)
}

// tensors makes the memory descriptors.
func (o *operation) tensors() error {
	list, slots := o.spec.Op.Tensors, slotsOf(o.spec)
	if len(list) != len(slots) || len(list) < 2 {
		return fault.Invalidf("onednn: describe", "%s: %d tensors, want %v", o.kind, len(list), slots)
	}
	for i := range list {
		slot, t := slots[i], &list[i]
		if slot == o.form.optional && absent(t) {
			o.descs = append(o.descs, nil)
			continue
		}
		switch { // the library looks at neither
		case o.kind == "pooling" && len(t.Dims) < 3:
			return fault.Invalidf("onednn: describe", "pooling: %v has %d dimensions, want at least 3", slot, len(t.Dims))
		case o.kind == "softmax" && !slices.Equal(t.Dims, list[0].Dims):
			return fault.Invalidf("onednn: describe", "softmax: %v is %v, want %v as %v", slot, t.Dims, list[0].Dims, slots[0])
		}
		md, err := o.lib.describe(t, o.kind == "matmul")
		if err != nil {
			return fault.Wrap("onednn: describe", o.kind, slot.String(), err)
		}
		o.descs = append(o.descs, md)
	}
	return nil
}

func (o *operation) algorithm() (err error) {
	name := o.spec.Op.Algorithm
	known := true
	switch {
	case !o.form.alg:
		known = name == ""
	case o.kind == "eltwise":
		o.alg, err = o.lib.eltwise(name, o.float("alpha", 0), o.float("beta", 0))
	default:
		o.alg, known = algorithms[o.kind][name]
	}
	if !known {
		return fault.Invalidf("onednn: describe", "%s: algorithm %q: want one of %q", o.kind, name, slices.Sorted(maps.Keys(algorithms[o.kind])))
	}
	return err
}

// eltwise is the number of a function of one number.
func (l *Library) eltwise(name string, alpha, beta float64) (int32, error) {
	if n, ok := fromDst[name]; ok {
		return n, nil
	}
	if n, ok := l.b.eltwise(name, alpha, beta); ok {
		return n, nil
	}
	if _, ok := eltwise3[name]; ok {
		return 0, unsupported("this function, or these parameters of it")
	}
	return 0, fault.Invalidf("onednn: describe", "eltwise: algorithm %q", name)
}

// unsupported says that the library that is here is older than what was asked for.
func unsupported(what string) error {
	return failure("describe", fault.ErrUnsupported, "this version of oneDNN does not have: %s", what)
}

func (o *operation) param(name string) *primitive.Param {
	for i := range o.spec.Op.Params {
		if p := &o.spec.Op.Params[i]; p.Name == name {
			return p
		}
	}
	return nil
}

func (o *operation) float(name string, otherwise float64) float64 {
	if p := o.param(name); p != nil && len(p.Floats) == 1 {
		return p.Floats[0]
	}
	return otherwise
}

// space is a parameter with a number for each spatial dimension.
func (o *operation) space(name string, each int64) *dims {
	if p := o.param(name); p != nil {
		return dimsOf(p.Ints)
	}
	d := new(dims)
	for i := range d {
		d[i] = each
	}
	return d
}

// params takes the parameters; one that the kind does not have is an error.
func (o *operation) params() error {
	for i, p := range o.spec.Op.Params {
		if o.param(p.Name) != &o.spec.Op.Params[i] {
			return fault.Invalidf("onednn: describe", "%s: parameter %q comes twice", o.kind, p.Name)
		}
		if !slices.Contains(o.form.params, p.Name) {
			return fault.Invalidf("onednn: describe", "%s: parameter %q: want one of %q", o.kind, p.Name, o.form.params)
		}
		wants := map[string][2]int{"alpha": {0, 1}, "beta": {0, 1}, "p": {0, 1}, "epsilon": {0, 1}, "scales": {0, len(o.descs) - 1},
			"axis": {1, 0}, "global_stats": {}, "scale": {}, "shift": {}}
		want, listed := wants[p.Name]
		if !listed { // one number for each spatial dimension
			want = [2]int{len(o.spec.Op.Tensors[0].Dims) - 2, 0}
		}
		if len(p.Ints) != want[0] || len(p.Floats) != want[1] || p.Text != "" {
			return fault.Invalidf("onednn: describe", "%s: parameter %q has %d integers and %d other numbers: want %d and %d",
				o.kind, p.Name, len(p.Ints), len(p.Floats), want[0], want[1])
		}
	}
	if slices.Contains(o.form.params, "strides") {
		o.strides, o.kernel, o.dilates = o.space("strides", 1), o.space("kernel", 1), o.space("dilates", 0)
		o.before, o.after = o.space("padding_l", 0), o.space("padding_r", 0)
	}
	o.alpha, o.beta = float32(o.float("alpha", 0)), float32(o.float("beta", 0))
	o.epsilon, o.p = float32(o.float("epsilon", 0)), float32(o.float("p", 0))
	if p := o.param("axis"); p != nil {
		if p.Ints[0] < 0 || p.Ints[0] >= int64(len(o.spec.Op.Tensors[0].Dims)) {
			return fault.Invalidf("onednn: describe", "%s: axis %d", o.kind, p.Ints[0])
		}
		o.axis = int32(p.Ints[0])
	} else if slices.Contains(o.form.params, "axis") {
		return fault.Invalidf("onednn: describe", "%s: want the parameter axis", o.kind)
	}
	if p := o.param("scales"); p != nil {
		for _, f := range p.Floats {
			o.scales = append(o.scales, float32(f))
		}
	} else if o.kind == "sum" {
		return fault.Invalidf("onednn: describe", "sum: want the parameter scales")
	}
	for i, name := range []string{"global_stats", "scale", "shift"} {
		if o.param(name) != nil {
			o.flags |= o.lib.b.flags()[i]
		}
	}
	return nil
}

// forward makes the forward operation that a backward one has the hints of (SPEC D5):
// its tensors, and its workspace last. That makes it a function of the request.
func (l *Library) forward(ctx context.Context, s *primitive.Spec) (pd handle, err error) {
	f := primitive.Spec{Kind: s.Kind, Op: s.Op}
	f.Op.Direction = "forward_training"
	form, _ := formOf(s.Kind, training)
	if len(s.Hints) != len(form.slots)+1 {
		return 0, fault.Invalidf("onednn: describe", "%s, %s: %d hints: want the Hints of the forward descriptor", s.Kind, s.Op.Direction, len(s.Hints))
	}
	if err := fits(s, form.slots); err != nil {
		return 0, err
	}
	f.Op.Tensors = s.Hints[:len(form.slots)]
	want := &s.Hints[len(form.slots)]
	for each, err := range l.walk(ctx, &f) {
		if err != nil {
			return 0, err
		}
		got, err := l.chosen(each.pd, Workspace)
		if err != nil {
			return 0, err
		}
		if same(&got, want) {
			return l.clone(each.pd)
		}
	}
	return 0, fault.Invalidf("onednn: describe", "%s, %s: no forward operation has these hints", s.Kind, s.Op.Direction)
}

// attributes makes the attributes of a request: with scratch memory that its user gives.
func (l *Library) attributes(s *primitive.Spec) (_ handle, err error) {
	a := &s.Attr
	attr, err := l.make("dnnl_primitive_attr_create", l.c.AttrMake)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			l.free(l.c.AttrFree, attr)
		}
	}()
	if err := l.c.status("dnnl_primitive_attr_set_scratchpad_mode", l.c.AttrScratch(attr, scratchpadUser)); err != nil {
		return 0, err
	}
	mode, known := mathModes[a.FPMath]
	if !known {
		return 0, fault.Invalidf("onednn: attributes", "fpmath %q", a.FPMath)
	}
	// The default may be another one, by a variable of the library's.
	if err := l.c.status("dnnl_primitive_attr_set_fpmath_mode", l.c.AttrFPMath(attr, mode)); err != nil {
		return 0, err
	}
	if err := l.b.modes(attr, a); err != nil {
		return 0, err
	}
	for i := range len(a.Scales) + len(a.ZeroPoints) {
		zeros := i >= len(a.Scales)
		list := a.Scales
		if zeros {
			i, list = i-len(a.Scales), a.ZeroPoints
		}
		q := &list[i]
		arg, err := slotNamed(q.Arg)
		if err != nil {
			return 0, err
		}
		if _, ok := dataTypes[cmp.Or(q.Type, "f32")]; !ok || q.Mask > math.MaxInt32 {
			return 0, fault.Invalidf("onednn: attributes", "%s: type %q, mask %#x", q.Arg, q.Type, q.Mask)
		}
		t, is3 := l.b.(*table3)
		switch old := !is3 || t.DescBlob == nil; {
		case !zeros || q.Mask == 0:
		case old && s.Kind == "reorder": // it refuses every execution
			return 0, unsupported("a reorder with zero points by a mask")
		case !is3 && s.Kind == "matmul" && len(s.Op.Tensors[0].Dims) > 2: // it reads them by another dimension
			return 0, unsupported("a product of many with zero points by a mask")
		}
		if err := l.b.quantize(attr, arg, q, zeros); err != nil {
			return 0, err
		}
	}
	if err := l.postOps(attr, a.PostOps); err != nil {
		return 0, err
	}
	return attr, nil
}

// mostPostOps is how many the library takes, in every version.
const mostPostOps = 32

func (l *Library) postOps(attr handle, list []primitive.PostOp) error {
	if len(list) == 0 {
		return nil
	}
	if len(list) > mostPostOps {
		return failure("attributes", fault.ErrUnsupported, "%d post-operations: want at most %d", len(list), mostPostOps)
	}
	h, err := l.make("dnnl_post_ops_create", l.c.PostOpsMake)
	if err != nil {
		return err
	}
	defer l.free(l.c.PostOpsFree, h)
	for i := range list {
		if err := l.postOp(h, &list[i]); err != nil {
			return err
		}
	}
	return l.c.status("dnnl_primitive_attr_set_post_ops", l.c.AttrPostOps(attr, h))
}

func (l *Library) postOp(h handle, p *primitive.PostOp) error {
	switch p.Kind {
	case "sum":
		if _, ok := dataTypes[p.Type]; !ok && p.Type != "" {
			return fault.Invalidf("onednn: attributes", "post-op sum: type %q", p.Type)
		}
		if p.ZeroPoint != int64(int32(p.ZeroPoint)) {
			return fault.Invalidf("onednn: attributes", "post-op sum: a zero point of %d: want one of 32 bits", p.ZeroPoint)
		}
		sum := *p
		sum.Scale = cmp.Or(p.Scale, 1)
		return l.b.postOpSum(h, &sum)
	case "eltwise":
		if p.Scale != 0 && p.Scale != 1 {
			return failure("attributes", fault.ErrUnsupported, "post-op eltwise with a scale: multiply behind it")
		}
		alg, err := l.eltwise(p.Algorithm, p.Alpha, p.Beta)
		if err != nil {
			return err
		}
		return l.b.postOpEltwise(h, alg, p)
	case "binary":
		alg, ok := algorithms["binary"][p.Algorithm]
		if !ok {
			return fault.Invalidf("onednn: attributes", "post-op binary: algorithm %q", p.Algorithm)
		}
		if !concrete(&p.Source) {
			return fault.Invalidf("onednn: attributes", "post-op binary: its source needs strides")
		}
		md, err := l.newDesc(&p.Source)
		if err != nil {
			return err
		}
		defer l.dropDesc(md)
		return l.c.status("dnnl_post_ops_append_binary", l.c.PostOpBinary(h, alg, md))
	case "prelu":
		if p.Mask > 1<<mostRank || p.Mask&(p.Mask-1) != 0 {
			return failure("attributes", fault.ErrUnsupported, "post-op prelu, mask %#x: want none or one dimension", p.Mask)
		}
		return l.b.postOpPrelu(h, int32(p.Mask))
	}
	return failure("attributes", fault.ErrUnsupported, "post-op %q", p.Kind)
}
