package onednn

import (
	"cmp"
	"math"
	"slices"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// opDesc is an operation descriptor of 2.x, which the library fills: the largest, of a
// recurrent layer, has less than 16 KiB.
type opDesc [16 << 10]byte

// table2 has the entry points of 2.6. Several have the name of one of 3.x, and other
// arguments.
type table2 struct {
	common
	DescStrided   func(md *memoryDesc, n int32, d *dims, dataType int32, strides *dims) int32                                        `c:"dnnl_memory_desc_init_by_strides"`
	DescTagged    func(md *memoryDesc, n int32, d *dims, dataType, tag int32) int32                                                  `c:"dnnl_memory_desc_init_by_tag"`
	ListMake      func(list *handle, desc *opDesc, attr, on, hint handle) int32                                                      `c:"dnnl_primitive_desc_iterator_create"`
	ListNext      func(list handle) int32                                                                                            `c:"dnnl_primitive_desc_iterator_next"`
	ListAt        func(list handle) handle                                                                                           `c:"dnnl_primitive_desc_iterator_fetch"`
	ListFree      func(list handle) int32                                                                                            `c:"dnnl_primitive_desc_iterator_destroy"`
	PlanOp        func(pd handle, what, index int32, result **[3]int32) int32                                                        `c:"dnnl_primitive_desc_query"`
	Zeros         func(attr handle, arg int32, n int64, mask int32, values *int32) int32                                             `c:"dnnl_primitive_attr_set_zero_points"`
	PostOpSum     func(h handle, scale float32, zero, dataType int32) int32                                                          `c:"dnnl_post_ops_append_sum_v3"`
	PostOpEltwise func(h handle, scale float32, alg int32, alpha, beta float32) int32                                                `c:"dnnl_post_ops_append_eltwise"`
	Concat        func(pd *handle, dst *memoryDesc, n, axis int32, src *memoryDesc, attr, on handle) int32                           `c:"dnnl_concat_primitive_desc_create"`
	Sum           func(pd *handle, dst *memoryDesc, n int32, s *float32, src *memoryDesc, a, on handle) int32                        `c:"dnnl_sum_primitive_desc_create"`
	Binary        func(o *opDesc, alg int32, a, b, dst *memoryDesc) int32                                                            `c:"dnnl_binary_desc_init"`
	Matmul        func(o *opDesc, src, weights, bias, dst *memoryDesc) int32                                                         `c:"dnnl_matmul_desc_init"`
	Reduction     func(o *opDesc, alg int32, src, dst *memoryDesc, p, epsilon float32) int32                                         `c:"dnnl_reduction_desc_init"`
	Inner         func(o *opDesc, prop int32, src, weights, bias, dst *memoryDesc) int32                                             `c:"dnnl_inner_product_forward_desc_init"`
	InnerData     func(o *opDesc, src, weights, dst *memoryDesc) int32                                                               `c:"dnnl_inner_product_backward_data_desc_init"`
	InnerWeight   func(o *opDesc, src, weights, bias, dst *memoryDesc) int32                                                         `c:"dnnl_inner_product_backward_weights_desc_init"`
	Conv          func(o *opDesc, prop, alg int32, src, weights, bias, dst *memoryDesc, strides, dilates, before, after *dims) int32 `c:"dnnl_dilated_convolution_forward_desc_init"`
	ConvData      func(o *opDesc, alg int32, src, weights, dst *memoryDesc, strides, dilates, before, after *dims) int32             `c:"dnnl_dilated_convolution_backward_data_desc_init"`
	ConvWeights   func(o *opDesc, alg int32, src, weights, bias, dst *memoryDesc, strides, dilates, before, after *dims) int32       `c:"dnnl_dilated_convolution_backward_weights_desc_init"`
	Eltwise       func(o *opDesc, prop, alg int32, data *memoryDesc, alpha, beta float32) int32                                      `c:"dnnl_eltwise_forward_desc_init"`
	EltwiseBack   func(o *opDesc, alg int32, diff, data *memoryDesc, alpha, beta float32) int32                                      `c:"dnnl_eltwise_backward_desc_init"`
	Softmax       func(o *opDesc, prop, alg int32, src, dst *memoryDesc, axis int32) int32                                           `c:"dnnl_softmax_v2_forward_desc_init"`
	SoftmaxBack   func(o *opDesc, alg int32, diffSrc, diffDst, dst *memoryDesc, axis int32) int32                                    `c:"dnnl_softmax_v2_backward_desc_init"`
	Pooling       func(o *opDesc, prop, alg int32, src, dst *memoryDesc, strides, kernel, dilates, before, after *dims) int32        `c:"dnnl_pooling_v2_forward_desc_init"`
	PoolingBack   func(o *opDesc, alg int32, src, dst *memoryDesc, strides, kernel, dilates, before, after *dims) int32              `c:"dnnl_pooling_v2_backward_desc_init"`
	Norm          func(o *opDesc, prop int32, data, stat *memoryDesc, epsilon float32, flags uint32) int32                           `c:"dnnl_layer_normalization_forward_desc_init"`
	NormBack      func(o *opDesc, prop int32, diff, data, stat *memoryDesc, epsilon float32, flags uint32) int32                     `c:"dnnl_layer_normalization_backward_desc_init"`
}

var eltwise2 = map[string]int32{
	"relu": 0x1f, "tanh": 0x2f, "elu": 0x3f, "square": 0x4f, "abs": 0x5f, "sqrt": 0x6f, "linear": 0x7f, "soft_relu": 0x9f, "logistic": 0xaf,
	"exp": 0xbf, "gelu_tanh": 0xcf, "swish": 0xdf, "log": 0xef, "clip": 0xff, "clip_v2": 0x10, "pow": 0x20, "gelu_erf": 0x30, "round": 0x40,
	"mish": 0x60, "hardswish": 0x70,
}

// queryConvolution gives a convolution's operation descriptor of 2.x.
const queryConvolution = 66

func (t *table2) base() *common { return &t.common }

// eltwise: two functions of 2.x have fixed what are parameters in 3.x.
func (t *table2) eltwise(name string, alpha, beta float64) (int32, bool) {
	if name == "soft_relu" && alpha != 1 || name == "hardswish" && (float32(alpha) != 1./6 || beta != 0.5) {
		return 0, false
	}
	n, ok := eltwise2[name]
	return n, ok
}

func (t *table2) flags() [3]uint32 { return [3]uint32{1, 8, 16} }

// argument: what stands for attributes has other numbers.
func (t *table2) argument(s Slot) int32 {
	switch {
	case s >= postOpSlots:
		return int32((s/postOpSlots)*(postOpSlots/2) + s%postOpSlots)
	case s >= zeroSlots:
		return int32(s - zeroSlots + zeroSlots/2)
	}
	return int32(s)
}

func (t *table2) describe(x *primitive.Tensor) (*memoryDesc, error) {
	md := new(memoryDesc)
	n, sizes, dataType := int32(len(x.Dims)), dimsOf(x.Dims), dataTypes[x.Type]
	switch {
	case x.Layout != "":
		if len(x.Layout) != int(unsafe.Sizeof(*md)) {
			return nil, fault.Invalidf("onednn: tensor", "a layout of %d bytes: want what a descriptor said", len(x.Layout))
		}
		copy(md.bytes(), x.Layout)
		return md, nil
	case len(x.Strides) > 0 && len(x.Blocks) == 0:
		return md, t.status("dnnl_memory_desc_init_by_strides", t.DescStrided(md, n, sizes, dataType, dimsOf(x.Strides)))
	}
	if len(x.Blocks) > 0 && len(x.Dims) > 6 { // no name of a layout has more
		return nil, unsupported("blocks in more than 6 dimensions, which end the process")
	}
	if err := t.status("dnnl_memory_desc_init_by_tag", t.DescTagged(md, n, sizes, dataType, tagAny)); err != nil || len(x.Strides) == 0 {
		return md, err
	}
	md.formatKind, md.strides, md.innerBlocks = formatBlocked, *dimsOf(x.Strides), int32(len(x.Blocks))
	for i, b := range x.Blocks {
		md.inner[i], md.innerDims[i] = b.Size, int64(b.Dim)
	}
	for d, length := range x.Dims {
		size := blockSize(x, d)
		md.paddedDims[d] = (length + size - 1) / size * size
	}
	return md, nil
}

func (m *memoryDesc) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(m)), unsafe.Sizeof(*m))
}

