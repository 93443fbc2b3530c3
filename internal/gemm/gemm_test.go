package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// each runs a test for every set of this machine, with both forms of packed matrices.
func each(t *testing.T, test func(t *testing.T, s *Set)) {
	for _, s := range Sets() {
		t.Run(s.Name(), func(t *testing.T) { test(t, s) })
		t.Run(s.Name()+" "+s.Halves().Layout(), func(t *testing.T) { test(t, s.Halves()) })
	}
}

func random(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// product is a random product with what lies around its matrices.
type product struct {
	Args
	w []float32 // B before packing, row-major
}

// fatal is what rapid and the testing package have in common.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// newProduct makes a product whose rows of A and C lie apart; A ends with its
// last number and C is full of sevens.
func newProduct(t fatal, s *Set, rng *rand.Rand, m, n, k int, bias bool) *product {
	t.Helper()
	p := &product{w: random(rng, k*n)}
	p.Args = Args{M: m, N: n, K: k, LDA: k + rng.IntN(5), LDC: n + rng.IntN(5), B: make([]float32, s.PackedLen(k, n))}
	p.A = random(rng, max(0, (m-1)*p.LDA+k))
	p.C = make([]float32, m*p.LDC)
	for i := range p.C {
		p.C[i] = 7
	}
	if bias {
		p.Bias = random(rng, n)
	}
	if err := s.Pack(p.B, p.w, k, n, false); err != nil {
		t.Fatalf("%v", err)
	}
	for i := range p.w { // what is multiplied
		if s.halves {
			p.w[i] = math.Float32frombits(half(p.w[i]))
		}
	}
	return p
}

func (p *product) run(t fatal, s *Set) {
	t.Helper()
	if err := s.Run(&p.Args, 0, s.Blocks(p.M, p.N, p.K)); err != nil {
		t.Fatalf("%v", err)
	}
}

// chain is the definition of element i, j: one fused multiply-add per k.
func (p *product) chain(i, j int) float32 {
	var sum float32
	if p.Bias != nil {
		sum = p.Bias[j]
	}
	for k := range p.K {
		sum = fma32(p.A[i*p.LDA+k], p.w[k*p.N+j], sum)
	}
	return sum
}

// same compares bits; any two NaN are the same.
func same(x, y float32) bool {
	return math.Float32bits(x) == math.Float32bits(y) || (x != x && y != y)
}

// checkRow compares a row of C, and what lies behind it, with want.
func checkRow(t fatal, x *Args, i int, want []float32) {
	t.Helper()
	for j := range x.LDC {
		expected := float32(7)
		if j < x.N {
			expected = want[j]
		}
		if got := x.C[i*x.LDC+j]; !same(got, expected) {
			t.Fatalf("%d x %d x %d: element %d, %d is %v (%#x), want %v (%#x)", x.M, x.N, x.K, i, j,
				got, math.Float32bits(got), expected, math.Float32bits(expected))
		}
	}
}

// E8: each element is the chain of its own row and column, whatever the shape,
// the instruction set and the place of the element; nothing else is written.
func TestElementsAreChains(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rapid.Check(t, func(t *rapid.T) {
			m, n, k := rapid.IntRange(0, 40).Draw(t, "m"), rapid.IntRange(0, 150).Draw(t, "n"), rapid.IntRange(0, 700).Draw(t, "k")
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			p := newProduct(t, s, rng, m, n, k, rapid.Bool().Draw(t, "bias"))
			p.run(t, s)
			for range min(m*n, 80) { // a sample: the chain is slow
				i, j := rng.IntN(m), rng.IntN(n)
				if got, want := p.C[i*p.LDC+j], p.chain(i, j); !same(got, want) {
					t.Fatalf("element %d, %d is %v, its chain gives %v", i, j, got, want)
				}
			}
			for i := range m {
				for j := n; j < p.LDC; j++ {
					if p.C[i*p.LDC+j] != 7 {
						t.Fatalf("row %d was written behind its end", i)
					}
				}
			}
		})
	})
}

