package kernels

import "github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"

// copyRow copies a row of width floats from the cursor src to the cursor dst.
func (r routine) copyRow(dst, src i32, width uint32) {
	r.sweep(width, stripVectors, []i32{dst, src}, func(offset uint32, _, lanes int) {
		r.StoreF32x4(dst.Get(), offset, src.Get().LoadF32x4(offset, lanes), lanes)
	})
}

// tableRow is a cursor at the row of a table that element i of an index buffer
// names. An index outside of the table ends the call.
func (r routine) tableRow(ids, table int, width, entries uint32) i32 {
	id := wasm.NewVar(r.Func, r.row(ids, r.block.Get(), 1).LoadI32(0))
	r.TrapIf(id.Get().GeU(wasm.Uint32(entries)))
	return r.cursor(r.row(table, id.Get(), width))
}

// emitGather copies the rows that the ids name; a block is a row.
func emitGather(s Spec, r routine) {
	width, entries := s.dim(1), s.dim(2)
	r.eachBlock(func() {
		src := r.tableRow(0, 1, width, entries)
		r.copyRow(r.cursor(r.row(2, r.block.Get(), width)), src, width)
	})
}

// emitReorder swaps the middle dimensions; a block is one run of d floats of the
// result. The source address is computed once a call and then carried along,
// since two divisions a run cost more than the run.
func emitReorder(s Spec, r routine) {
	b, c, d := s.dim(1), s.dim(2), s.dim(3)
	run := wordBytes * d
	inner := wasm.NewVar(r.Func, r.block.Get().RemU(wasm.Uint32(b)))
	middle := wasm.NewVar(r.Func, r.block.Get().DivU(wasm.Uint32(b)).RemU(wasm.Uint32(c)))
	outer := wasm.NewVar(r.Func, r.block.Get().DivU(wasm.Uint32(b)).DivU(wasm.Uint32(c)))
	plane := func() wasm.I32 { // first run of the source for this outer and middle
		return r.row(0, outer.Get().MulConst(b).MulConst(c).Add(middle.Get()), d)
	}
	from := r.cursor(plane().Add(inner.Get().MulConst(c).MulConst(run)))
	dst := r.cursor(r.row(1, r.block.Get(), d))
	r.eachBlock(func() {
		src := r.cursor(from.Get())
		to := r.cursor(dst.Get())
		r.copyRow(to, src, d)
		dst.Set(dst.Get().AddConst(int32(run)))
		from.Set(from.Get().Add(wasm.Uint32(c).MulConst(run)))
		inner.Set(inner.Get().AddConst(1))
		r.If(inner.Get().Eq(wasm.Uint32(b)), func() {
			inner.Set(wasm.Uint32(0))
			middle.Set(middle.Get().AddConst(1))
			r.If(middle.Get().Eq(wasm.Uint32(c)), func() {
				middle.Set(wasm.Uint32(0))
				outer.Set(outer.Get().AddConst(1))
			}, nil)
			from.Set(plane())
		}, nil)
	})
}

// emitSlice copies the first row of each sequence; a block is a sequence.
func emitSlice(s Spec, r routine) {
	rows, width := s.dim(1), s.dim(2)
	r.eachBlock(func() {
		src := r.cursor(r.row(0, r.block.Get().MulConst(rows), width))
		r.copyRow(r.cursor(r.row(1, r.block.Get(), width)), src, width)
	})
}
