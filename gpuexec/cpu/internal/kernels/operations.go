package kernels

import (
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// dims are an operation's dimensions in the order of package ops.
type dims = [len(ops.Op{}.Dims)]int64

// operation is what sets one kind apart from the others.
type operation struct {
	params func(dims) []Param
	blocks func(dims) uint64
	// elements of one block, for its cost.
	elements  func(dims) uint64
	fixedNs   float64 // per block
	elementNs float64 // per element
	emit      func(Spec, routine)
}

// operations are those that have a kernel. The table never changes.
var operations map[ops.Kind]operation

func init() {
	operations = map[ops.Kind]operation{
		ops.Gather: {
			params: func(d dims) []Param {
				return []Param{in("ids", d[0]), in("table", d[2], d[1]), out(d[0], d[1])}
			},
			blocks: first, elements: second, fixedNs: 12, elementNs: 0.25, emit: emitGather,
		},
		ops.Reorder: {
			params:   func(d dims) []Param { return []Param{in("in", d[0], d[1], d[2], d[3]), out(d[0], d[2], d[1], d[3])} },
			blocks:   func(d dims) uint64 { return size(d[0], d[1], d[2]) },
			elements: func(d dims) uint64 { return uint64(d[3]) }, fixedNs: 5, elementNs: 0.15, emit: emitReorder,
		},
		ops.Slice: {
			params: func(d dims) []Param { return []Param{in("in", d[0], d[1], d[2]), out(d[0], d[2])} },
			blocks: first, elements: func(d dims) uint64 { return uint64(d[2]) }, fixedNs: 10, elementNs: 0.3, emit: emitSlice,
		},
		ops.GELU: {
			params: inPlaceRows,
			blocks: first, elements: second, fixedNs: 10, elementNs: 1.6, emit: emitGELU,
		},
		ops.Tanh: {
			params: inPlaceRows,
			blocks: first, elements: second, fixedNs: 10, elementNs: 3, emit: emitTanh,
		},
		ops.Softmax: {
			params: func(d dims) []Param {
				return []Param{inPlace(d[0], d[1], d[2], d[3]), in("lengths", d[0]), out(d[0], d[1], d[2], d[3])}
			},
			blocks:   func(d dims) uint64 { return size(d[0], d[1], d[2]) },
			elements: func(d dims) uint64 { return uint64(d[3]) }, fixedNs: 40, elementNs: 2.3, emit: emitSoftmax,
		},
		ops.LayerNorm: {
			params: func(d dims) []Param {
				return []Param{inPlace(d[0], d[1]), in("gamma", d[1]), in("beta", d[1]), out(d[0], d[1])}
			},
			blocks: first, elements: second, fixedNs: 30, elementNs: 0.75, emit: emitLayerNorm,
		},
		ops.Add: {
			params: func(d dims) []Param { return []Param{inPlace(d[0], d[1]), in("b", d[2], d[1]), out(d[0], d[1])} },
			blocks: first, elements: second, fixedNs: 10, elementNs: 0.3, emit: emitAdd,
		},
	}
}

func first(d dims) uint64  { return uint64(d[0]) }
func second(d dims) uint64 { return uint64(d[1]) }

// wordBytes is the size of every number in a buffer, and its alignment.
const wordBytes = 4

// size is the product of counts, which fits: package ops bounds it.
func size(counts ...int64) uint64 {
	n := uint64(1)
	for _, c := range counts {
		n *= uint64(c)
	}
	return n
}

func in(name string, counts ...int64) Param {
	return Param{Name: name, Access: Read, Bytes: wordBytes * size(counts...), Align: wordBytes}
}

func inPlace(counts ...int64) Param {
	return Param{Name: "in", Access: InPlace, Bytes: wordBytes * size(counts...), Align: wordBytes}
}

func out(counts ...int64) Param {
	return Param{Name: "out", Access: Write, Bytes: wordBytes * size(counts...), Align: wordBytes}
}

func inPlaceRows(d dims) []Param { return []Param{inPlace(d[0], d[1]), out(d[0], d[1])} }

// routine is the function a kernel is emitted into, with its parameters.
type routine struct {
	*wasm.Func
	buffer     []i32 // offsets of the buffers in the order of Params
	numbers    []i32 // see Spec.numbers
	block, end i32
}

type (
	i32   = wasm.Var[wasm.I32]
	f32x4 = wasm.Var[wasm.F32x4]
)

// eachBlock runs body for every block of the call.
func (r routine) eachBlock(body func()) { r.Range(r.block, r.end.Get(), 1, body) }

// row is the address of row i of a buffer whose rows have width floats.
func (r routine) row(buffer int, i wasm.I32, width uint32) wasm.I32 {
	return r.buffer[buffer].Get().Add(i.MulConst(wordBytes * width))
}

const (
	vectorFloats = 4
	vectorBytes  = vectorFloats * wordBytes
	stripVectors = 4
)

// sweep visits a row of width floats vector by vector, turn vectors in one turn of
// a loop. body gets the byte offset of a vector from where the cursors stand, its
// number modulo turn, and how many of its lanes lie in the row. Cursors are moved
// along and end up behind the last whole turn.
//
// The vectors of a turn are visited from the last to the first: the first access
// proves to the compiler that the others are within bounds. Sums do not notice,
// since each vector of a turn has an accumulator of its own.
func (r routine) sweep(width uint32, turn int, cursors []i32, body func(offset uint32, vector, lanes int)) {
	visit := func(floats int) {
		for v := (floats - 1) / vectorFloats; v >= 0; v-- {
			body(uint32(v)*vectorBytes, v, min(vectorFloats, floats-v*vectorFloats))
		}
	}
	turnFloats := turn * vectorFloats
	whole, rest := width/uint32(turnFloats), int(width%uint32(turnFloats))
	if whole > 0 {
		left := wasm.NewVar(r.Func, wasm.Uint32(whole))
		r.Loop(func(again wasm.Label) {
			visit(turnFloats)
			for _, c := range cursors {
				c.Set(c.Get().AddConst(int32(turnFloats * wordBytes)))
			}
			left.Set(left.Get().AddConst(-1))
			again.BranchIf(left.Get())
		})
	}
	if rest > 0 {
		visit(rest)
	}
}

// cursor is a new variable that holds an address.
func (r routine) cursor(at wasm.I32) i32 { return wasm.NewVar(r.Func, at) }

// keep evaluates x once.
func (r routine) keep(x wasm.F32x4) wasm.F32x4 { return wasm.NewVar(r.Func, x).Get() }

// zeros are n accumulators at zero.
func (r routine) zeros(n int) []f32x4 {
	acc := make([]f32x4, n)
	for i := range acc {
		acc[i] = wasm.NewVar(r.Func, wasm.Float32x4(0))
	}
	return acc
}

// total adds the accumulators of a sweep in the order the package comment states.
func (r routine) total(acc []f32x4) wasm.F32 {
	sum := r.keep(acc[0].Get().Add(acc[1].Get()).Add(acc[2].Get().Add(acc[3].Get())))
	return lanesSum(sum)
}

// lanesSum adds the lanes of v, which is evaluated four times, in their order.
func lanesSum(v wasm.F32x4) wasm.F32 {
	return v.Lane(0).Add(v.Lane(1)).Add(v.Lane(2).Add(v.Lane(3)))
}

// firstLanes is a mask of the first n lanes.
func firstLanes(n int) wasm.I32x4 {
	var lane [vectorFloats]int32
	for i := range min(n, vectorFloats) {
		lane[i] = -1
	}
	return wasm.Int32x4(lane[0], lane[1], lane[2], lane[3])
}