// E8 for every kernel: each number of rows with ragged and whole panels, and
// K short of, at and past the unrolled loop.
func TestEveryTile(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(1, 2))
		for m := 1; m <= 2*s.maxRows+1; m++ {
			for _, n := range []int{1, s.width - 1, s.width, 4*s.width + 3, 9 * s.width} {
				for _, k := range []int{0, 1, 3, 4, 9, depth + 5} {
					p := newProduct(t, s, rng, m, n, k, k%2 == 1)
					p.run(t, s)
					for i := range m {
						for _, j := range []int{0, n / 2, n - 1} {
							if got, want := p.C[i*p.LDC+j], p.chain(i, j); !same(got, want) {
								t.Fatalf("%d x %d x %d: element %d, %d is %v, its chain gives %v", m, n, k, i, j, got, want)
							}
						}
					}
				}
			}
		}
	})
}

// E8: a row alone has the bits it has in company, in any slicing of the blocks.
func TestCompanyAndSlicing(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(3, 4))
		m, n, k := 45, 5*s.width+3, 2*depth+17
		p := newProduct(t, s, rng, m, n, k, true)
		p.run(t, s)
		for i := range m {
			alone := p.Args
			alone.M, alone.A, alone.C = 1, p.A[i*p.LDA:][:k], make([]float32, p.LDC)
			for j := range alone.C {
				alone.C[j] = 7
			}
			if err := s.Run(&alone, 0, s.Blocks(1, n, k)); err != nil {
				t.Fatal(err)
			}
			checkRow(t, &p.Args, i, alone.C)
		}

		// Large enough for a grid in both directions.
		m, n, k = 2*rowsMost+5, 9*s.width-1, 300
		if s.kind == generic {
			m = rowsMost + 5
		}
		p = newProduct(t, s, rng, m, n, k, false)
		p.run(t, s)
		whole := append([]float32(nil), p.C...)
		blocks := s.Blocks(m, n, k)
		if g := s.gridOf(m, n, k); g.rows < 2 || (g.panels < 2 && s.kind != generic) {
			t.Fatalf("the grid is %+v: too small to test with", g)
		}
		clear(p.C)
		for _, b := range rng.Perm(blocks) {
			if err := s.Run(&p.Args, b, b+1); err != nil {
				t.Fatal(err)
			}
		}
		for i := range m {
			for j := range n {
				if at := i*p.LDC + j; !same(p.C[at], whole[at]) {
					t.Fatalf("block by block, element %d, %d is %v, not %v", i, j, p.C[at], whole[at])
				}
			}
		}
	})
}

// E8: a product whose rows are gone over slice by slice, copied or not, has the
// chains of any other, whole or block by block.
func TestSlices(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(5, 6))
		for _, c := range []struct{ m, n, k, lda int }{
			{rowsMost + 9, 6*s.width + 3, 2*depth + 101, 2*depth + 104}, // deep: copied, but with AVX2
			{20, 2*s.width + 1, 2*depth + 1, 2*depth + 1},               // deep, too few panels to copy
			{rowsMost + 9, 6*s.width + 3, 3*depth + 101, 3*depth + 104}, // deep with AVX2, too
			{rowsMost + 9, 6*s.width + 3, 4 * depth, 4 * depth},         // deep, and rows that collide
			{37, 5*s.width - 1, depth + 30, 1024},                       // rows that collide
			{33, s.width, 3 * depth, 2048},                              // both, one panel
		} {
			p := newProduct(t, s, rng, c.m, c.n, c.k, true)
			p.LDA = c.lda
			p.A = random(rng, (c.m-1)*c.lda+c.k)
			p.run(t, s)
			for range 60 {
				i, j := rng.IntN(c.m), rng.IntN(c.n)
				if got, want := p.C[i*p.LDC+j], p.chain(i, j); !same(got, want) {
					t.Fatalf("%+v: element %d, %d is %v, its chain gives %v", c, i, j, got, want)
				}
			}
			whole := append([]float32(nil), p.C...)
			clear(p.C)
			for blocks, b := s.Blocks(c.m, c.n, c.k), 0; b < blocks; {
				end := min(blocks, b+1+rng.IntN(5))
				if err := s.Run(&p.Args, b, end); err != nil {
					t.Fatal(err)
				}
				b = end
			}
			for i := range c.m {
				for j := range c.n {
					if at := i*p.LDC + j; !same(p.C[at], whole[at]) {
						t.Fatalf("%+v: run by run, element %d, %d is %v, not %v", c, i, j, p.C[at], whole[at])
					}
				}
			}
		}
	})
}

