package kernels

import "github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"

// exp is e^x for x <= 0, within 1 ulp and exactly 0 below -87, where the result
// would soon be subnormal. A NaN stays one.
//
// x = n ln 2 + r with n an integer and |r| <= ln(2)/2; the sum rounds x/ln 2 to n
// in the low bits of a number near 2^23, from where n becomes an exponent. ln 2 is
// in two parts of which the first has so few bits that n times it is exact. e^r is
// 1 + r + r^2 P(r) with P fitted for the smallest largest error.
// Source of the reduction: W. J. Cody, W. Waite, Software Manual for the
// Elementary Functions, 1980.
func (r routine) exp(x wasm.F32x4) wasm.F32x4 {
	const (
		lowest    = -87
		perLn2    = 1.44269504088896341
		rounder   = 3 << 22
		ln2High   = 0.693359375
		ln2Low    = -2.12194440e-4
		unitScale = 0x3f800000 // the bits of 1
	)
	x = r.keep(x)
	bits := r.keep(x.Mul(wasm.Float32x4(perLn2)).Add(wasm.Float32x4(rounder)))
	n := r.keep(bits.Sub(wasm.Float32x4(rounder)))
	rest := r.keep(x.Sub(n.Mul(wasm.Float32x4(ln2High))).Sub(n.Mul(wasm.Float32x4(ln2Low))))
	p := r.polynomial(rest,
		0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.00836874544620514,
		0.0013814539415761828)
	y := p.Mul(rest.Mul(rest)).Add(rest).Add(wasm.Float32x4(1))
	scale := bits.Bits().Shl(23).Add(wasm.Int32x4(unitScale, unitScale, unitScale, unitScale)).Floats()
	return y.Mul(scale).Bits().AndNot(x.Lt(wasm.Float32x4(lowest))).Floats()
}

// gelu is x/2 (1 + erf(x/sqrt 2)) with an absolute error below 4e-7, x itself
// from 6 on and 0 from -6 down. A NaN stays one.
//
// It is max(x, 0) - h(|x|) with h(a) = a/2 erfc(a/sqrt 2), a bump no higher than
// 0.17, so that large x lose nothing. h falls about as (6 - a)^6 does, hence h(a) =
// a (6-a)^6 G(a - 2) with G a polynomial fitted for the smallest largest error of
// h on [0, 6]; the factor makes it exactly 0 at 6.
func (r routine) gelu(x wasm.F32x4) wasm.F32x4 {
	const last, centre = 6, 2
	x = r.keep(x)
	a := r.keep(x.Abs().PMin(wasm.Float32x4(last)))
	left := r.keep(wasm.Float32x4(last).Sub(a))
	square := r.keep(left.Mul(left))
	u := r.keep(a.Sub(wasm.Float32x4(centre)))
	g := r.polynomial(u,
		5.554232302529272e-06, -4.850094683206407e-06, 6.991635927988682e-07, 7.411110800603637e-07,
		-2.8665979812103615e-07, -4.110482265673454e-08, 3.9002706841984036e-08, -1.3910003149320005e-09,
		-3.0288145325130245e-09, 3.896251377089044e-10, 1.1795887877585898e-10, -2.232129758805712e-11)
	h := a.Mul(square.Mul(square).Mul(square)).Mul(g)
	return x.PMax(wasm.Float32x4(0)).Sub(h)
}

// tanh has an error below 3 ulp. Small x take an odd polynomial, others (1 -
// e^-2|x|) / (1 + e^-2|x|) with the sign of x. A NaN stays one.
func (r routine) tanh(x wasm.F32x4) wasm.F32x4 {
	const small, signBit = 0.625, -1 << 31
	x = r.keep(x)
	a := r.keep(x.Abs())
	u := r.keep(x.Mul(x))
	p := r.polynomial(u,
		-0.3333328068256378, 0.13331441581249237, -0.05373971536755562, 0.0206390880048275,
		-0.005704987328499556)
	near := r.keep(x.Add(x.Mul(u.Mul(p))))
	e := r.keep(r.exp(a.Mul(wasm.Float32x4(-2))))
	far := wasm.Float32x4(1).Sub(e).Div(wasm.Float32x4(1).Add(e))
	sign := x.Bits().And(wasm.Int32x4(signBit, signBit, signBit, signBit))
	return a.Lt(wasm.Float32x4(small)).Select(near, far.Bits().Or(sign).Floats())
}

// polynomial evaluates the polynomial with the given coefficients, that of x^0
// first. Neighbours are combined as c0 + c1 x, the results with x^2, and so on:
// Horner's scheme has as many multiplications but waits for each of them.
// Source: G. Estrin, Organization of Computer Systems, 1960.
func (r routine) polynomial(x wasm.F32x4, coefficients ...float32) wasm.F32x4 {
	terms := make([]wasm.F32x4, len(coefficients))
	for i, c := range coefficients {
		terms[i] = wasm.Float32x4(c)
	}
	for len(terms) > 1 {
		next := terms[:0]
		for i := 0; i < len(terms); i += 2 {
			t := terms[i]
			if i+1 < len(terms) {
				t = r.keep(t.Add(terms[i+1].Mul(x)))
			}
			next = append(next, t)
		}
		terms = next
		if len(terms) > 1 {
			x = r.keep(x.Mul(x))
		}
	}
	return terms[0]
}

// mapTurn is how many vectors one turn of a map's loop works on. The processor
// overlaps turns anyway; more would only make compiling longer.
const mapTurn = 2

func emitGELU(s Spec, r routine) { emitMap(s, r, r.gelu) }
func emitTanh(s Spec, r routine) { emitMap(s, r, r.tanh) }

// emitMap applies fn to every element; a block is a row.
func emitMap(s Spec, r routine, fn func(wasm.F32x4) wasm.F32x4) {
	width := s.dim(1)
	r.eachBlock(func() {
		src := r.cursor(r.row(0, r.block.Get(), width))
		dst := r.cursor(r.row(1, r.block.Get(), width))
		r.sweep(width, mapTurn, []i32{src, dst}, func(offset uint32, _, lanes int) {
			r.StoreF32x4(dst.Get(), offset, fn(src.Get().LoadF32x4(offset, lanes)), lanes)
		})
	})
}

// emitAdd adds a repeated row or tensor; a block is a row. The period is a number of the
// call: a division a row is not seen beside its additions.
func emitAdd(s Spec, r routine) {
	width := s.dim(1)
	r.eachBlock(func() {
		a := r.cursor(r.row(0, r.block.Get(), width))
		b := r.cursor(r.row(1, r.block.Get().RemU(r.numbers[0].Get()), width))
		dst := r.cursor(r.row(2, r.block.Get(), width))
		r.sweep(width, stripVectors, []i32{a, b, dst}, func(offset uint32, _, lanes int) {
			sum := a.Get().LoadF32x4(offset, lanes).Add(b.Get().LoadF32x4(offset, lanes))
			r.StoreF32x4(dst.Get(), offset, sum, lanes)
		})
	})
}