func (t *table2) drop(*memoryDesc) {}

func (t *table2) read(md *memoryDesc) (x primitive.Tensor, err error) {
	if md.ndims == 0 {
		return x, nil
	}
	n := md.ndims
	x.Dims, x.Type, x.Offset = slices.Clone(md.dims[:n]), typeName(md.dataType), md.offset
	if md.formatKind != formatBlocked {
		return x, nil
	}
	x.Strides = slices.Clone(md.strides[:n])
	for i := range md.innerBlocks {
		x.Blocks = append(x.Blocks, primitive.Block{Dim: int(md.innerDims[i]), Size: md.inner[i]})
	}
	return x, nil
}

func (t *table2) opaque(md *memoryDesc) (string, error) {
	if md.formatKind == formatAny { // it runs in none, and crashes
		return "", unsupported("a choice of this layout")
	}
	return string(md.bytes()), nil
}

// quantize: the scales of 2.x are one for the output and mean something else.
func (t *table2) quantize(attr handle, arg Slot, q *primitive.Quant, zeros bool) error {
	if !zeros || len(q.Groups) > 0 || q.Type != "" && q.Type != "s32" {
		return unsupported("scales, and zero points with groups or a type of their own")
	}
	atExecution := int32(math.MinInt32)
	return t.status("dnnl_primitive_attr_set_zero_points", t.Zeros(attr, int32(arg), 1, int32(q.Mask), &atExecution))
}

