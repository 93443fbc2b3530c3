package gemm

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guarded gives n numbers that end at a page which must not be touched.
func guarded(t *testing.T, n int) []float32 {
	t.Helper()
	page := unix.Getpagesize()
	size := (4*n + page - 1) / page * page
	bytes, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(bytes); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mprotect(bytes[size:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&bytes[size-4*n])), n)
}

// Nothing behind A, B, C and the bias is read or written: a touch of the page
// after each would end the process.
func TestGuardPages(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(15, 16))
		for m := 1; m <= s.maxRows+1; m++ {
			for _, n := range []int{1, s.width, 4*s.width + 1} {
				const k = 9
				p := newProduct(t, s, rng, m, n, k, true)
				p.LDA, p.LDC = k, n
				inside := p.Args
				inside.A, inside.B = guarded(t, m*k), guarded(t, len(p.B))
				inside.C, inside.Bias = guarded(t, m*n), guarded(t, n)
				copy(inside.A, p.A)
				copy(inside.B, p.B)
				copy(inside.Bias, p.Bias)
				p.A = inside.A
				if err := s.Run(&inside, 0, s.Blocks(m, n, k)); err != nil {
					t.Fatal(err)
				}
				for i := range m {
					for j := range n {
						if got, want := inside.C[i*n+j], p.chain(i, j); !same(got, want) {
							t.Fatalf("%d x %d: element %d, %d is %v, want %v", m, n, i, j, got, want)
						}
					}
				}
			}
		}
	})
}
