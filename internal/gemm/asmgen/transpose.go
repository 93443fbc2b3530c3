package main

import "fmt"

// transpose writes the kernel of keys.go: blocks of 8 x 8 numbers, eight rows at SI and
// SI+4 strides on, which become columns at DI.
func (w *writer) transpose() {
	fmt.Fprint(w, `
// func transposeAVX2(t *columns)
//
// AX the columns, SI and R11 rows 0 and 4, R8 from row to row, R10 thrice that;
// DI and R12 columns 0 and 4, R9 from column to column, R13 thrice that; CX blocks left.
TEXT ·transposeAVX2(SB), NOSPLIT, $0-8
`)
	for _, l := range []string{
		"MOVQ t+0(FP), AX", "MOVQ columns_from(AX), SI", "MOVQ columns_stride(AX), R8",
		"MOVQ columns_to(AX), DI", "MOVQ columns_step(AX), R9", "MOVQ columns_blocks(AX), CX",
		"LEAQ (R8)(R8*2), R10", "LEAQ (SI)(R8*4), R11", "LEAQ (R9)(R9*2), R13",
	} {
		w.line("%s", l)
	}
	fmt.Fprintf(w, "nextblock:\n")
	w.line("LEAQ (DI)(R9*4), R12")
	w.line("VBROADCASTSS columns_scale(AX), Y15")
	line := func(low, high, stride, thrice string, i int) string {
		return []string{"(" + low + ")", "(" + low + ")(" + stride + "*1)", "(" + low + ")(" + stride + "*2)", "(" + low + ")(" + thrice + "*1)",
			"(" + high + ")", "(" + high + ")(" + stride + "*1)", "(" + high + ")(" + stride + "*2)", "(" + high + ")(" + thrice + "*1)"}[i]
	}
	for i := range 8 {
		w.line("VMULPS %s, Y15, Y%d", line("SI", "R11", "R8", "R10", i), i)
	}
	for i := 0; i < 8; i += 2 { // pairs of rows
		w.line("VUNPCKLPS Y%d, Y%d, Y%d", i+1, i, 8+i)
		w.line("VUNPCKHPS Y%d, Y%d, Y%d", i+1, i, 9+i)
	}
	for i := 0; i < 8; i += 4 { // fours
		for half := range 2 {
			w.line("VSHUFPS $0x44, Y%d, Y%d, Y%d", 10+i+half, 8+i+half, i+2*half)
			w.line("VSHUFPS $0xee, Y%d, Y%d, Y%d", 10+i+half, 8+i+half, i+2*half+1)
		}
	}
	for i := range 4 {
		w.line("VPERM2F128 $0x20, Y%d, Y%d, Y%d", i+4, i, 8+i)
		w.line("VPERM2F128 $0x31, Y%d, Y%d, Y%d", i+4, i, 12+i)
	}
	for i := range 8 {
		w.line("VMOVUPS Y%d, %s", 8+i, line("DI", "R12", "R9", "R13", i))
	}
	for _, l := range []string{"ADDQ $32, SI", "ADDQ $32, R11", "LEAQ (DI)(R9*8), DI", "DECQ CX", "JNE nextblock", "VZEROUPPER", "RET"} {
		w.line("%s", l)
	}
}
