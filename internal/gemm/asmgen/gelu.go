package main

import (
	"fmt"
	"math"
)

// The numbers of gelu.go: its coefficients from the third on.
const (
	last = iota
	centre
	magnitude // all bits but the sign
	firstCoefficient
)

var geluConstants = []float32{
	last: 6, centre: 2, magnitude: math.Float32frombits(1<<31 - 1),
	firstCoefficient: 5.554232302529272e-06, -4.850094683206407e-06, 6.991635927988682e-07, 7.411110800603637e-07,
	-2.8665979812103615e-07, -4.110482265673454e-08, 3.9002706841984036e-08, -1.3910003149320005e-09,
	-3.0288145325130245e-09, 3.896251377089044e-10, 1.1795887877585898e-10, -2.232129758805712e-11,
}

// gelu writes the kernel of gelu.go: x in register 0, |x| up to 6 in 1, the square of
// what is left to 6 in 2, u in 3, its powers in 4, terms of the polynomial in 5 to 10.
func (w *writer) gelu() {
	w.table("geluConstants", geluConstants)
	fmt.Fprintf(w, `
// func gelu%s(t *vectors)
//
// SI the numbers, DI where results go, CX bytes of them, DX bytes into both.
TEXT ·gelu%s(SB), NOSPLIT, $0-8
`, w.name, w.name)
	for _, l := range []string{"MOVQ t+0(FP), AX", "MOVQ vectors_from(AX), SI", "MOVQ vectors_to(AX), DI", "MOVQ vectors_bytes(AX), CX"} {
		w.line("%s", l)
	}
	w.loadTable()
	w.line("VXORPS X11, X11, X11")
	w.pass("numbers", w.geluVector)
	w.line("%s", w.clear)
	w.line("RET")
}

func (w *writer) geluVector() {
	const x, a, square, u, power, terms, t = 0, 1, 2, 3, 4, 5, 12
	op := func(name, b, a string, to int) { w.line("%s %s, %s, %s", name, b, a, w.reg(to)) }
	r, c := w.reg, w.constant
	w.line("VMOVUPS (SI)(DX*1), %s", r(x))
	and := "VPAND"
	if w.bytes == 64 {
		and = "VPANDD"
	}
	op(and, c(magnitude), r(x), a)
	w.line("VMOVUPS %s, %s", c(last), r(t))
	op("VMINPS", r(a), r(t), a)
	op("VSUBPS", r(a), r(t), square)
	op("VMULPS", r(square), r(square), square)
	op("VSUBPS", c(centre), r(a), u)
	coefficients := len(geluConstants) - firstCoefficient
	for i := range coefficients / 2 {
		op("VMULPS", c(firstCoefficient+2*i+1), r(u), terms+i)
		op("VADDPS", c(firstCoefficient+2*i), r(terms+i), terms+i)
	}
	power0 := u
	for n := coefficients / 2; n > 1; n = (n + 1) / 2 { // neighbours are combined
		op("VMULPS", r(power0), r(power0), power)
		power0 = power
		for i := range (n + 1) / 2 {
			if 2*i+1 == n {
				w.line("VMOVAPS %s, %s", r(terms+2*i), r(terms+i))
				continue
			}
			op("VMULPS", r(power), r(terms+2*i+1), t)
			op("VADDPS", r(t), r(terms+2*i), terms+i)
		}
	}
	op("VMULPS", r(square), r(square), t)
	op("VMULPS", r(square), r(t), t)
	op("VMULPS", r(t), r(a), t)
	op("VMULPS", r(terms), r(t), t)
	op("VMAXPS", r(x), r(11), x)
	op("VSUBPS", r(t), r(x), x)
	w.line("VMOVUPS %s, (DI)(DX*1)", r(x))
}
