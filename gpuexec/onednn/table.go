package onednn

import (
	"fmt"
	"reflect"
	"unsafe"
)

// handle is an object of the library: an engine, a stream, an attribute, a primitive.
type handle uintptr

// dims is the library's list of numbers, one for each dimension.
type dims [12]int64

// memoryDesc is a memory descriptor: of 2.x the struct itself, which Go's memory holds; of
// 3.x an object of the library, whose inside is its own.
type memoryDesc struct {
	ndims         int32
	dims          dims
	dataType      int32
	paddedDims    dims
	paddedOffsets dims
	offset        int64
	formatKind    int32
	strides       dims
	innerBlocks   int32
	inner         dims // sizes, outermost first
	innerDims     dims
	extra         [80]byte
}

type version struct {
	major, minor, patch int32
	_                   uintptr // the commit that it was built from, or "N/A"
	cpuRuntime          uint32
}

// newer is whether it is 3.6 or later.
func (v *version) newer() bool { return v.major > 3 || v.major == 3 && v.minor >= 6 }

// execArg is dnnl_exec_arg_t.
type execArg struct {
	arg    int32
	_      int32
	memory handle
}

// common are the entry points that every version from 2.6 on has with these arguments,
// under their C names. What they return, if it is a number, is a status.
type common struct {
	Version      func() *version                                                                   `c:"dnnl_version"`
	StatusName   func(status int32) *byte                                                          `c:"dnnl_status2str"`
	AlgName      func(alg int32) *byte                                                             `c:"dnnl_alg_kind2str"`
	TypeName     func(dataType int32) *byte                                                        `c:"dnnl_dt2str"`
	TagName      func(tag int32) *byte                                                             `c:"dnnl_fmt_tag2str"`
	ISA          func() int32                                                                      `c:"dnnl_get_effective_cpu_isa"`
	CacheSize    func(entries int32) int32                                                         `c:"dnnl_set_primitive_cache_capacity"`
	EngineMake   func(h *handle, kind int32, index uintptr) int32                                  `c:"dnnl_engine_create"`
	EngineFree   func(h handle) int32                                                              `c:"dnnl_engine_destroy"`
	StreamMake   func(h *handle, engine handle, flags uint32) int32                                `c:"dnnl_stream_create"`
	StreamWait   func(h handle) int32                                                              `c:"dnnl_stream_wait"`
	StreamFree   func(h handle) int32                                                              `c:"dnnl_stream_destroy"`
	AttrMake     func(h *handle) int32                                                             `c:"dnnl_primitive_attr_create"`
	AttrScratch  func(h handle, mode int32) int32                                                  `c:"dnnl_primitive_attr_set_scratchpad_mode"`
	AttrFPMath   func(h handle, mode int32) int32                                                  `c:"dnnl_primitive_attr_set_fpmath_mode"`
	AttrPostOps  func(h, postOps handle) int32                                                     `c:"dnnl_primitive_attr_set_post_ops"`
	AttrFree     func(h handle) int32                                                              `c:"dnnl_primitive_attr_destroy"`
	PostOpsMake  func(h *handle) int32                                                             `c:"dnnl_post_ops_create"`
	PostOpBinary func(h handle, alg int32, source *memoryDesc) int32                               `c:"dnnl_post_ops_append_binary"`
	PostOpsFree  func(h handle) int32                                                              `c:"dnnl_post_ops_destroy"`
	DescEqual    func(a, b *memoryDesc) int32                                                      `c:"dnnl_memory_desc_equal"`
	DescBytes    func(md *memoryDesc) uintptr                                                      `c:"dnnl_memory_desc_get_size"`
	MemoryMake   func(h *handle, md *memoryDesc, engine handle, at unsafe.Pointer) int32           `c:"dnnl_memory_create"`
	MemoryTake   func(h handle, at unsafe.Pointer) int32                                           `c:"dnnl_memory_set_data_handle"`
	MemoryFree   func(h handle) int32                                                              `c:"dnnl_memory_destroy"`
	ReorderPlan  func(pd *handle, src *memoryDesc, on handle, dst *memoryDesc, to, a handle) int32 `c:"dnnl_reorder_primitive_desc_create"`
	PlanClone    func(pd *handle, of handle) int32                                                 `c:"dnnl_primitive_desc_clone"`
	PlanText     func(pd handle, what, index int32, result **byte) int32                           `c:"dnnl_primitive_desc_query"`
	PlanInt      func(pd handle, what, index int32) int32                                          `c:"dnnl_primitive_desc_query_s32"`
	PlanDesc     func(pd handle, what, index int32) *memoryDesc                                    `c:"dnnl_primitive_desc_query_md"`
	PlanFree     func(pd handle) int32                                                             `c:"dnnl_primitive_desc_destroy"`
	Make         func(h *handle, pd handle) int32                                                  `c:"dnnl_primitive_create"`
	Free         func(h handle) int32                                                              `c:"dnnl_primitive_destroy"`
	Trim         func(spare uintptr) int32                                                         `c:"malloc_trim" how:"optional"` // of the C library below it
	Execute      func(h, stream handle, n uintptr, args *execArg) int32                            `c:"dnnl_primitive_execute"`
}

