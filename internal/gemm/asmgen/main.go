// Command asmgen writes the assembly tile kernels of package gemm.
//
// One kernel computes a tile of `rows` rows and `panels` column panels of two
// vectors each. For every k, ascending, it loads the panels' vectors, spreads
// one number of each row of A over a vector and issues one fused multiply-add
// per accumulator: the chain that package gemm promises. All kernels of an
// instruction set share one entry point, which jumps by the number of rows and
// panels, so that Go calls it directly and its argument stays on the stack.
//
// The other files write the kernels of softmax, of gelu, and of the packing of keys.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
)

// isa describes one instruction set to generate for.
type isa struct {
	name     string // suffix of the entry point
	register string // prefix of the vector registers
	bytes    int    // of a vector
	vectors  int    // registers there are
	maxRows  int    // of the tallest tile
	clear    string // last instruction before RET
	runs     bool   // a call computes several tiles, one below another
}

var sets = map[string]isa{
	"avx2":   {name: "AVX2", register: "Y", bytes: 32, vectors: 16, maxRows: 6, clear: "VZEROUPPER", runs: true},
	"avx512": {name: "AVX512", register: "Z", bytes: 64, vectors: 32, maxRows: 14, clear: "VZEROUPPER"},
}

const (
	perPanel = 2 // vectors in a panel's row
	unroll   = 4 // values of k in a turn of the main loop
)

// together lists how many panels tiles of few rows take at once, beside one.
// A fused multiply-add takes four cycles and two may start in each, so fewer
// than eight accumulators would leave the units waiting for themselves.
var together = map[int]int{1: 4, 2: 3, 3: 2}

// bases point at rows 0, 3, 6, ... of A; an index register of one stride
// reaches the two rows after each.
var bases = []string{"SI", "DI", "R9", "R10", "R11"}

type writer struct {
	bytes.Buffer
	isa
	halves    bool   // the kernels of packed bfloat16
	constants string // the table in use
	count     int    // of its constants
}

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w, "\t"+format+"\n", args...) }

func (w *writer) reg(n int) string { return fmt.Sprintf("%s%d", w.register, n) }

// a is the operand of row r of A, k values past the row pointers.
func a(r, k int) string {
	return fmt.Sprintf("%d(%s)", 4*k, bases[r/3]) + []string{"", "(R8*1)", "(R8*2)"}[r%3]
}

// perRow is how many vectors of memory hold a row of a panel.
func (w *writer) perRow() int {
	if w.halves {
		return 1
	}
	return perPanel
}

// columns loads a row of the panel p. Of a pair of bfloat16 the low one goes to the first
// vector, the high one to the second.
func (w *writer) columns(p, k int, to ...string) {
	switch {
	case !w.halves:
		for v := range perPanel {
			w.line("VMOVUPS %s, %s", w.b(p, v, k), to[v])
		}
	case w.vectors == 32:
		w.line("VPSLLD $16, %s, %s", w.b(p, 0, k), to[0])
		w.line("VPANDD %s, Z31, %s", w.b(p, 0, k), to[1])
	default:
		w.line("VMOVUPS %s, %s", w.b(p, 0, k), to[1])
		w.line("VPSLLD $16, %s, %s", to[1], to[0])
		w.line("VPAND highHalves<>(SB), %s, %s", to[1], to[1])
	}
}

// b is the operand of a vector of the panel p, k values past the pointers.
func (w *writer) b(p, v, k int) string {
	at := (k*w.perRow() + v) * w.bytes
	return fmt.Sprintf("%d", at) + []string{"(BX)", "(BX)(R12*1)", "(BX)(R12*2)", "(R13)"}[p]
}

func (w *writer) accumulator(rows, r, p, v int) string {
	return w.reg((p*rows+r)*perPanel + v)
}

