package kernels

import (
	"math"

	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"
)

// emitSoftmax writes e^(x-max) / sum over the valid columns of a row and 0 over
// the others; a block is a row. It passes over the valid columns three times:
// for the largest, for the exponentials and their sum, for the division. A length
// above keys counts as keys. With as many queries as keys (self-attention) rows
// from the length on are padding too and give 0.
func emitSoftmax(s Spec, r routine) {
	heads, queries, keys := s.dim(1), s.dim(2), s.dim(3)
	valid, item := wasm.Declare[wasm.I32](r.Func), wasm.Declare[wasm.I32](r.Func)
	r.eachBlock(func() {
		item.Set(r.block.Get().DivU(wasm.Uint32(heads * queries)))
		valid.Set(r.row(1, item.Get(), 1).LoadI32(0))
		valid.Set(valid.Get().MinU(wasm.Uint32(keys)))
		if queries == keys {
			query := r.block.Get().RemU(wasm.Uint32(queries))
			r.If(query.GeU(valid.Get()), func() { valid.Set(wasm.Uint32(0)) }, nil)
		}
		row := softmaxRow{routine: r, keys: keys, valid: valid,
			src: r.cursor(r.row(0, r.block.Get(), keys)), dst: r.cursor(r.row(2, r.block.Get(), keys)),
			at: wasm.Declare[wasm.I32](r.Func), to: wasm.Declare[wasm.I32](r.Func)}
		r.If(valid.Get(), func() {
			largest := row.largest()
			row.scale(row.exponentials(largest))
		}, nil)
		row.clear()
	})
}

// softmaxRow is one row while it is emitted. at and to are the addresses in src
// and dst that a pass has come to.
type softmaxRow struct {
	routine
	keys     uint32
	valid    i32
	src, dst i32
	at, to   i32
}

// largest is the largest valid element in each lane.
func (r softmaxRow) largest() wasm.F32x4 {
	lowest := wasm.Float32x4(float32(math.Inf(-1)))
	top := wasm.NewVar(r.Func, lowest)
	r.pass(stripVectors, func(v validVector) {
		x := v.load(r.at)
		if v.mask != nil {
			x = v.mask.Select(x, lowest)
		}
		top.Set(top.Get().PMax(x))
	})
	t := top.Get()
	return r.keep(t.Lane(0).Max(t.Lane(1)).Max(t.Lane(2).Max(t.Lane(3))).Splat())
}

// exponentials writes e^(x-largest) and gives the reciprocal of their sum.
func (r softmaxRow) exponentials(largest wasm.F32x4) wasm.F32x4 {
	sum := wasm.NewVar(r.Func, wasm.Float32x4(0))
	r.pass(2, func(v validVector) {
		e := r.exp(v.load(r.at).Sub(largest))
		if v.mask != nil {
			e = e.Bits().And(*v.mask).Floats()
		}
		e = r.keep(e)
		v.store(r.to, e)
		sum.Set(sum.Get().Add(e))
	})
	return r.keep(wasm.Float32(1).Div(lanesSum(sum.Get())).Splat())
}

// scale multiplies what exponentials wrote.
func (r softmaxRow) scale(factor wasm.F32x4) {
	r.pass(stripVectors, func(v validVector) { v.store(r.to, v.load(r.to).Mul(factor)) })
}

// validVector is the vector a pass has come to: one whose lanes are all valid, or
// the last, which comes with the mask of its valid lanes and may reach beyond
// the row.
type validVector struct {
	row    softmaxRow
	offset uint32
	mask   *wasm.I32x4 // nil if all lanes are valid
}

// load reads the vector relative to at; lanes beyond the row are 0.
func (v validVector) load(at i32) wasm.F32x4 {
	if v.mask == nil {
		return at.Get().LoadF32x4(v.offset, vectorFloats)
	}
	x := wasm.Declare[wasm.F32x4](v.row.Func)
	v.row.inRow(func(lanes int) { x.Set(at.Get().LoadF32x4(0, lanes)) })
	return x.Get()
}

// store writes the lanes of x that lie in the row relative to at.
func (v validVector) store(at i32, x wasm.F32x4) {
	if v.mask == nil {
		v.row.StoreF32x4(at.Get(), v.offset, x, vectorFloats)
		return
	}
	x = v.row.keep(x)
	v.row.inRow(func(lanes int) { v.row.StoreF32x4(at.Get(), 0, x, lanes) })
}

// pass visits the valid columns in ascending order: turns of that many vectors,
// then vectors, then at most one that is valid only in part.
func (r softmaxRow) pass(turn uint32, body func(validVector)) {
	r.at.Set(r.src.Get())
	r.to.Set(r.dst.Get())
	turns := []uint32{turn, 1}
	if turn == 1 {
		turns = turns[:1]
	}
	for _, vectors := range turns {
		unit := vectors * vectorFloats
		if r.keys < unit {
			continue
		}
		stop := r.cursor(r.src.Get().Add(r.valid.Get().And(wasm.Uint32(-unit)).MulConst(wordBytes)))
		r.Range(r.at, stop.Get(), int32(unit*wordBytes), func() {
			for v := range vectors {
				body(validVector{row: r, offset: v * vectorBytes})
			}
			r.to.Set(r.to.Get().AddConst(int32(unit * wordBytes)))
		})
	}
	left := r.valid.Get().And(wasm.Uint32(vectorFloats - 1))
	r.If(left, func() {
		mask := r.keep(wasm.Int32x4(0, 1, 2, 3).LtS(left.Splat()).Floats()).Bits()
		body(validVector{row: r, mask: &mask})
	}, nil)
}

// inRow runs body with how many lanes of the vector at r.to lie in the row.
func (r softmaxRow) inRow(body func(lanes int)) {
	tail := int(r.keys % vectorFloats)
	whole := wordBytes * (r.keys - uint32(tail))
	switch {
	case tail == 0:
		body(vectorFloats)
	case whole == 0:
		body(tail)
	default:
		r.If(r.to.Get().LtU(r.dst.Get().Add(wasm.Uint32(whole))),
			func() { body(vectorFloats) }, func() { body(tail) })
	}
}

// clear writes 0 over the vectors without a valid column. Those that are valid in
// part have been written in full.
func (r softmaxRow) clear() {
	from := r.valid.Get().AddConst(vectorFloats - 1).And(wasm.Int32(-vectorFloats)).MulConst(wordBytes)
	r.to.Set(r.dst.Get().Add(from))
	tail := int(r.keys % vectorFloats)
	stop := r.cursor(r.dst.Get().Add(wasm.Uint32(wordBytes * (r.keys - uint32(tail)))))
	r.Range(r.to, stop.Get(), vectorBytes, func() {
		r.StoreF32x4(r.to.Get(), 0, wasm.Float32x4(0), vectorFloats)
	})
	if tail > 0 {
		r.If(r.to.Get().Eq(stop.Get()), func() {
			r.StoreF32x4(r.to.Get(), 0, wasm.Float32x4(0), tail)
		}, nil)
	}
}
