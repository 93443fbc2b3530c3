package kernels

import "github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"

// emitLayerNorm takes the mean, then the mean square of the differences, then
// writes ((x - mean) / sqrt(variance + epsilon)) gamma + beta; a block is a row.
func emitLayerNorm(s Spec, r routine) {
	width := s.Dims[1]
	count := wasm.Float32(float32(width))
	r.eachBlock(func() {
		row := r.cursor(r.row(0, r.block.Get(), width))

		sum, at := r.zeros(stripVectors), r.cursor(row.Get())
		r.sweep(width, stripVectors, []i32{at}, func(offset uint32, v, lanes int) {
			sum[v].Set(sum[v].Get().Add(at.Get().LoadF32x4(offset, lanes)))
		})
		mean := r.keep(r.total(sum).Div(count).Splat())

		square, at := r.zeros(stripVectors), r.cursor(row.Get())
		r.sweep(width, stripVectors, []i32{at}, func(offset uint32, v, lanes int) {
			d := at.Get().LoadF32x4(offset, lanes).Sub(mean)
			if lanes < vectorFloats { // the lanes behind the row hold no difference
				d = d.Bits().And(firstLanes(lanes)).Floats()
			}
			d = r.keep(d)
			square[v].Set(square[v].Get().Add(d.Mul(d)))
		})
		deviation := r.total(square).Div(count).Add(wasm.Float32(s.Epsilon)).Sqrt()
		scale := r.keep(wasm.Float32(1).Div(deviation).Splat())

		src, gamma, beta := r.cursor(row.Get()), r.cursor(r.buffer[1].Get()), r.cursor(r.buffer[2].Get())
		dst := r.cursor(r.row(3, r.block.Get(), width))
		r.sweep(width, stripVectors, []i32{src, gamma, beta, dst}, func(offset uint32, _, lanes int) {
			y := src.Get().LoadF32x4(offset, lanes).Sub(mean).Mul(scale).
				Mul(gamma.Get().LoadF32x4(offset, lanes)).
				Add(beta.Get().LoadF32x4(offset, lanes))
			r.StoreF32x4(dst.Get(), offset, y, lanes)
		})
	})
}

// emitL2Norm writes x / max(sqrt(sum of squares), epsilon); a block is a row.
func emitL2Norm(s Spec, r routine) {
	width := s.Dims[1]
	r.eachBlock(func() {
		row := r.cursor(r.row(0, r.block.Get(), width))
		square, at := r.zeros(stripVectors), r.cursor(row.Get())
		r.sweep(width, stripVectors, []i32{at}, func(offset uint32, v, lanes int) {
			x := r.keep(at.Get().LoadF32x4(offset, lanes))
			square[v].Set(square[v].Get().Add(x.Mul(x)))
		})
		length := r.keep(r.total(square).Sqrt().Max(wasm.Float32(s.Epsilon)).Splat())

		src, dst := r.cursor(row.Get()), r.cursor(r.row(1, r.block.Get(), width))
		r.sweep(width, stripVectors, []i32{src, dst}, func(offset uint32, _, lanes int) {
			r.StoreF32x4(dst.Get(), offset, src.Get().LoadF32x4(offset, lanes).Div(length), lanes)
		})
	})
}

// emitMeanPool adds an item's valid rows in ascending order and divides by their
// number; a block is one strip of columns of one item.
func emitMeanPool(s Spec, r routine) {
	rows, width := s.Dims[1], s.Dims[2]
	perItem := strips(width)
	item, strip := wasm.Declare[wasm.I32](r.Func), wasm.Declare[wasm.I32](r.Func)
	valid := wasm.Declare[wasm.I32](r.Func)
	r.eachBlock(func() {
		item.Set(r.block.Get().DivU(wasm.Uint32(perItem)))
		strip.Set(r.block.Get().RemU(wasm.Uint32(perItem)).MulConst(stripBytes))
		valid.Set(r.row(1, item.Get(), 1).LoadI32(0))
		valid.Set(valid.Get().MinU(wasm.Uint32(rows)))
		src := r.cursor(r.row(0, item.Get().MulConst(rows), width).Add(strip.Get()))
		dst := r.cursor(r.row(2, item.Get(), width).Add(strip.Get()))
		mean := func(floats int) {
			vectors := (floats + vectorFloats - 1) / vectorFloats
			lanes := func(v int) int { return min(vectorFloats, floats-v*vectorFloats) }
			acc := r.zeros(vectors)
			token := wasm.NewVar(r.Func, wasm.Uint32(0))
			r.Range(token, valid.Get(), 1, func() {
				for v := vectors - 1; v >= 0; v-- {
					acc[v].Set(acc[v].Get().Add(src.Get().LoadF32x4(uint32(v)*vectorBytes, lanes(v))))
				}
				src.Set(src.Get().Add(wasm.Uint32(wordBytes * width)))
			})
			// An item without rows divides zero by one.
			count := r.keep(valid.Get().Float().Max(wasm.Float32(1)).Splat())
			for v := vectors - 1; v >= 0; v-- {
				r.StoreF32x4(dst.Get(), uint32(v)*vectorBytes, acc[v].Get().Div(count), lanes(v))
			}
		}
		rest := int(width % stripFloats)
		if rest == 0 {
			mean(stripFloats)
			return
		}
		isLast := strip.Get().Eq(wasm.Uint32((perItem - 1) * stripBytes))
		r.If(isLast, func() { mean(rest) }, func() { mean(stripFloats) })
	})
}
