package onednn

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// table3 has the entry points of 3.x: 3.2 and later only add to them.
type table3 struct {
	common
	DescStrided   func(md **memoryDesc, n int32, d *dims, dataType int32, strides *dims) int32 `c:"dnnl_memory_desc_create_with_strides"`
	DescTagged    func(md **memoryDesc, n int32, d *dims, dataType, tag int32) int32           `c:"dnnl_memory_desc_create_with_tag"`
	DescOfBlob    func(md **memoryDesc, blob *byte) int32                                      `c:"dnnl_memory_desc_create_with_blob" how:"optional"`
	DescBlob      func(blob *byte, size *uintptr, md *memoryDesc) int32                        `c:"dnnl_memory_desc_get_blob" how:"optional"`
	DescFree      func(md *memoryDesc) int32                                                   `c:"dnnl_memory_desc_destroy"`
	DescNumber    func(md *memoryDesc, what int32, result *int64) int32                        `c:"dnnl_memory_desc_query"`
	DescList      func(md *memoryDesc, what int32, result **dims) int32                        `c:"dnnl_memory_desc_query"`
	PlanNext      func(pd handle) int32                                                        `c:"dnnl_primitive_desc_next_impl"`
	PlanNumber    func(pd handle, what, index int32, result *int64) int32                      `c:"dnnl_primitive_desc_query"`
	ScalesMask    func(attr handle, arg, mask int32) int32                                     `c:"dnnl_primitive_attr_set_scales_mask"`
	ZerosMask     func(attr handle, arg, mask int32) int32                                     `c:"dnnl_primitive_attr_set_zero_points_mask"`
	Scales        func(attr handle, arg, mask, n int32, groups *dims, dataType int32) int32    `c:"dnnl_primitive_attr_set_scales" how:"optional"`
	Zeros         func(attr handle, arg, mask, n int32, groups *dims, dataType int32) int32    `c:"dnnl_primitive_attr_set_zero_points" how:"optional"`
	FPMathInts    func(attr handle, mode, ints int32) int32                                    `c:"dnnl_primitive_attr_set_fpmath_mode_v2" how:"optional"`
	Accumulation  func(attr handle, mode int32) int32                                          `c:"dnnl_primitive_attr_set_accumulation_mode" how:"optional"`
	Deterministic func(attr handle, on int32) int32                                            `c:"dnnl_primitive_attr_set_deterministic" how:"optional"`
	Rounding      func(attr handle, arg, mode int32) int32                                     `c:"dnnl_primitive_attr_set_rounding" how:"optional"`
	PostOpSum     func(h handle, scale float32, zero, dataType int32) int32                    `c:"dnnl_post_ops_append_sum"`
	PostOpPrelu   func(h handle, mask int32) int32                                             `c:"dnnl_post_ops_append_prelu"`
	PostOpEltwise func(h handle, alg int32, alpha, beta float32) int32                         `c:"dnnl_post_ops_append_eltwise"`

	Concat      func(pd *handle, on handle, dst *memoryDesc, n, axis int32, src **memoryDesc, attr handle) int32                                            `c:"dnnl_concat_primitive_desc_create"`
	Sum         func(pd *handle, on handle, dst *memoryDesc, n int32, scales *float32, src **memoryDesc, attr handle) int32                                 `c:"dnnl_sum_primitive_desc_create"`
	Binary      func(pd *handle, on handle, alg int32, a, b, dst *memoryDesc, attr handle) int32                                                            `c:"dnnl_binary_primitive_desc_create"`
	Matmul      func(pd *handle, on handle, src, weights, bias, dst *memoryDesc, attr handle) int32                                                         `c:"dnnl_matmul_primitive_desc_create"`
	Reduction   func(pd *handle, on handle, alg int32, src, dst *memoryDesc, p, epsilon float32, attr handle) int32                                         `c:"dnnl_reduction_primitive_desc_create"`
	Inner       func(pd *handle, on handle, prop int32, src, weights, bias, dst *memoryDesc, attr handle) int32                                             `c:"dnnl_inner_product_forward_primitive_desc_create"`
	InnerData   func(pd *handle, on handle, src, weights, dst *memoryDesc, hint, attr handle) int32                                                         `c:"dnnl_inner_product_backward_data_primitive_desc_create"`
	InnerWeight func(pd *handle, on handle, src, weights, bias, dst *memoryDesc, hint, attr handle) int32                                                   `c:"dnnl_inner_product_backward_weights_primitive_desc_create"`
	Conv        func(pd *handle, on handle, prop, alg int32, src, weights, bias, dst *memoryDesc, strides, dilates, before, after *dims, attr handle) int32 `c:"dnnl_convolution_forward_primitive_desc_create"`
	ConvData    func(pd *handle, on handle, alg int32, src, weights, dst *memoryDesc, strides, dilates, before, after *dims, hint, attr handle) int32       `c:"dnnl_convolution_backward_data_primitive_desc_create"`
	ConvWeights func(pd *handle, on handle, alg int32, src, weights, bias, dst *memoryDesc, strides, dilates, before, after *dims, hint, attr handle) int32 `c:"dnnl_convolution_backward_weights_primitive_desc_create"`
	Eltwise     func(pd *handle, on handle, prop, alg int32, src, dst *memoryDesc, alpha, beta float32, attr handle) int32                                  `c:"dnnl_eltwise_forward_primitive_desc_create"`
	EltwiseBack func(pd *handle, on handle, alg int32, diffSrc, diffDst, data *memoryDesc, alpha, beta float32, hint, attr handle) int32                    `c:"dnnl_eltwise_backward_primitive_desc_create"`
	Softmax     func(pd *handle, on handle, prop, alg int32, src, dst *memoryDesc, axis int32, attr handle) int32                                           `c:"dnnl_softmax_forward_primitive_desc_create"`
	SoftmaxBack func(pd *handle, on handle, alg int32, diffSrc, diffDst, dst *memoryDesc, axis int32, hint, attr handle) int32                              `c:"dnnl_softmax_backward_primitive_desc_create"`
	Pooling     func(pd *handle, on handle, prop, alg int32, src, dst *memoryDesc, strides, kernel, dilates, before, after *dims, attr handle) int32        `c:"dnnl_pooling_forward_primitive_desc_create"`
	PoolingBack func(pd *handle, on handle, alg int32, src, dst *memoryDesc, strides, kernel, dilates, before, after *dims, hint, attr handle) int32        `c:"dnnl_pooling_backward_primitive_desc_create"`
	Norm        func(pd *handle, on handle, prop int32, src, dst, stat *memoryDesc, epsilon float32, flags uint32, attr handle) int32                       `c:"dnnl_layer_normalization_forward_primitive_desc_create"`
	NormBack    func(pd *handle, on handle, prop int32, diffSrc, diffDst, src, stat *memoryDesc, epsilon float32, flags uint32, hint, attr handle) int32    `c:"dnnl_layer_normalization_backward_primitive_desc_create"`

	tags struct {
		sync.Once
		of map[string][]tag // by rank and inner blocks
	}
}

