package gemm

import "golang.org/x/sys/cpu"

//go:generate go run ./asmgen -set avx2 -o avx2_amd64.s
//go:generate go run ./asmgen -set avx512 -o avx512_amd64.s

//go:noescape
func tileAVX2(t *tile)

//go:noescape
func tileAVX512(t *tile)

//go:noescape
func tileHalvesAVX2(t *tile)

//go:noescape
func tileHalvesAVX512(t *tile)

//go:noescape
func transposeAVX2(t *columns)

//go:noescape
func softmaxAVX2(t *rows)

//go:noescape
func geluAVX2(t *vectors)

//go:noescape
func geluAVX512(t *vectors)

//go:noescape
func softmaxAVX512(t *rows)

// native lists the assembly sets that this processor and its operating system
// can run, best first.
func native() []*Set {
	var sets []*Set
	if cpu.X86.HasAVX512F {
		sets = append(sets, &Set{name: "avx512", kind: avx512, width: 32, row: 32, maxRows: 14, inPlace: depth, together: [4]int{0, 4, 3, 2}})
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		sets = append(sets, &Set{name: "avx2", kind: avx2, width: 16, row: 16, maxRows: 6, runs: true, inPlace: 3 * depth, together: [4]int{0, 4, 3, 2}})
	}
	return sets
}

// compute runs the set's kernel. The calls are direct so that t need not move
// to the heap.
func (s *Set) compute(t *tile) {
	switch {
	case s.kind == avx512 && s.halves:
		tileHalvesAVX512(t)
	case s.kind == avx512:
		tileAVX512(t)
	case s.kind == avx2 && s.halves:
		tileHalvesAVX2(t)
	case s.kind == avx2:
		tileAVX2(t)
	default:
		s.computeGeneric(t)
	}
}

// softmax runs the set's kernel, which the portable set does not have.
func (s *Set) softmax(t *rows) {
	if s.kind == avx512 {
		softmaxAVX512(t)
		return
	}
	softmaxAVX2(t)
}

// gelu runs the set's kernel, which the portable set does not have.
func (s *Set) gelu(t *vectors) {
	if s.kind == avx512 {
		geluAVX512(t)
		return
	}
	geluAVX2(t)
}

// transpose runs the kernel of the assembly sets, which all have AVX2.
func (s *Set) transpose(t *columns) { transposeAVX2(t) }
