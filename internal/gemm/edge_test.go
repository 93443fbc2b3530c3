package gemm

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Many goroutines take blocks of one product over one packed matrix: the race
// detector sees the Go parts, the bits show the rest.
func TestSharedMatrix(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(9, 10))
		const m, n, k, workers = 200, 200, 64, 8
		p := newProduct(t, s, rng, m, n, k, true)
		p.run(t, s)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range workers {
			mine := p.Args
			mine.C = make([]float32, len(p.C))
			for i := range mine.C {
				mine.C[i] = 7
			}
			wg.Go(func() {
				<-start
				if err := s.Run(&mine, 0, s.Blocks(m, n, k)); err != nil {
					t.Error(err)
					return
				}
				for i, x := range mine.C {
					if !same(x, p.C[i]) {
						t.Errorf("number %d is %v, not %v", i, x, p.C[i])
						return
					}
				}
			})
		}
		// And all of them on one C, each on its own blocks.
		shared := p.Args
		shared.C = make([]float32, len(p.C))
		blocks := s.Blocks(m, n, k)
		for w := range workers {
			wg.Go(func() {
				<-start
				for b := w; b < blocks; b += workers {
					if err := s.Run(&shared, b, b+1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		close(start)
		wg.Wait()
		for i := range m {
			checkRow(t, &p.Args, i, shared.C[i*p.LDC:][:n])
		}
	})
}

// A Run allocates nothing, ragged edges included.
func TestAllocations(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		p := newProduct(t, s, rand.New(rand.NewPCG(11, 12)), 7, s.width+1, 20, true)
		blocks := s.Blocks(p.M, p.N, p.K)
		if n := testing.AllocsPerRun(50, func() { _ = s.Run(&p.Args, 0, blocks) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

func TestInvalid(t *testing.T) {
	s := Best()
	for name, change := range map[string]func(*Args){
		"negative":       func(x *Args) { x.M = -1 },
		"short A":        func(x *Args) { x.A = x.A[:len(x.A)-1] },
		"short C":        func(x *Args) { x.C = x.C[:x.LDC] },
		"other B":        func(x *Args) { x.B = x.B[:len(x.B)-1] },
		"narrow A":       func(x *Args) { x.LDA = x.K - 1 },
		"narrow C":       func(x *Args) { x.LDC = x.N - 1 },
		"short bias":     func(x *Args) { x.Bias = x.Bias[1:] },
		"two starts":     func(x *Args) { x.Accumulate = true },
		"uncountable":    func(x *Args) { x.LDA = math.MaxInt },
		"uncountable B":  func(x *Args) { x.K, x.LDA = math.MaxInt, math.MaxInt },
		"uncountable B2": func(x *Args) { x.N, x.LDC, x.Bias = math.MaxInt, math.MaxInt, nil },
	} {
		p := newProduct(t, s, rand.New(rand.NewPCG(13, 14)), 3, 5, 4, true)
		change(&p.Args)
		if err := s.Run(&p.Args, 0, 1); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		for _, c := range p.C {
			if c != 7 {
				t.Errorf("%s: C was written", name)
			}
		}
	}
	p := newProduct(t, s, rand.New(rand.NewPCG(13, 14)), 3, 5, 4, true)
	for _, r := range [][2]int{{-1, 1}, {0, 2}, {1, 0}} {
		if err := s.Run(&p.Args, r[0], r[1]); !errors.Is(err, ErrInvalid) {
			t.Errorf("blocks %v: %v", r, err)
		}
	}
	for _, err := range []error{
		s.Pack(make([]float32, 1), []float32{1}, 1, 1, false),
		s.Pack(make([]float32, s.PackedLen(2, 2)), make([]float32, 3), 2, 2, true),
		s.Pack(nil, nil, -1, 1, false),
		s.PackStrided(make([]float32, s.PackedLen(2, 2)), make([]float32, 4), 2, 2, math.MaxInt, 1),
		s.PackStrided(make([]float32, s.PackedLen(2, 2)), make([]float32, 4), 2, 2, 1, -1),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("pack: %v", err)
		}
	}
}

// Every way of describing a source packs to the same numbers, in the promised
// layout.
func TestPack(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rapid.Check(t, func(t *rapid.T) {
			k, n := rapid.IntRange(0, 40).Draw(t, "k"), rapid.IntRange(0, 80).Draw(t, "n")
			pad := rapid.IntRange(0, 3).Draw(t, "pad")
			w := random(rand.New(rand.NewPCG(uint64(k), uint64(n))), k*n)
			want := make([]float32, s.PackedLen(k, n))
			pairs := make([][2]uint32, len(want)) // of halves, low and high
			rs, cs := n+pad, k+pad
			rows, columns := make([]float32, max(0, (k-1)*rs+n)), make([]float32, max(0, (n-1)*cs+k))
			transposed := make([]float32, k*n)
			for i := range k {
				for j := range n {
					to := &want[j/s.width*s.row*k+i*s.row+j%s.row]
					if *to = w[i*n+j]; s.halves { // columns of a panel's first half lie low
						pair := &pairs[j/s.width*s.row*k+i*s.row+j%s.row][j%s.width/s.row]
						*pair = half(w[i*n+j]) >> 16
					}
					rows[i*rs+j], columns[j*cs+i], transposed[j*k+i] = w[i*n+j], w[i*n+j], w[i*n+j]
				}
			}
			for i, p := range pairs {
				if s.halves {
					want[i] = math.Float32frombits(p[1]<<16 | p[0])
				}
			}
			for name, pack := range map[string]func(dst []float32) error{
				"plain":      func(dst []float32) error { return s.Pack(dst, w, k, n, false) },
				"transposed": func(dst []float32) error { return s.Pack(dst, transposed, k, n, true) },
				"rows":       func(dst []float32) error { return s.PackStrided(dst, rows, k, n, rs, 1) },
				"columns":    func(dst []float32) error { return s.PackStrided(dst, columns, k, n, 1, cs) },
			} {
				got := make([]float32, len(want))
				for i := range got {
					got[i] = 7 // the zero columns must be written
				}
				if err := pack(got); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for i := range want {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("%s: number %d is %v, want %v", name, i, got[i], want[i])
					}
				}
			}
		})
	})
}

// fma32 rounds once: compared with the exact value, held in big enough integers
// by choosing short significands, and at known double roundings.
func TestFMA32(t *testing.T) {
	exact := func(x, y, z float32) float32 { // right where the sum is exact in float64
		return float32(float64(x)*float64(y) + float64(z))
	}
	for _, c := range []struct{ x, y, z, want float32 }{
		{1, 1, 0, 1},
		{1 + 0x1p-12, 1 + 0x1p-12, 0, 1 + 0x1p-11}, // a tie, to even
		// The product is a tie; the addend lies far below and must break it,
		// though float64 cannot hold it beside the product.
		{1 + 0x1p-12, 1 + 0x1p-12, 0x1p-100, 1 + 0x1p-11 + 0x1p-23},
		{1 + 0x1p-12, 1 + 0x1p-12, -0x1p-100, 1 + 0x1p-11},
		{-1 - 0x1p-12, 1 + 0x1p-12, -0x1p-100, -1 - 0x1p-11 - 0x1p-23},
		{0x1p-75, 0x1p-75, 0x1p-149, 0x1p-148}, // one and a half of it, to even
		{0x1p-75, 0x1p-75, 0, 0},               // half of the smallest, to even
		{0x1p-75, 0x1.000002p-75, 0, 0x1p-149}, // just above half
		{math.MaxFloat32, 2, -math.MaxFloat32, math.MaxFloat32},
	} {
		if got := fma32(c.x, c.y, c.z); !same(got, c.want) {
			t.Errorf("%v * %v + %v = %v, want %v", c.x, c.y, c.z, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		short := rapid.Map(rapid.IntRange(-4096, 4096), func(i int) float32 { return float32(i) / 64 })
		x, y, z := short.Draw(t, "x"), short.Draw(t, "y"), short.Draw(t, "z")
		if got, want := fma32(x, y, z), exact(x, y, z); got != want {
			t.Fatalf("%v * %v + %v = %v, want %v", x, y, z, got, want)
		}
	})
}

// Every bit pattern may come: the portable chain and the assembly agree.
func FuzzBits(f *testing.F) {
	f.Add(uint32(0x3f800800), uint32(0x3f800800), uint32(0x0d800000))
	f.Add(uint32(0x1a000000), uint32(0x1a000001), uint32(0x80000001))
	f.Add(uint32(0x7f7fffff), uint32(0x40000000), uint32(0xff7fffff))
	f.Fuzz(func(t *testing.T, x, y, z uint32) {
		a, w, bias := math.Float32frombits(x), math.Float32frombits(y), math.Float32frombits(z)
		want := fma32(a, w, bias)
		for _, s := range Sets() {
			b := make([]float32, s.PackedLen(1, 1))
			if err := s.Pack(b, []float32{w}, 1, 1, false); err != nil {
				t.Fatal(err)
			}
			c := Args{M: 1, N: 1, K: 1, A: []float32{a}, LDA: 1, B: b, C: make([]float32, 1), LDC: 1, Bias: []float32{bias}}
			if err := s.Run(&c, 0, 1); err != nil {
				t.Fatal(err)
			}
			if !same(c.C[0], want) {
				t.Fatalf("%s: %v * %v + %v = %v, fma32 gives %v", s.Name(), a, w, bias, c.C[0], want)
			}
		}
	})
}
