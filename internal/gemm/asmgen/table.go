package main

import (
	"fmt"
	"math"
)

// table writes numbers that a kernel needs: each once where there are enough registers
// to keep them, else as a vector in memory.
func (w *writer) table(name string, list []float32) {
	w.constants, w.count = name, len(list)
	each := 1
	if w.vectors == 16 {
		each = w.bytes / 4
	}
	fmt.Fprintln(w)
	for i, c := range list {
		for copied := range each {
			fmt.Fprintf(w, "DATA %s<>+%d(SB)/4, $%#x\n", name, 4*(i*each+copied), math.Float32bits(c))
		}
	}
	fmt.Fprintf(w, "GLOBL %s<>(SB), RODATA|NOPTR, $%d\n", name, 4*each*len(list))
}

// loadTable fills the registers of the table's numbers.
func (w *writer) loadTable() {
	if w.vectors == 16 {
		return
	}
	for c := range w.count {
		w.line("VBROADCASTSS %s<>+%d(SB), %s", w.constants, 4*c, w.constant(c))
	}
}

// constant is the operand of a number of the table.
func (w *writer) constant(c int) string {
	if w.vectors == 16 {
		return fmt.Sprintf("%s<>+%d(SB)", w.constants, w.bytes*c)
	}
	return w.reg(16 + c)
}