// tag is one of the library's names for a layout, such as ABcd16b16a.
type tag struct {
	number int32
	name   string
}

// Queries of a memory descriptor of 3.x.
const (
	descRank   = 256
	descDims   = 257
	descType   = 258
	descOffset = 259
	descFormat = 262
	descBlocks = 263
	descSizes  = 264
	descWhere  = 265
	planAlg    = 20
)

var eltwise3 = numbered(0x20, "relu", "tanh", "elu", "square", "abs", "sqrt", "linear", "soft_relu", "hardsigmoid", "logistic", "exp",
	"gelu_tanh", "swish", "log", "clip", "clip_v2", "pow", "gelu_erf", "round", "mish", "hardswish")

var accumulations = map[string]int32{"strict": 0, "relaxed": 1, "any": 2, "s32": 3, "f32": 4, "f16": 5}

var roundings = map[string]int32{"environment": 0, "stochastic": 1}

func (t *table3) base() *common { return &t.common }

func (t *table3) eltwise(name string, _, _ float64) (int32, bool) {
	n, ok := eltwise3[name]
	return n, ok
}

func (t *table3) flags() [3]uint32 { return [3]uint32{1, 2, 4} }

func (t *table3) argument(s Slot) int32 { return int32(s) }

func (t *table3) describe(x *primitive.Tensor) (md *memoryDesc, err error) {
	made := func(call string, code int32) (*memoryDesc, error) { return md, t.status(call, code) }
	n, sizes, dataType := int32(len(x.Dims)), dimsOf(x.Dims), dataTypes[x.Type]
	switch {
	case x.Layout != "" && t.DescOfBlob == nil:
		return nil, unsupported("a layout that only the library knows")
	case x.Layout != "":
		return made("dnnl_memory_desc_create_with_blob", t.DescOfBlob(&md, &[]byte(x.Layout)[0]))
	case len(x.Strides) == 0:
		return made("dnnl_memory_desc_create_with_tag", t.DescTagged(&md, n, sizes, dataType, tagAny))
	case len(x.Blocks) == 0:
		return made("dnnl_memory_desc_create_with_strides", t.DescStrided(&md, n, sizes, dataType, dimsOf(x.Strides)))
	}
	for _, candidate := range t.candidates(x) { // a blocked layout has a name or cannot be made
		err := t.status("dnnl_memory_desc_create_with_tag", t.DescTagged(&md, n, sizes, dataType, candidate.number))
		if answered(err, invalidArguments, unimplemented) {
			continue
		}
		if err != nil {
			return nil, err
		}
		got, err := t.read(md)
		if err == nil && same(&got, x) {
			return md, nil
		}
		if t.DescFree(md); err != nil {
			return nil, err
		}
	}
	return nil, unsupported("a layout of blocks that has no name")
}

