package kernels

import "github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"

// emitLayerNorm takes the mean, then the mean square of the differences, then
// writes ((x - mean) / sqrt(variance + epsilon)) gamma + beta; a block is a row.
func emitLayerNorm(s Spec, r routine) {
	width := s.dim(1)
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