// step issues the multiply-adds of one k.
func (w *writer) step(rows, panels, k int) {
	used := rows * panels * perPanel
	if rows == 1 { // each vector of B is used once: read it as an operand
		w.line("VBROADCASTSS %s, %s", a(0, k), w.reg(used+k%2))
		for p := range panels {
			operand := []string{w.b(p, 0, k), w.b(p, 1, k)}
			if w.halves {
				at := used + 2 + p%2*perPanel
				operand = []string{w.reg(at), w.reg(at + 1)}
				w.columns(p, k, operand...)
			}
			for v := range perPanel {
				w.line("VFMADD231PS %s, %s, %s", operand[v], w.reg(used+k%2), w.accumulator(rows, 0, p, v))
			}
		}
		return
	}
	column := func(v int) string { return w.reg(used + v) }
	spare := w.vectors - used - perPanel
	if w.halves && w.vectors == 32 {
		spare-- // Z31
	}
	keep := panels > 1 && spare >= rows // all rows' numbers stay in registers for all panels
	for p := range panels {
		w.columns(p, k, column(0), column(1))
		for r := range rows {
			spread := w.reg(used + perPanel + r%min(spare, rows))
			if p == 0 || !keep {
				w.line("VBROADCASTSS %s, %s", a(r, k), spread)
			}
			for v := range perPanel {
				w.line("VFMADD231PS %s, %s, %s", column(v), spread, w.accumulator(rows, r, p, v))
			}
		}
	}
}

// advance moves the pointers past n values of k.
func (w *writer) advance(rows, panels, n int) {
	for i := 0; i < rows; i += 3 {
		w.line("ADDQ $%d, %s", 4*n, bases[i/3])
	}
	w.line("ADDQ $%d, BX", n*w.perRow()*w.bytes)
	if panels > 3 {
		w.line("ADDQ $%d, R13", n*w.perRow()*w.bytes)
	}
}

// move copies the tile between the rows at DX, which are stride apart, and the
// accumulators.
func (w *writer) move(rows, panels int, stride string, store bool) {
	for r := range rows {
		for p := range panels {
			for v := range perPanel {
				at := fmt.Sprintf("%d(DX)", (p*perPanel+v)*w.bytes)
				if store {
					w.line("VMOVUPS %s, %s", w.accumulator(rows, r, p, v), at)
				} else {
					w.line("VMOVUPS %s, %s", at, w.accumulator(rows, r, p, v))
				}
			}
		}
		if r < rows-1 {
			w.line("ADDQ %s, DX", stride)
		}
	}
}

func (w *writer) kernel(rows, panels int) {
	label := func(s string) string { return fmt.Sprintf("r%dp%d%s", rows, panels, s) }
	fmt.Fprintf(w, "\n%s: // %d rows, %d panels\n", label(""), rows, panels)
	w.move(rows, panels, "CX", false)
	for i := 3; i < rows; i += 3 {
		w.line("LEAQ (%s)(R8*2), %s", bases[i/3-1], bases[i/3])
		w.line("ADDQ R8, %s", bases[i/3])
	}
	if panels > 3 {
		w.line("LEAQ (BX)(R12*2), R13")
		w.line("ADDQ R12, R13")
	}
	w.line("MOVQ tile_k(AX), CX")
	w.line("MOVQ tile_next(AX), DX")
	w.line("SUBQ $%d, CX", unroll)
	w.line("JLT %s", label("rest"))
	w.line("PCALIGN $32")
	fmt.Fprintf(w, "%s:\n", label("loop"))
	lines := panels * unroll * w.perRow() * w.bytes / 64 // that the loop reads in a turn
	if rows == 1 {
		lines = 0 // bound by loads already, in long streams that the processor foresees
	}
	for k := range unroll {
		for i := k * lines / unroll; i < (k+1)*lines/unroll; i++ {
			w.line("PREFETCHT1 %d(DX)", 64*i)
		}
		w.step(rows, panels, k)
	}
	w.line("ADDQ tile_nextstep(AX), DX")
	w.advance(rows, panels, unroll)
	w.line("SUBQ $%d, CX", unroll)
	w.line("JGE %s", label("loop"))
	fmt.Fprintf(w, "%s:\n", label("rest"))
	w.line("ADDQ $%d, CX", unroll)
	w.line("JEQ %s", label("done"))
	fmt.Fprintf(w, "%s:\n", label("one"))
	w.step(rows, panels, 0)
	w.advance(rows, panels, 1)
	w.line("DECQ CX")
	w.line("JNE %s", label("one"))
	fmt.Fprintf(w, "%s:\n", label("done"))
	if w.runs && panels == 1 {
		w.line("MOVQ DX, tile_next(AX)")
	}
	w.line("MOVQ tile_c(AX), DX")
	w.line("MOVQ tile_ldc(AX), CX")
	w.move(rows, panels, "CX", true)
	if w.runs && panels == 1 {
		w.below(rows, label)
	}
	w.line("%s", w.clear)
	w.line("RET")
}