func (t *table2) modes(_ handle, a *primitive.Attributes) error {
	if a.FPMathInts || cmp.Or(a.Accumulation, "strict") != "strict" || a.Deterministic || len(a.Rounding) > 0 {
		return unsupported("fpmath for integers, accumulation, deterministic and rounding")
	}
	return nil
}

func (t *table2) postOpSum(h handle, p *primitive.PostOp) error {
	return t.status("dnnl_post_ops_append_sum_v3", t.PostOpSum(h, float32(p.Scale), int32(p.ZeroPoint), dataTypes[p.Type]))
}

func (t *table2) postOpEltwise(h handle, alg int32, p *primitive.PostOp) error {
	return t.status("dnnl_post_ops_append_eltwise", t.PostOpEltwise(h, 1, alg, float32(p.Alpha), float32(p.Beta)))
}

// postOpPrelu: 2.6 takes it, and then refuses every execution for its number of inputs.
func (t *table2) postOpPrelu(handle, int32) error { return unsupported("a prelu as post-operation") }

func (t *table2) resolved(pd handle) (alg int32, err error) {
	var desc *[3]int32 // kind, direction, algorithm ...
	if err := t.status("dnnl_primitive_desc_query", t.PlanOp(pd, queryConvolution, 0, &desc)); err != nil {
		return 0, err
	}
	return desc[2], nil
}

// single is whether the kind has a descriptor instead of a list of them.
func single(kind string) bool { return kind == "reorder" || kind == "sum" || kind == "concat" }

