package gemm

import (
	"sync"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
)

const (
	// blockFlops bounds the work of a block: 0.15 ms at 60 GFLOP/s.
	blockFlops = 8 << 20
	// groupBytes is how much of A a block goes over again for each of its
	// panels: half of a usual second-level cache.
	groupBytes = 512 << 10
	// depth is how many values of k a kernel call goes through at most where A is copied, or
	// the set has no depth of its own. A panel's part of that depth stays in the first-level
	// cache while the rows pass by. Cutting K leaves the chains as they are: the next call goes
	// on with the partial sums in C, and a float32 in memory is the float32 of a register.
	depth = 512
	// depthSideBySide is depth where several panels are read at once: deep
	// enough to read all of them to their ends.
	depthSideBySide = 8 << 10
	// rowsMost bounds the rows of a block.
	rowsMost = 192
)

// deep reports whether the rows of A are too long for the second-level cache to
// hold many of them. Then a slice of A is gone over for all panels before the next
// slice, so that B comes from memory once for all rows.
func (s *Set) deep(k int) bool { return k > max(2*depth, s.inPlace) }

// grid is how a product is cut into blocks: rows x panels of them, numbered
// row by row, so that neighbours share rows of A.
type grid struct {
	rows, panels       int // blocks in each direction
	blockRows, inBlock int // rows and panels of a block
}

// gridOf cuts by the sizes alone. It does not bear on any result.
func (s *Set) gridOf(m, n, k int) grid {
	if m <= 0 || n <= 0 {
		return grid{}
	}
	k = max(k, 1)
	most := min(groupBytes/4/k, blockFlops/2/s.width/k)
	if s.deep(k) {
		most = groupBytes / 4 / even(k, s.inPlace)
	}
	most = max(s.maxRows, min(rowsMost-rowsMost%s.maxRows, most)) // also after each is rounded to whole tiles
	groups := (m + most - 1) / most
	each := (m + groups - 1) / groups
	if groups > 1 { // whole tiles
		each = (each + s.maxRows - 1) / s.maxRows * s.maxRows
		groups = (m + each - 1) / each
	}
	panels := max(1, blockFlops/2/(each*s.width)/k)
	if step := s.step(each); panels > step {
		panels -= panels % step
	}
	panels = min(panels, s.panels(n))
	return grid{rows: groups, panels: (s.panels(n) + panels - 1) / panels, blockRows: each, inBlock: panels}
}

// Blocks is how many blocks an M x N x K product is cut into. Blocks are
// independent of each other; each is about 0.1 ms of work on one core (longer
// where K is), and neighbours share rows, so workers should take runs of them.
// None for an empty C.
func (s *Set) Blocks(m, n, k int) int {
	g := s.gridOf(m, n, k)
	return g.rows * g.panels
}

// Run computes the blocks [first, end) of Blocks(M, N, K). The bits of C depend
// neither on the blocks a call is given nor on the order of calls. The
// goroutine can be preempted between kernel calls, which last microseconds.
// Arguments that do not fit are an ErrInvalid, with C untouched.
func (s *Set) Run(x *Args, first, end int) error {
	if err := s.Validate(x); err != nil {
		return err
	}
	g := s.gridOf(x.M, x.N, x.K)
	if first < 0 || end < first || end > g.rows*g.panels {
		return fault.Invalidf("gemm: run", "blocks [%d, %d) of %d", first, end, g.rows*g.panels)
	}
	for first < end { // all blocks of one group of rows at once
		group, panel := first/g.panels, first%g.panels
		last := min(end, (group+1)*g.panels)
		row, panels := group*g.blockRows, (last-first)*g.inBlock
		s.block(x, row, min(row+g.blockRows, x.M), panel*g.inBlock, min(panel*g.inBlock+panels, s.panels(x.N)))
		first = last
	}
	return nil
}

// heights cuts rows into the fewest tiles of even height: the first `tall`
// have h rows, the others h-1.
func (s *Set) heights(rows int) (tiles, h, tall int) {
	tiles = (rows + s.maxRows - 1) / s.maxRows
	h = (rows + tiles - 1) / tiles
	return tiles, h, rows - tiles*(h-1)
}

// step is how many panels are gone through side by side: more than one only
// where the rows make tiles of few rows.
func (s *Set) step(rows int) int {
	tiles, h, tall := s.heights(rows)
	if tall < tiles {
		h--
	}
	if h < len(s.together) {
		return s.together[h]
	}
	return 1
}

// zeros starts the chains of a product without bias.
var zeros [4 * 32]float32

// block computes rows [r0, r1) of panels [p0, p1). It reads B in the order in
// which it lies in memory, but for a few panels side by side, or for slices of
// deep products.
func (s *Set) block(x *Args, r0, r1, p0, p1 int) {
	step, most := s.step(r1-r0), s.inPlace
	if step > 1 {
		most = depthSideBySide
	}
	if step == 1 && (s.deep(x.K) || collide(x.LDA) && x.K > depth) {
		s.slices(x, r0, r1, p0, p1)
		return
	}
	direct := slice{a: x.A, lda: x.LDA}
	for p := p0; p < p1; p += step {
		for k0 := 0; ; {
			k1 := min(k0+most, x.K)
			behind := p*s.row*x.K + k1*s.row*min(step, p1-p) // the next strip, if K is not cut or a strip is one panel
			s.strip(x, direct, r0, r1, p, min(p+step, p1), k0, k1, behind)
			if k0 = k1; k0 == x.K {
				break
			}
		}
	}
}