// bind looks up every entry point of a table. One without the name in it is nil where
// it is optional, and an error else.
func bind(lib uintptr, table any) error {
	all := reflect.ValueOf(table).Elem()
	for i := range all.NumField() {
		field := all.Type().Field(i)
		name := field.Tag.Get("c")
		if name == "" {
			continue // the common part
		}
		at, err := dlsym(lib, name)
		switch {
		case err != nil && field.Tag.Get("how") == "optional":
		case err != nil:
			return fmt.Errorf("%s is missing in it", name)
		case direct(all.Field(i).Addr().Interface(), at):
		default:
			register(all.Field(i).Addr().Interface(), at)
		}
	}
	return nil
}

// text copies a C string.
func text(at *byte) string {
	if at == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(at), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(at, n))
}

// Values of the C enumerations that are the same in every version.
const (
	engineCPU      = 1
	streamInOrder  = 1
	tagAny         = 1
	scratchpadUser = 1
	formatAny      = 1
	formatBlocked  = 2
	runtimeSYCL    = 512

	queryInputs = 3 // how many arguments an execution reads
	queryName   = 8
	queryArg    = 255 // the descriptor of an argument
	queryStride = 14  // of 3.x
)

// What the library answers.
const (
	success          = 0
	outOfMemory      = 1
	invalidArguments = 2
	unimplemented    = 3
	listEnds         = 4 // no further implementation
	runtimeError     = 5
)

var dataTypes = map[string]int32{"f16": 1, "bf16": 2, "f32": 3, "s32": 4, "s8": 5, "u8": 6}

var typeBytes = map[string]int64{"f16": 2, "bf16": 2, "f32": 4, "s32": 4, "s8": 1, "u8": 1}

var directions = map[string]int32{
	"": 96, "forward": 64, "forward_training": 64, "inference": 96, "forward_inference": 96,
	"backward": 128, "backward_data": 160, "backward_weights": 192,
}

var mathModes = map[string]int32{"": 0, "strict": 0, "bf16": 1, "f16": 2, "any": 3, "tf32": 4}

// algorithms are those whose numbers every version agrees on, by kind.
var algorithms = map[string]map[string]int32{
	"convolution": {"direct": 1, "winograd": 2, "auto": 3},
	"pooling":     {"max": 0x1ff, "avg_include_padding": 0x2ff, "avg_exclude_padding": 0x3ff},
	"softmax":     {"accurate": 0x30000, "log": 0x30001},
	"binary":      numbered(0x1fff0, "add", "mul", "max", "min", "div", "sub", "ge", "gt", "le", "lt", "eq", "ne"),
	"reduction":   numbered(0x2fff2, "max", "min", "sum", "mul", "mean", "norm_lp_max", "norm_lp_sum", "norm_lp_power_p_max", "norm_lp_power_p_sum"),
}

// fromDst are the functions whose backward form reads what the forward one wrote.
var fromDst = numbered(0x100, "relu_use_dst_for_bwd", "tanh_use_dst_for_bwd", "elu_use_dst_for_bwd", "sqrt_use_dst_for_bwd",
	"logistic_use_dst_for_bwd", "exp_use_dst_for_bwd", "clip_v2_use_dst_for_bwd")

func numbered(first int32, names ...string) map[string]int32 {
	m := make(map[string]int32, len(names))
	for i, name := range names {
		m[name] = first + int32(i)
	}
	return m
}