// C += A·B goes on with the chains: a product cut along K has the bits of the
// whole one.
func TestAccumulate(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(5, 6))
		m, n, k, cut := 9, 2*s.width+5, 100, 37
		p := newProduct(t, s, rng, m, n, k, true)
		p.run(t, s)
		half := p.Args
		half.C = make([]float32, len(p.C))
		for _, part := range [][2]int{{0, cut}, {cut, k}} {
			from, to := part[0], part[1]
			half.K, half.A = to-from, p.A[from:]
			half.B = make([]float32, s.PackedLen(to-from, n))
			if err := s.Pack(half.B, p.w[from*n:to*n], to-from, n, false); err != nil {
				t.Fatal(err)
			}
			if err := s.Run(&half, 0, s.Blocks(m, n, to-from)); err != nil {
				t.Fatal(err)
			}
			half.Bias, half.Accumulate = nil, true
		}
		for i := range m {
			checkRow(t, &p.Args, i, half.C[i*p.LDC:][:n])
		}
	})
}

// NaN and infinities stay in their rows and columns.
func TestSpecialValues(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(7, 8))
		inf := float32(math.Inf(1))
		m, n, k := 17, 3*s.width-1, 40
		p := newProduct(t, s, rng, m, n, k, false)
		p.A[2*p.LDA+3] = float32(math.NaN())
		p.A[5*p.LDA] = inf
		p.w[7*n+n-1] = -inf                                           // the last column
		p.A[6*p.LDA+7] = 0                                            // 0 * -inf
		p.A[8*p.LDA] = math.MaxFloat32                                // overflows in the middle of the chain
		p.A[9*p.LDA], p.A[9*p.LDA+1] = math.SmallestNonzeroFloat32, 0 // goes below the normal numbers
		if err := s.Pack(p.B, p.w, k, n, false); err != nil {
			t.Fatal(err)
		}
		p.run(t, s)
		for i := range m {
			want := make([]float32, n)
			for j := range want {
				want[j] = p.chain(i, j)
			}
			checkRow(t, &p.Args, i, want)
			nan := p.C[i*p.LDC] != p.C[i*p.LDC]
			if nan != (i == 2) {
				t.Fatalf("row %d begins with %v", i, p.C[i*p.LDC])
			}
		}
		if last := p.C[6*p.LDC+n-1]; last == last {
			t.Errorf("0 * inf gave %v", last)
		}
	})
}

// The chain is close to the product in float64: the bound is that of K
// roundings of sums of products around 1.
func TestAgainstFloat64(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rapid.Check(t, func(t *rapid.T) {
			m, n, k := rapid.IntRange(1, 20).Draw(t, "m"), rapid.IntRange(1, 70).Draw(t, "n"), rapid.IntRange(1, 300).Draw(t, "k")
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			p := newProduct(t, s, rng, m, n, k, true)
			p.run(t, s)
			for i := range m {
				for j := range n {
					want, size := float64(p.Bias[j]), math.Abs(float64(p.Bias[j]))
					for l := range k {
						term := float64(p.A[i*p.LDA+l]) * float64(p.w[l*n+j])
						want, size = want+term, size+math.Abs(term)
					}
					if got := float64(p.C[i*p.LDC+j]); math.Abs(got-want) > size*float64(k)*0x1p-24 {
						t.Fatalf("element %d, %d is %v, want %v", i, j, got, want)
					}
				}
			}
		})
	})
}

// ExampleSet_Run multiplies by a packed matrix.
func ExampleSet_Run() {
	s := Best()
	w := []float32{1, 2, 3, 4, 5, 6} // 2 x 3
	b := make([]float32, s.PackedLen(2, 3))
	if err := s.Pack(b, w, 2, 3, false); err != nil {
		panic(err)
	}
	x := Args{M: 1, N: 3, K: 2, A: []float32{10, 1}, LDA: 2, B: b, C: make([]float32, 3), LDC: 3, Bias: []float32{.5, .5, .5}}
	if err := s.Run(&x, 0, s.Blocks(1, 3, 2)); err != nil {
		panic(err)
	}
	fmt.Println(x.C)
	// Output: [14.5 25.5 36.5]
}
