package gemm

// tile is what a kernel computes: rows x panels*width numbers of C, each
//
//	start + a[0]*b[0] + a[1]*b[1] + ... + a[k-1]*b[k-1]
//
// in that order, with one rounding per term. Strides are in bytes. A kernel
// reads and writes whole panels: ragged columns are the caller's concern.
type tile struct {
	a     *float32 // first row
	b     *float32 // first panel, at its first k
	c     *float32
	start *float32 // what the chains start with: bias, zeros or C itself
	next  uintptr  // address of lines that will be needed soon: only prefetched, so it may lie anywhere
	lda   uintptr
	ldb   uintptr // from panel to panel
	ldc   uintptr
	lds   uintptr // of start; 0 repeats one row
	k     uintptr
	// nextstep is how far next moves in four values of k.
	nextstep uintptr
	rows     uintptr
	panels   uintptr
	// tiles is how many such tiles a call computes, each below the one before, of one panel
	// where there are several. A kernel that computes several changes a, c, start, next and tiles.
	tiles uintptr
}
