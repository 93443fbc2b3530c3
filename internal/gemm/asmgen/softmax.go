package main

import (
	"fmt"
	"math"
)

// The numbers of e^x as softmax.go has them, and where a row's largest number starts.
// A constant is an index into them.
var constants = []float32{
	perLn2:  1.44269504088896341,
	rounder: 3 << 22,
	ln2High: 0.693359375,
	ln2Low:  -2.12194440e-4,
	c0:      0.4999999403953552,
	c1:      0.1666652113199234,
	c2:      0.04166838899254799,
	c3:      0.00836874544620514,
	c4:      0.0013814539415761828,
	one:     1, // its bits are those of the scale, too
	lowest:  -87,
	least:   float32(math.Inf(-1)),
}

const (
	perLn2 = iota
	rounder
	ln2High
	ln2Low
	c0
	c1
	c2
	c3
	c4
	one
	lowest
	least
)

// softmax writes the kernel of softmax.go: x in register 0, what is computed from it in
// 1 to 6; the largest number, or the factor, in 7; the sum in 8.
func (w *writer) softmax() {
	w.table("softmaxConstants", constants)
	fmt.Fprintf(w, `
// func softmax%s(t *rows)
//
// AX the rows, SI a row, DX bytes into it, CX bytes of it, BX rows left.
TEXT ·softmax%s(SB), NOSPLIT, $0-8
`, w.name, w.name)
	for _, l := range []string{
		"MOVQ t+0(FP), AX", "MOVQ rows_x(AX), SI", "MOVQ rows_bytes(AX), CX", "MOVQ rows_count(AX), BX",
	} {
		w.line("%s", l)
	}
	w.loadTable()
	fmt.Fprintf(w, "\nnextrow:\n")
	w.line("VMOVUPS %s, %s", w.constant(least), w.reg(7))
	w.pass("largest", func() {
		w.line("VMOVUPS (SI)(DX*1), %s", w.reg(0))
		w.line("VMAXPS %s, %s, %s", w.reg(7), w.reg(0), w.reg(7))
	})
	w.fold("VMAXPS")
	w.line("VBROADCASTSS X7, %s", w.reg(7))
	w.line("VXORPS X8, X8, X8")
	w.pass("exponentials", w.exponential)
	w.line("VPERMILPS $0xb1, X8, X1") // (l0+l1)+(l2+l3)
	w.line("VADDPS X1, X8, X8")
	w.line("VPERMILPS $0x4e, X8, X1")
	w.line("VADDPS X1, X8, X8")
	w.line("VMOVUPS %s, %s", w.constant(one), w.reg(1))
	w.line("VDIVSS X8, X1, X1")
	w.line("VBROADCASTSS X1, %s", w.reg(7))
	w.pass("scale", func() {
		w.line("VMULPS (SI)(DX*1), %s, %s", w.reg(7), w.reg(0))
		w.line("VMOVUPS %s, (SI)(DX*1)", w.reg(0))
	})
	w.line("ADDQ rows_stride(AX), SI")
	w.line("DECQ BX")
	w.line("JNE nextrow")
	w.line("%s", w.clear)
	w.line("RET")
}

// pass goes over the vectors of a row.
func (w *writer) pass(name string, body func()) {
	w.line("XORQ DX, DX")
	fmt.Fprintf(w, "%s:\n", name)
	body()
	w.line("ADDQ $%d, DX", w.bytes)
	w.line("CMPQ DX, CX")
	w.line("JLT %s", name)
}

// fold combines the lanes of register 7 into the first.
func (w *writer) fold(op string) {
	if w.bytes == 64 {
		w.line("VEXTRACTF64X4 $1, Z7, Y1")
		w.line("%s Y1, Y7, Y7", op)
	}
	w.line("VEXTRACTF128 $1, Y7, X1")
	w.line("%s X1, X7, X7", op)
	for _, order := range []string{"$0x4e", "$0xb1"} {
		w.line("VPERMILPS %s, X7, X1", order)
		w.line("%s X1, X7, X7", op)
	}
}

// exponential stores e^(x-largest) and adds it to the sum, element j to lane j mod 4.
func (w *writer) exponential() {
	op := func(name string, b, a string, to int) { w.line("%s %s, %s, %s", name, b, a, w.reg(to)) }
	r, c := w.reg, w.constant
	const x, bits, n, rest, t, u, square = 0, 1, 2, 3, 4, 5, 6
	w.line("VMOVUPS (SI)(DX*1), %s", r(x))
	op("VSUBPS", r(7), r(x), x)
	op("VMULPS", c(perLn2), r(x), bits)
	op("VADDPS", c(rounder), r(bits), bits)
	op("VSUBPS", c(rounder), r(bits), n)
	op("VMULPS", c(ln2High), r(n), t)
	op("VSUBPS", r(t), r(x), rest)
	op("VMULPS", c(ln2Low), r(n), t)
	op("VSUBPS", r(t), r(rest), rest)
	op("VMULPS", r(rest), r(rest), square)
	op("VMULPS", c(c1), r(rest), t)
	op("VADDPS", c(c0), r(t), t)
	op("VMULPS", c(c3), r(rest), u)
	op("VADDPS", c(c2), r(u), u)
	op("VMULPS", r(square), r(u), u)
	op("VADDPS", r(u), r(t), t)
	op("VMULPS", r(square), r(square), u)
	op("VMULPS", c(c4), r(u), u)
	op("VADDPS", r(u), r(t), t)
	op("VMULPS", r(square), r(t), t)
	op("VADDPS", r(rest), r(t), t)
	op("VADDPS", c(one), r(t), t)
	op("VPSLLD", "$23", r(bits), bits)
	op("VPADDD", c(one), r(bits), bits)
	if w.bytes == 64 {
		w.line("VCMPPS $5, %s, %s, K1", c(lowest), r(x)) // not less: also a NaN
		w.line("VMULPS.Z %s, %s, K1, %s", r(bits), r(t), r(t))
	} else {
		op("VMULPS", r(bits), r(t), t)
		w.line("VCMPPS $1, %s, %s, %s", c(lowest), r(x), r(u))
		op("VANDNPS", r(t), r(u), t)
	}
	w.line("VMOVUPS %s, (SI)(DX*1)", r(t))
	w.line("VADDPS X%d, X8, X8", t)
	for quarter := 1; quarter < w.bytes/16; quarter++ {
		extract := "VEXTRACTF128"
		if w.bytes == 64 {
			extract = "VEXTRACTF32X4"
		}
		w.line("%s $%d, %s, X%d", extract, quarter, r(t), u)
		w.line("VADDPS X%d, X8, X8", u)
	}
}