func (t *table3) drop(md *memoryDesc) { t.DescFree(md) }

// candidates are the tags with x's rank and blocks, the likeliest first.
func (t *table3) candidates(x *primitive.Tensor) []tag {
	t.tags.Do(func() {
		t.tags.of = make(map[string][]tag)
		shape := regexp.MustCompile(`^([a-lA-L]+?)((?:\d+[a-l])*)$`)
		for number := int32(2); number < 4096; number++ {
			name := text(t.TagName(number))
			if m := shape.FindStringSubmatch(name); m != nil && m[2] != "" {
				key := fmt.Sprint(len(m[1]), m[2])
				t.tags.of[key] = append(t.tags.of[key], tag{number, name})
			}
		}
	})
	inner, blocked := "", make(map[int]bool)
	for _, b := range x.Blocks {
		inner += fmt.Sprint(b.Size) + string(rune('a'+b.Dim))
		blocked[b.Dim] = true
	}
	order := make([]int, len(x.Dims))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(x.Strides[b], x.Strides[a]) })
	var likely strings.Builder
	for _, d := range order {
		first := 'a'
		if blocked[d] {
			first = 'A'
		}
		likely.WriteRune(first + rune(d))
	}
	all := slices.Clone(t.tags.of[fmt.Sprint(len(x.Dims), inner)])
	unlikely := func(x tag) int { return min(1, len(x.name)-len(strings.TrimPrefix(x.name, likely.String()))) }
	slices.SortStableFunc(all, func(a, b tag) int { return cmp.Compare(unlikely(b), unlikely(a)) })
	return all
}

func (t *table3) read(md *memoryDesc) (x primitive.Tensor, err error) {
	number := func(what int32) int {
		var n int64 // the library fills the lower half of it for an int
		if code := t.DescNumber(md, what, &n); code != success && err == nil {
			err = t.status("dnnl_memory_desc_query", code)
		}
		return int(n)
	}
	list := func(what int32, n int) []int64 {
		var at *dims
		if code := t.DescList(md, what, &at); code != success && err == nil {
			err = t.status("dnnl_memory_desc_query", code)
		}
		if err != nil || n == 0 || at == nil {
			return nil
		}
		return slices.Clone(at[:n])
	}
	rank := number(descRank)
	if err != nil || rank == 0 {
		return x, err
	}
	x.Dims, x.Type, x.Offset = list(descDims, rank), typeName(int32(number(descType))), int64(number(descOffset))
	if err != nil || number(descFormat) != formatBlocked {
		return x, err
	}
	x.Strides = list(queryStride, rank)
	if n := number(descBlocks); n > 0 {
		sizes, where := list(descSizes, n), list(descWhere, n)
		for i := range min(len(sizes), len(where)) {
			x.Blocks = append(x.Blocks, primitive.Block{Dim: int(where[i]), Size: sizes[i]})
		}
	}
	return x, err
}