func (t *table2) begin(o *operation) (list handle, err error) {
	h, d, on := new(handle), o.descs, o.engine
	if single(o.kind) {
		sources := make([]memoryDesc, len(d)-1)
		for i := range sources {
			sources[i] = *d[i]
		}
		var code int32
		switch o.kind {
		case "reorder":
			code = t.ReorderPlan(h, d[0], on, d[1], on, o.attr)
		case "concat":
			code = t.Concat(h, d[len(d)-1], int32(len(sources)), o.axis, &sources[0], o.attr, on)
		case "sum":
			code = t.Sum(h, d[len(d)-1], int32(len(sources)), &o.scales[0], &sources[0], o.attr, on)
		}
		return *h, t.status("dnnl_"+o.kind+"_primitive_desc_create", code)
	}
	if o.kind == "matmul" && slices.ContainsFunc(o.spec.Op.Tensors, empty) {
		return 0, unsupported("a product with a dimension of 0, which 2.6 divides by")
	}
	desc := new(opDesc)
	code := t.initialise(desc, o)
	if err := t.status("dnnl_"+o.kind+"_desc_init", code); err != nil {
		return 0, err
	}
	code = t.ListMake(h, desc, o.attr, on, o.hint)
	return *h, t.status("dnnl_primitive_desc_iterator_create", code)
}

func (t *table2) initialise(desc *opDesc, o *operation) int32 {
	d := o.descs
	oneLayout := func(a, b *memoryDesc) bool { return t.DescEqual(a, b) != 0 } // of source and destination
	switch {
	case o.kind == "binary":
		return t.Binary(desc, o.alg, d[0], d[1], d[2])
	case o.kind == "matmul":
		return t.Matmul(desc, d[0], d[1], d[2], d[3])
	case o.kind == "reduction":
		return t.Reduction(desc, o.alg, d[0], d[1], o.p, o.epsilon)
	case o.kind == "inner_product" && !o.backward():
		return t.Inner(desc, o.prop, d[0], d[1], d[2], d[3])
	case o.kind == "inner_product" && o.prop == backwardData:
		return t.InnerData(desc, d[0], d[1], d[2])
	case o.kind == "inner_product":
		return t.InnerWeight(desc, d[0], d[1], d[2], d[3])
	case o.kind == "convolution" && !o.backward():
		return t.Conv(desc, o.prop, o.alg, d[0], d[1], d[2], d[3], o.strides, o.dilates, o.before, o.after)
	case o.kind == "convolution" && o.prop == backwardData:
		return t.ConvData(desc, o.alg, d[0], d[1], d[2], o.strides, o.dilates, o.before, o.after)
	case o.kind == "convolution":
		return t.ConvWeights(desc, o.alg, d[0], d[1], d[2], d[3], o.strides, o.dilates, o.before, o.after)
	case o.kind == "softmax" && !o.backward():
		return t.Softmax(desc, o.prop, o.alg, d[0], d[1], o.axis)
	case o.kind == "softmax":
		return t.SoftmaxBack(desc, o.alg, d[0], d[1], d[2], o.axis)
	case o.kind == "pooling" && !o.backward():
		return t.Pooling(desc, o.prop, o.alg, d[0], d[1], o.strides, o.kernel, o.dilates, o.before, o.after)
	case o.kind == "pooling":
		return t.PoolingBack(desc, o.alg, d[0], d[1], o.strides, o.kernel, o.dilates, o.before, o.after)
	case !oneLayout(d[0], d[1]):
		return unimplemented
	case o.kind == "eltwise" && !o.backward():
		return t.Eltwise(desc, o.prop, o.alg, d[0], o.alpha, o.beta)
	case o.kind == "eltwise":
		return t.EltwiseBack(desc, o.alg, d[0], d[2], o.alpha, o.beta)
	case !o.backward():
		return t.Norm(desc, o.prop, d[0], d[2], o.epsilon, o.flags)
	}
	return t.NormBack(desc, o.prop, d[0], d[2], d[3], o.epsilon, o.flags)
}

func (t *table2) next(list handle) error {
	return t.status("dnnl_primitive_desc_iterator_next", t.ListNext(list))
}

func (t *table2) at(o *operation, list handle) (pd handle, own bool, err error) {
	if single(o.kind) {
		return list, false, nil
	}
	if pd = t.ListAt(list); pd == 0 {
		return 0, false, t.status("dnnl_primitive_desc_iterator_fetch", outOfMemory)
	}
	return pd, true, nil
}

func (t *table2) end(o *operation, list handle) {
	if single(o.kind) {
		t.PlanFree(list)
	} else {
		t.ListFree(list)
	}
}