// below goes on with the tile below, if the run has one. The pointers move only then: one
// behind its matrix would be a bad pointer to Go.
func (w *writer) below(rows int, label func(string) string) {
	w.line("DECQ tile_tiles(AX)")
	w.line("JEQ %s", label("end"))
	w.line("IMUL3Q $%d, CX, CX", rows)
	w.line("ADDQ CX, tile_c(AX)")
	w.line("MOVQ tile_lds(AX), CX")
	w.line("IMUL3Q $%d, CX, DX", rows)
	w.line("ADDQ tile_start(AX), DX")
	w.line("MOVQ DX, tile_start(AX)")
	w.line("IMUL3Q $%d, R8, SI", rows)
	w.line("ADDQ tile_a(AX), SI")
	w.line("MOVQ SI, tile_a(AX)")
	w.line("MOVQ tile_b(AX), BX")
	w.line("JMP %s", label(""))
	fmt.Fprintf(w, "%s:\n", label("end"))
}

func (w *writer) file() {
	fmt.Fprint(w, `// Code generated by asmgen; DO NOT EDIT.

#include "go_asm.h"
#include "textflag.h"
`)
	for i := range w.bytes / 4 {
		fmt.Fprintf(w, "\nDATA highHalves<>+%d(SB)/4, $0xffff0000", 4*i)
	}
	fmt.Fprintf(w, "\nGLOBL highHalves<>(SB), RODATA|NOPTR, $%d\n", w.bytes)
	w.tiles("tile")
	w.halves = true
	w.tiles("tileHalves")
}

// tiles writes the kernels of tiles, and their entry point.
func (w *writer) tiles(entry string) {
	fmt.Fprintf(w, `
// func %s(t *tile)
//
// AX the tile, BX the panel, R12 from panel to panel, R13 the fourth panel;
// SI, DI, R9, R10, R11 rows 0, 3, 6, 9, 12 of A, R8 from row to row;
// DX rows of C or of the initial values, later the lines to prefetch.
TEXT ·%s(SB), NOSPLIT, $0-8
`, entry+w.name, entry+w.name)
	if w.halves && w.vectors == 32 {
		w.line("VMOVUPS highHalves<>(SB), Z31")
	}
	for _, l := range []string{
		"MOVQ t+0(FP), AX",
		"MOVQ tile_a(AX), SI",
		"MOVQ tile_lda(AX), R8",
		"MOVQ tile_b(AX), BX",
		"MOVQ tile_ldb(AX), R12",
		"MOVQ tile_start(AX), DX",
		"MOVQ tile_lds(AX), CX",
		"MOVQ tile_rows(AX), DI",
		"CMPQ tile_panels(AX), $1",
		"JNE several",
	} {
		w.line("%s", l)
	}
	for rows := w.maxRows; rows > 1; rows-- {
		w.line("CMPQ DI, $%d", rows)
		w.line("JEQ r%dp1", rows)
	}
	w.line("JMP r1p1")
	fmt.Fprintf(w, "\nseveral:\n")
	w.line("CMPQ DI, $2")
	w.line("JEQ r2p%d", together[2])
	w.line("JHI r3p%d", together[3])
	w.line("JMP r1p%d", together[1])
	for rows := 1; rows <= w.maxRows; rows++ {
		w.kernel(rows, 1)
		if p := together[rows]; p > 1 {
			w.kernel(rows, p)
		}
	}
}

func main() {
	set := flag.String("set", "", "instruction set: avx2 or avx512")
	out := flag.String("o", "", "file to write")
	flag.Parse()
	s, ok := sets[*set]
	if !ok {
		log.Fatalf("asmgen: -set %q: must be avx2 or avx512", *set)
	}
	w := &writer{isa: s}
	w.file()
	w.softmax()
	w.gelu()
	if w.name == "AVX2" {
		w.transpose()
	}
	if err := os.WriteFile(*out, w.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}