func (t *table3) opaque(md *memoryDesc) (string, error) {
	if t.DescBlob == nil {
		return "", unsupported("a layout that only the library knows")
	}
	var size uintptr
	if err := t.status("dnnl_memory_desc_get_blob", t.DescBlob(nil, &size, md)); err != nil {
		return "", err
	}
	blob := make([]byte, max(1, size))
	err := t.status("dnnl_memory_desc_get_blob", t.DescBlob(&blob[0], &size, md))
	return string(blob), err
}

func (t *table3) quantize(attr handle, arg Slot, q *primitive.Quant, zeros bool) error {
	call, mask, whole, first := "dnnl_primitive_attr_set_scales", t.ScalesMask, t.Scales, "f32"
	if zeros {
		call, mask, whole, first = "dnnl_primitive_attr_set_zero_points", t.ZerosMask, t.Zeros, "s32"
	}
	if len(q.Groups) == 0 && (q.Type == "" || q.Type == first) {
		return t.status(call+"_mask", mask(attr, int32(arg), int32(q.Mask)))
	}
	if whole == nil {
		return unsupported("scales or zero points with groups or a type of their own")
	}
	return t.status(call, whole(attr, int32(arg), int32(q.Mask), int32(len(q.Groups)), dimsOf(q.Groups), dataTypes[cmp.Or(q.Type, first)]))
}

// modes sets what 2.x does not have.
func (t *table3) modes(attr handle, a *primitive.Attributes) error {
	if a.FPMathInts {
		if t.FPMathInts == nil {
			return unsupported("fpmath for integers")
		}
		if err := t.status("dnnl_primitive_attr_set_fpmath_mode_v2", t.FPMathInts(attr, mathModes[a.FPMath], 1)); err != nil {
			return err
		}
	}
	if mode, ok := accumulations[cmp.Or(a.Accumulation, "strict")]; !ok {
		return fault.Invalidf("onednn: attributes", "accumulation %q", a.Accumulation)
	} else if mode != 0 {
		if t.Accumulation == nil {
			return unsupported("an accumulation mode")
		}
		if err := t.status("dnnl_primitive_attr_set_accumulation_mode", t.Accumulation(attr, mode)); err != nil {
			return err
		}
	}
	if a.Deterministic {
		if t.Deterministic == nil {
			return unsupported("deterministic")
		}
		if err := t.status("dnnl_primitive_attr_set_deterministic", t.Deterministic(attr, 1)); err != nil {
			return err
		}
	}
	for i := range a.Rounding {
		mode, known := roundings[a.Rounding[i].Mode]
		arg, err := slotNamed(a.Rounding[i].Arg)
		switch {
		case err != nil:
			return err
		case !known:
			return fault.Invalidf("onednn: attributes", "rounding %q", a.Rounding[i].Mode)
		case t.Rounding == nil:
			return unsupported("a rounding mode")
		}
		if err := t.status("dnnl_primitive_attr_set_rounding", t.Rounding(attr, int32(arg), mode)); err != nil {
			return err
		}
	}
	return nil
}

func (t *table3) postOpSum(h handle, p *primitive.PostOp) error {
	return t.status("dnnl_post_ops_append_sum", t.PostOpSum(h, float32(p.Scale), int32(p.ZeroPoint), dataTypes[p.Type]))
}

func (t *table3) postOpEltwise(h handle, alg int32, p *primitive.PostOp) error {
	return t.status("dnnl_post_ops_append_eltwise", t.PostOpEltwise(h, alg, float32(p.Alpha), float32(p.Beta)))
}

func (t *table3) postOpPrelu(h handle, mask int32) error {
	return t.status("dnnl_post_ops_append_prelu", t.PostOpPrelu(h, mask))
}

func (t *table3) resolved(pd handle) (alg int32, err error) {
	var n int64
	err = t.status("dnnl_primitive_desc_query", t.PlanNumber(pd, planAlg, 0, &n))
	return int32(n), err
}

