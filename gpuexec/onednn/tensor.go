package onednn

import (
	"errors"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/internal/sealed"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// Dense is the tensor of these dimensions in rows without gaps.
func Dense(dataType string, sizes ...int64) primitive.Tensor {
	t := primitive.Tensor{Type: dataType, Dims: sizes, Strides: make([]int64, len(sizes))}
	stride := int64(1)
	for i := len(sizes) - 1; i >= 0; i-- {
		t.Strides[i] = stride
		stride *= max(1, sizes[i])
	}
	return t
}

func absent(t *primitive.Tensor) bool { return t.Type == "" && len(t.Dims) == 0 && t.Layout == "" }

// cloned is a tensor without a list of the caller's.
func cloned(t primitive.Tensor) primitive.Tensor {
	t.Dims, t.Strides, t.Blocks = slices.Clone(t.Dims), slices.Clone(t.Strides), slices.Clone(t.Blocks)
	return t
}

// empty is whether it has no numbers.
func empty(t primitive.Tensor) bool { return slices.Contains(t.Dims, 0) }

// concrete is whether the layout is given, and not the library's to choose.
func concrete(t *primitive.Tensor) bool { return len(t.Strides) > 0 || t.Layout != "" }

// atExecution is a size or a stride that is known at execution only: the library's own
// number for it.
const atExecution = math.MinInt64

// late is whether a tensor has such sizes.
func late(t *primitive.Tensor) bool {
	return slices.Contains(t.Dims, atExecution) || slices.Contains(strides(t), atExecution)
}

// check refuses a tensor that the library would not, or not with a status.
func check(t *primitive.Tensor, mayBeLate bool) error {
	if absent(t) {
		return fault.Invalidf("onednn: tensor", "it is missing")
	}
	if _, ok := dataTypes[t.Type]; !ok {
		return failure("tensor", fault.ErrUnsupported, "type %q", t.Type)
	}
	rank := len(t.Dims)
	if rank == 0 || rank > mostRank || len(t.Strides) != 0 && len(t.Strides) != rank || len(t.Blocks) > mostRank {
		return fault.Invalidf("onednn: tensor", "%d dimensions, %d strides, %d blocks: want 1 to %d, and a stride for each or none",
			rank, len(t.Strides), len(t.Blocks), mostRank)
	}
	if len(t.Blocks) > 0 && len(t.Strides) == 0 || t.Offset != 0 {
		return failure("tensor", fault.ErrUnsupported, "blocks without strides, or an offset")
	}
	inner := int64(1)
	for _, b := range t.Blocks {
		if b.Dim < 0 || b.Dim >= rank || b.Size < 1 || b.Size >= most/inner {
			return fault.Invalidf("onednn: tensor", "a block of %d in dimension %d of %d", b.Size, b.Dim, rank)
		}
		inner *= b.Size
	}
	var sum uint64 // of the places that strides lead to, and their number
	count := uint64(1)
	for i, size := range t.Dims {
		if size == atExecution && mayBeLate {
			size = 1
		}
		if size < 0 && size != atExecution {
			return fault.Invalidf("onednn: tensor", "dimension %d is %d: want 0 or more", i, size)
		}
		if size < 0 {
			return failure("tensor", fault.ErrUnsupported, "dimension %d is %d: a size that is known at execution only has no form here", i, size)
		}
		stride := int64(0)
		if len(t.Strides) > 0 {
			stride = t.Strides[i]
		}
		if stride == atExecution && mayBeLate {
			stride = 1
		}
		if stride < 0 {
			return fault.Invalidf("onednn: tensor", "stride %d", stride)
		}
		size = max(1, size)
		if count >= most || size >= most || stride >= most || uint64(size) >= most/count || uint64(stride) >= most/uint64(size) {
			return failure("tensor", fault.ErrTooLarge, "%v of %s, with strides %v", t.Dims, t.Type, t.Strides)
		}
		count *= uint64(size)
		sum += uint64(size) * uint64(stride)
	}
	if sum >= most {
		return failure("tensor", fault.ErrTooLarge, "%v of %s, with strides %v", t.Dims, t.Type, t.Strides)
	}
	return nil
}

// most is what no tensor's number of elements reaches: what is beyond may wrap around in
// the library.
const most = 1 << 44

// blockSize is how many places of dimension d lie together in inner blocks.
func blockSize(t *primitive.Tensor, d int) int64 {
	size := int64(1)
	for _, b := range t.Blocks {
		if b.Dim == d {
			size *= b.Size
		}
	}
	return size
}

// reach is how many bytes there are from the first to the last number of a tensor with
// strides.
func reach(t *primitive.Tensor) int64 {
	last := int64(1)
	for _, b := range t.Blocks {
		last *= b.Size
	}
	for i, size := range t.Dims {
		if size == 0 {
			return 0
		}
		last += (size - 1) / blockSize(t, i) * t.Strides[i]
	}
	return last * typeBytes[t.Type]
}

// serves is whether memory of a tensor may be given where another is wanted, which may have
// sizes that are known at execution only.
func serves(have, want *primitive.Tensor) bool {
	if !late(want) {
		return same(have, want)
	}
	known := *want
	known.Dims, known.Strides = slices.Clone(want.Dims), slices.Clone(want.Strides)
	for i := range min(len(have.Dims), len(known.Dims)) {
		if known.Dims[i] == atExecution {
			known.Dims[i] = have.Dims[i]
		}
		if len(have.Strides) == len(known.Strides) && known.Strides[i] == atExecution {
			known.Strides[i] = have.Strides[i]
		}
	}
	return same(have, &known)
}

// multiplies is whether tensors are those of one product: a side may repeat a batch.
func multiplies(src, weights, bias, dst []int64) bool {
	r := len(dst)
	if len(src) != r || len(weights) != r || slices.Contains(dst, 0) || src[r-1] < 1 ||
		src[r-1] != weights[r-2] || src[r-2] != dst[r-2] || weights[r-1] != dst[r-1] {
		return false
	}
	for i, size := range dst {
		if i < r-2 && (max(src[i], weights[i]) != size || min(src[i], weights[i]) != size && min(src[i], weights[i]) != 1) {
			return false
		}
		if i < len(bias) && bias[i] != size && bias[i] != 1 {
			return false
		}
	}
	return true
}

// same is whether two tensors are one to the library: the stride of a dimension of one
// block means nothing (SPEC K3).
func same(a, b *primitive.Tensor) bool {
	if a.Type != b.Type || len(a.Dims) != len(b.Dims) || len(a.Strides) != len(b.Strides) || len(a.Blocks) != len(b.Blocks) ||
		a.Offset != b.Offset || a.Layout != b.Layout {
		return false
	}
	for i, block := range a.Blocks {
		if block != b.Blocks[i] {
			return false
		}
	}
	for i, size := range a.Dims {
		if size != b.Dims[i] {
			return false
		}
		if size != 1 && len(a.Strides) > 0 && a.Strides[i] != b.Strides[i] && size > blockSize(a, i) {
			return false
		}
	}
	return true
}

func dimsOf(list []int64) *dims {
	d := new(dims)
	copy(d[:], list)
	return d
}

func typeName(number int32) string {
	for name, n := range dataTypes {
		if n == number {
			return name
		}
	}
	return ""
}

// strides are those of a tensor, with the stride of a dimension of size 1 as in rows without
// gaps: it means nothing and no key has it (SPEC K3), but the library chooses by it, and older
// versions walk by it.
func strides(t *primitive.Tensor) []int64 {
	if len(t.Strides) != len(t.Dims) || !slices.Contains(t.Dims, 1) {
		return t.Strides
	}
	list := slices.Clone(t.Strides)
	within := int64(1) // the stride of a dimension that is behind none with a gap
	for _, b := range t.Blocks {
		within *= b.Size
	}
	for i := len(list) - 1; i >= 0; i-- {
		if t.Dims[i] == 1 {
			list[i] = within
		}
		within = atExecution
		if list[i] != atExecution && t.Dims[i] != atExecution {
			size := max(1, blockSize(t, i))
			within = list[i] * max(1, (t.Dims[i]+size-1)/size)
		}
	}
	return list
}

// newDesc makes the library's descriptor of a tensor.
func (l *Library) newDesc(t *primitive.Tensor) (*memoryDesc, error) { return l.describe(t, false) }

// describe is newDesc, for tensors that may have sizes that are known at execution only.
func (l *Library) describe(t *primitive.Tensor, mayBeLate bool) (*memoryDesc, error) {
	plain := *t
	plain.Strides = strides(t)
	if err := check(&plain, mayBeLate); err != nil {
		return nil, err
	}
	if t.Layout != "" {
		blob, err := layouts.Open(l.image.version, []byte(t.Layout))
		if err != nil {
			return nil, fault.Invalidf("onednn: tensor", "a layout of %d bytes that is none of oneDNN %s's: %v", len(t.Layout), l.image.version, err)
		}
		plain.Layout = string(blob)
	}
	md, err := l.b.describe(&plain)
	if err != nil {
		return nil, err
	}
	l.live.Add(1)
	if t.Layout != "" { // it says all of it: the rest must agree
		if got, err := l.b.read(md); err != nil || got.Type != t.Type || !slices.Equal(got.Dims, t.Dims) {
			l.dropDesc(md)
			return nil, fault.Invalidf("onednn: tensor", "%s %v has the layout of %s %v", t.Type, t.Dims, got.Type, got.Dims)
		}
	} else if len(t.Strides) > 0 && !late(&plain) && int64(l.c.DescBytes(md)) < reach(t) { // its memory would be too small
		l.dropDesc(md)
		return nil, failure("tensor", fault.ErrUnsupported, "strides %v and blocks %v of %v, whose numbers share places", t.Strides, t.Blocks, t.Dims)
	}
	return md, nil
}

func (l *Library) dropDesc(md *memoryDesc) {
	if md != nil {
		l.b.drop(md)
		l.live.Add(-1)
	}
}

// chosen is the tensor that an implementation has for an argument, so that newDesc makes
// an equal descriptor of it; without a type if it has none.
func (l *Library) chosen(pd handle, slot Slot) (primitive.Tensor, error) {
	md := l.c.PlanDesc(pd, queryArg, l.b.argument(slot))
	if md == nil {
		return primitive.Tensor{}, nil
	}
	t, err := l.b.read(md)
	if err != nil || absent(&t) {
		return t, err
	}
	if len(t.Strides) > 0 && t.Offset == 0 {
		again, err := l.newDesc(&t)
		if err != nil && !errors.Is(err, fault.ErrUnsupported) {
			return t, err
		}
		equal := err == nil && l.c.DescEqual(again, md) != 0
		if l.dropDesc(again); equal {
			return t, nil
		}
	}
	t.Strides, t.Blocks, t.Offset = nil, nil, 0
	blob, err := l.b.opaque(md)
	if err == nil {
		t.Layout = string(layouts.Seal(l.image.version, []byte(blob)))
	}
	return t, err
}

// layouts are the bytes of descriptors that the library has no name for. It reads what it is
// given without a look, so each is behind a digest over it and the library's version.
var layouts = sealed.Format{Backend: Name, Magic: "oneDNN layout\x01"}