// slice is the part of A that a strip reads, in place or copied: row r at k lies at
// a[(r-r0)*lda + k-k0].
type slice struct {
	a   []float32
	lda int
	r0  int
	k0  int
}

// collide reports whether rows that many numbers apart fall into the same places
// of the first-level cache, which has room for fewer of them than a tile has.
func collide(lda int) bool { return lda%1024 == 0 }

// even cuts n into the fewest parts of at most so many, and gives the size of all but the last.
func even(n, most int) int {
	parts := (n + most - 1) / most
	return (n + parts - 1) / parts
}

// slices computes a block slice by slice of A. Where rows would collide it copies the slice:
// its rows then lie close together. So it does where many panels go over a slice, but for a set
// of few rows, whose long slices in place are quicker.
func (s *Set) slices(x *Args, r0, r1, p0, p1 int) {
	part, most := slice{a: x.A, lda: x.LDA}, s.inPlace
	copied := collide(x.LDA) || s.inPlace == depth && p1-p0 >= 4
	if copied {
		kept := copies.Get().(*[]float32)
		defer copies.Put(kept)
		part, most = slice{a: *kept, lda: depth + 16, r0: r0}, depth // an odd number of cache lines apart
	}
	each := even(x.K, most)
	for k0 := 0; k0 < x.K; k0 += each {
		k1 := min(k0+each, x.K)
		if copied {
			part.k0 = k0
			for r := r0; r < r1; r++ {
				copy(part.a[(r-r0)*part.lda:], x.A[r*x.LDA+k0:r*x.LDA+k1])
			}
		}
		for p := p0; p < p1; p++ {
			behind := (p+1)*s.row*x.K + k0*s.row
			if p+1 == p1 {
				behind = p0*s.row*x.K + k1*s.row
			}
			s.strip(x, part, r0, r1, p, p+1, k0, k1, behind)
		}
	}
}

// copies are the buffers of slices that no call uses at the moment.
var copies = sync.Pool{New: func() any {
	kept := make([]float32, rowsMost*(depth+16))
	return &kept
}}

// strip goes down the rows with a few panels at some values of k. The numbers of B
// from behind on are what the next strip reads.
func (s *Set) strip(x *Args, from slice, r0, r1, p0, p1, k0, k1, behind int) {
	tiles, h, tall := s.heights(r1 - r0)
	for i, r := 0, r0; i < tiles; {
		rows, run := h, tall-i // of one height, one below another
		if i >= tall {
			rows, run = h-1, tiles-i
		}
		together := 1
		if rows < len(s.together) {
			together = s.together[rows]
		}
		if !s.runs || together > 1 || p1*s.width > x.N {
			run = 1
		}
		for p := p0; p < p1; {
			n := 1
			if p+together <= p1 && (p+together)*s.width <= x.N {
				n = together
			}
			t := tile{k: uintptr(k1 - k0), rows: uintptr(rows), panels: uintptr(n), tiles: uintptr(run)}
			if k1 > k0 {
				t.a, t.b = &from.a[(r-from.r0)*from.lda+k0-from.k0], &x.B[p*s.row*x.K+k0*s.row]
				t.lda = uintptr(4 * from.lda)
				s.prefetch(&t, x.B, behind, p-p0, p1-p0, i, tiles)
			}
			s.tile(x, &t, r, p, x.Accumulate || k0 > 0)
			p += n
		}
		i += run
		r += run * rows
	}
}

// prefetch gives a call its even share of what the next strip reads of B. The
// processor's own prefetching would rest from the strip's second tile to its last
// and then start anew. The call's panels are number `done` and on of the strip's
// `wide`, in tile i of n.
func (s *Set) prefetch(t *tile, b []float32, behind, done, wide, i, n int) {
	row := uintptr(4 * s.row)
	share := uintptr(wide*i+done) * row * t.k / uintptr(n)
	t.next = uintptr(unsafe.Pointer(unsafe.SliceData(b))) + uintptr(4*behind) + share
	t.nextstep = (4*row*t.panels + uintptr(n) - 1) / uintptr(n) // in a run of tiles its shares follow each other
}

// tile calls the kernel for the tile at row r and panel p. Only a single panel
// may be the ragged last one: its chains start from and end in a buffer of
// whole panels. A tile that is not the first in its chains goes on from C.
func (s *Set) tile(x *Args, t *tile, r, p int, goesOn bool) {
	column := p * s.width
	t.ldb, t.ldc = uintptr(4*s.row*x.K), uintptr(4*x.LDC)
	if columns := x.N - column; columns < s.width {
		s.ragged(x, *t, r, column, columns, goesOn)
		return
	}
	t.c = &x.C[r*x.LDC+column]
	switch {
	case goesOn:
		t.start, t.lds = t.c, t.ldc
	case x.Bias != nil:
		t.start = &x.Bias[column]
	default:
		t.start = &zeros[0]
	}
	s.compute(t)
}

// ragged computes a tile that has fewer columns than a panel.
func (s *Set) ragged(x *Args, t tile, r, column, columns int, goesOn bool) {
	var buffer [14 * 32]float32
	rows := int(t.rows)
	for i := range rows {
		switch {
		case goesOn:
			copy(buffer[i*s.width:], x.C[(r+i)*x.LDC+column:][:columns])
		case x.Bias != nil:
			copy(buffer[i*s.width:], x.Bias[column:][:columns])
		}
	}
	t.c, t.ldc = &buffer[0], uintptr(4*s.width)
	t.start, t.lds = t.c, t.ldc
	s.compute(&t)
	for i := range rows {
		copy(x.C[(r+i)*x.LDC+column:][:columns], buffer[i*s.width:])
	}
}
