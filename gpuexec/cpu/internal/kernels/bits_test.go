package kernels_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// TestCutsKeepBits: however a launch is cut into calls, the result's bits are
// the same (E4, E8).
func TestCutsKeepBits(t *testing.T) {
	e := openEngine(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	for n, spec := range specs(seed) {
		l := newLaunch(t, e, spec, seed+uint64(n))
		l.run(t)
		want := l.output()
		l.fill(seed + uint64(n)) // operands anew, in place or not
		var cuts []uint32
		for range r.IntN(4) {
			cuts = append(cuts, r.Uint32N(spec.Blocks()+1))
		}
		slices.Sort(cuts)
		l.run(t, cuts...)
		if !slices.Equal(l.output(), want) {
			t.Fatalf("seed %d: %s cut at %d differs", seed, spec, cuts)
		}
	}
}

// TestInPlace: an operand marked InPlace may be the result.
func TestInPlace(t *testing.T) {
	e := openEngine(t)
	for n, spec := range specs(3) {
		if !slices.ContainsFunc(spec.Params(), func(p kernels.Param) bool { return p.Access == kernels.InPlace }) {
			continue
		}
		l := newLaunch(t, e, spec, uint64(n))
		l.run(t)
		want := l.output()
		l.buffers[len(l.buffers)-1] = l.buffers[0]
		l.run(t)
		if !slices.Equal(l.output(), want) {
			t.Fatalf("%s in place differs", spec)
		}
	}
}

// TestCompanyKeepsBits: a row gives the same bits alone and among others, at any
// place in the batch (E8).
func TestCompanyKeepsBits(t *testing.T) {
	e := openEngine(t)
	for _, width := range []uint32{1, 5, 17, 64, 131} {
		for _, of := range []func(rows uint32) kernels.Spec{
			func(rows uint32) kernels.Spec { return specOf(ops.GELU, rows, width) },
			func(rows uint32) kernels.Spec { return specOf(ops.Tanh, rows, width) },
			func(rows uint32) kernels.Spec { return layerNorm(rows, width, 1e-12) },
			func(rows uint32) kernels.Spec { return specOf(ops.Softmax, 1, 1, rows, width) },
		} {
			const rows = 6 // of no width above, so that softmax masks no row
			many := newLaunch(t, e, of(rows), 9)
			if many.spec.Kind == ops.Softmax {
				many.setInt(1, 0, int32(width))
			}
			many.run(t)
			operands := make([][]float32, len(many.params)-1)
			for b := range operands {
				for i := range int(many.params[b].Bytes / 4) {
					operands[b] = append(operands[b], many.float(b, i))
				}
			}
			want := many.output()
			for row := range rows {
				one := newLaunch(t, e, of(1), 1)
				for b := range operands {
					from := 0
					if b == 0 {
						from = row * int(width)
					}
					for i := range int(one.params[b].Bytes / 4) {
						one.set(b, i, operands[b][from+i])
					}
				}
				one.run(t)
				if !slices.Equal(one.output(), want[row*int(width):(row+1)*int(width)]) {
					t.Fatalf("row %d of %s differs when alone", row, many.spec)
				}
			}
		}
	}
}

// TestPaddingKeepsBits: the valid part of a padded tensor has the bits of the
// tensor without padding, whatever the padding holds (E8).
func TestPaddingKeepsBits(t *testing.T) {
	e := openEngine(t)
	const heads = 2
	for _, n := range []uint32{1, 2, 3, 4, 5, 13, 16, 17, 30, 33} {
		x := make([]float32, heads*n*n)
		r := rand.New(rand.NewPCG(uint64(n), 3))
		for i := range x {
			x[i] = float32(r.NormFloat64() * 3)
		}
		var want []uint32
		for _, padded := range []uint32{n, n + 1, n + 2, n + 3, n + 4, n + 7, 2*n + 16} {
			l := newLaunch(t, e, specOf(ops.Softmax, 2, heads, padded, padded), uint64(padded))
			l.setInt(1, 1, int32(n)) // the second item, the first is something else
			at := func(h, q, k uint32) int { return int(((heads+h)*padded+q)*padded + k) }
			for h := range uint32(heads) {
				for q := range n {
					for k := range n {
						l.set(0, at(h, q, k), x[(h*n+q)*n+k])
					}
				}
			}
			l.run(t)
			bits, got := l.output(), []uint32(nil)
			for h := range uint32(heads) {
				for q := range padded {
					for k := range padded {
						if b := bits[at(h, q, k)]; q < n && k < n {
							got = append(got, b)
						} else if b != 0 {
							t.Fatalf("padding of %s with length %d is not 0", l.spec, n)
						}
					}
				}
			}
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Fatalf("length %d padded to %d differs", n, padded)
			}
		}
	}
}