// begin gives the first implementation, which walks through the list.
func (t *table3) begin(o *operation) (list handle, err error) {
	h, d, on := new(handle), o.descs, o.engine
	var code int32
	switch o.kind {
	case "reorder":
		code = t.ReorderPlan(h, d[0], on, d[1], on, o.attr)
	case "concat":
		code = t.Concat(h, on, d[len(d)-1], int32(len(d)-1), o.axis, &d[0], o.attr)
	case "sum":
		code = t.Sum(h, on, d[len(d)-1], int32(len(d)-1), &o.scales[0], &d[0], o.attr)
	case "binary":
		code = t.Binary(h, on, o.alg, d[0], d[1], d[2], o.attr)
	case "matmul":
		code = t.Matmul(h, on, d[0], d[1], d[2], d[3], o.attr)
	case "reduction":
		code = t.Reduction(h, on, o.alg, d[0], d[1], o.p, o.epsilon, o.attr)
	default:
		code = t.beginTrained(h, o)
	}
	return *h, t.status("dnnl_"+o.kind+"_primitive_desc_create", code)
}

// beginTrained is begin of the kinds that have a backward form.
func (t *table3) beginTrained(h *handle, o *operation) int32 {
	d, on := o.descs, o.engine
	switch {
	case o.kind == "inner_product" && !o.backward():
		return t.Inner(h, on, o.prop, d[0], d[1], d[2], d[3], o.attr)
	case o.kind == "inner_product" && o.prop == backwardData:
		return t.InnerData(h, on, d[0], d[1], d[2], o.hint, o.attr)
	case o.kind == "inner_product":
		return t.InnerWeight(h, on, d[0], d[1], d[2], d[3], o.hint, o.attr)
	case o.kind == "convolution" && !o.backward():
		return t.Conv(h, on, o.prop, o.alg, d[0], d[1], d[2], d[3], o.strides, o.dilates, o.before, o.after, o.attr)
	case o.kind == "convolution" && o.prop == backwardData:
		return t.ConvData(h, on, o.alg, d[0], d[1], d[2], o.strides, o.dilates, o.before, o.after, o.hint, o.attr)
	case o.kind == "convolution":
		return t.ConvWeights(h, on, o.alg, d[0], d[1], d[2], d[3], o.strides, o.dilates, o.before, o.after, o.hint, o.attr)
	case o.kind == "eltwise" && !o.backward():
		return t.Eltwise(h, on, o.prop, o.alg, d[0], d[1], o.alpha, o.beta, o.attr)
	case o.kind == "eltwise":
		return t.EltwiseBack(h, on, o.alg, d[0], d[1], d[2], o.alpha, o.beta, o.hint, o.attr)
	case o.kind == "softmax" && !o.backward():
		return t.Softmax(h, on, o.prop, o.alg, d[0], d[1], o.axis, o.attr)
	case o.kind == "softmax":
		return t.SoftmaxBack(h, on, o.alg, d[0], d[1], d[2], o.axis, o.hint, o.attr)
	case o.kind == "pooling" && !o.backward():
		return t.Pooling(h, on, o.prop, o.alg, d[0], d[1], o.strides, o.kernel, o.dilates, o.before, o.after, o.attr)
	case o.kind == "pooling":
		return t.PoolingBack(h, on, o.alg, d[0], d[1], o.strides, o.kernel, o.dilates, o.before, o.after, o.hint, o.attr)
	case !o.backward():
		return t.Norm(h, on, o.prop, d[0], d[1], d[2], o.epsilon, o.flags, o.attr)
	}
	return t.NormBack(h, on, o.prop, d[0], d[1], d[2], d[3], o.epsilon, o.flags, o.hint, o.attr)
}

func (t *table3) next(list handle) error {
	return t.status("dnnl_primitive_desc_next_impl", t.PlanNext(list))
}

// at is the implementation where the list stands; it goes with the list.
func (t *table3) at(_ *operation, list handle) (pd handle, own bool, err error) {
	return list, false, nil
}

func (t *table3) end(_ *operation, list handle) { t.PlanFree(list) }
