package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// reference computes a launch's result in float64, row by row.
func reference(l *launch) []float64 {
	d := [5]int{}
	for i, v := range l.spec.Dims {
		d[i] = int(v)
	}
	last := len(l.buffers) - 1
	y := make([]float64, l.params[last].Bytes/4)
	x := func(buffer, i int) float64 { return float64(l.float(buffer, i)) }
	switch l.spec.Kind {
	case ops.Gather:
		for i := range y {
			y[i] = x(1, l.int(0, i/d[1])*d[1]+i%d[1])
		}
	case ops.Reorder:
		for a := range d[0] {
			for b := range d[1] {
				for c := range d[2] {
					for e := range d[3] {
						y[((a*d[2]+c)*d[1]+b)*d[3]+e] = x(0, ((a*d[1]+b)*d[2]+c)*d[3]+e)
					}
				}
			}
		}
	case ops.Slice:
		for i := range y {
			y[i] = x(0, i/d[2]*d[1]*d[2]+i%d[2])
		}
	case ops.GELU:
		for i := range y {
			y[i] = gelu(x(0, i))
		}
	case ops.Tanh:
		for i := range y {
			y[i] = math.Tanh(x(0, i))
		}
	case ops.Softmax:
		for row := range len(y) / d[3] {
			n := l.int(1, row/(d[1]*d[2]))
			if d[2] == d[3] && row%d[2] >= n {
				continue
			}
			softmax(y[row*d[3]:row*d[3]+n], func(i int) float64 { return x(0, row*d[3]+i) })
		}
	case ops.LayerNorm:
		for row := range d[0] {
			mean, square := 0.0, 0.0
			for i := range d[1] {
				mean += x(0, row*d[1]+i) / float64(d[1])
			}
			for i := range d[1] {
				square += math.Pow(x(0, row*d[1]+i)-mean, 2) / float64(d[1])
			}
			for i := range d[1] {
				y[row*d[1]+i] = (x(0, row*d[1]+i)-mean)/math.Sqrt(square+float64(l.spec.Epsilon))*x(1, i) + x(2, i)
			}
		}
	case ops.Add:
		for i := range y {
			y[i] = x(0, i) + x(1, i/d[1]%d[2]*d[1]+i%d[1])
		}
	}
	return y
}

func gelu(x float64) float64 { return 0.5 * x * math.Erfc(-x/math.Sqrt2) }

func softmax(y []float64, x func(int) float64) {
	top, sum := math.Inf(-1), 0.0
	for i := range y {
		top = max(top, x(i))
	}
	for i := range y {
		y[i] = math.Exp(x(i) - top)
		sum += y[i]
	}
	for i := range y {
		y[i] /= sum
	}
}

// condition is what a layer norm does to the rounding of its input, 1 for other
// kinds: what lies close together loses its digits when the mean is taken off.
func condition(l *launch, i int) float64 {
	if l.spec.Kind != ops.LayerNorm {
		return 1
	}
	width := int(l.spec.Dims[1])
	mean, square, top := 0.0, 0.0, 0.0
	for pass := range 2 {
		for j := range width {
			x := float64(l.float(0, i/width*width+j))
			if top = max(top, math.Abs(x)); pass == 0 {
				mean += x / float64(width)
			} else {
				square += (x - mean) * (x - mean) / float64(width)
			}
		}
	}
	return top / math.Sqrt(square+float64(l.spec.Epsilon)) * math.Abs(float64(l.float(1, i%width)))
}

// specs are every kind at ragged sizes around each vector and strip boundary.
func specs(seed uint64) []kernels.Spec {
	r := rand.New(rand.NewPCG(seed, 1))
	edges := []uint32{1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 48, 63, 65, 130}
	var out []kernels.Spec
	for _, w := range edges {
		rows, batch, heads := 1+r.Uint32N(6), 1+r.Uint32N(4), 1+r.Uint32N(3)
		out = append(out,
			specOf(ops.Gather, rows, w, 1+r.Uint32N(9)),
			specOf(ops.Reorder, batch, rows, heads, w), specOf(ops.Reorder, batch, heads, w, rows),
			specOf(ops.Slice, batch, rows, w),
			specOf(ops.GELU, rows, w), specOf(ops.Tanh, rows, w),
			specOf(ops.Softmax, batch, heads, w, w), specOf(ops.Softmax, batch, heads, rows, w),
			layerNorm(rows, w, 1e-12), layerNorm(rows, w, 1e-5),
			specOf(ops.Add, rows, w, rows), specOf(ops.Add, rows*batch, w, rows), specOf(ops.Add, rows, w, 1))
	}
	return out
}

// TestReference compares every kind with float64 (what the model tolerance of
// 2e-6 on normalised embeddings leaves to a single operation).
func TestReference(t *testing.T) {
	e := openEngine(t)
	seed := rand.Uint64()
	for n, spec := range specs(seed) {
		t.Run(spec.String(), func(t *testing.T) {
			l := newLaunch(t, e, spec, seed+uint64(n))
			want := reference(l)
			l.run(t)
			l.intact(t)
			last := len(l.buffers) - 1
			for i, w := range want {
				got := float64(l.float(last, i))
				if diff := math.Abs(got - w); !(diff <= 1e-6*max(1, math.Abs(w), condition(l, i))) {
					t.Fatalf("seed %d: element %d is %v, want %v", seed, i, got, w)
				}
				if w == 0 && spec.Kind == ops.Softmax && got != 0 {
					t.Fatalf("seed %d: masked element %d is %v", seed, i, got)
				}
			}
		})
	}
}

// each runs a map over xs and gives the results.
func each(t *testing.T, kind ops.Kind, xs []float32) []float32 {
	t.Helper()
	const width = 1024
	l := newLaunch(t, openEngine(t), specOf(kind, uint32(len(xs)+width-1)/width, width), 1)
	for i, x := range xs {
		l.set(0, i, x)
	}
	l.run(t)
	out := make([]float32, len(xs))
	for i := range xs {
		out[i] = l.float(1, i)
	}
	return out
}

// line is n+1 points from lo to hi.
func line(lo, hi float64, n int) []float32 {
	xs := make([]float32, n+1)
	for i := range xs {
		xs[i] = float32(lo + (hi-lo)*float64(i)/float64(n))
	}
	return xs
}

func TestGELUError(t *testing.T) {
	const most = 4e-7
	xs := line(-12, 12, 1<<18)
	for i, got := range each(t, ops.GELU, xs) {
		if d := math.Abs(float64(got) - gelu(float64(xs[i]))); !(d <= most) {
			t.Fatalf("gelu(%v) = %v is off by %g", xs[i], got, d)
		}
	}
}

func TestTanhError(t *testing.T) {
	xs := append(line(-10, 10, 1<<18), line(-1e-3, 1e-3, 1<<12)...)
	for i, got := range each(t, ops.Tanh, xs) {
		want := math.Tanh(float64(xs[i]))
		ulp := float64(math.Nextafter32(float32(math.Abs(want)), 2)) - math.Abs(float64(float32(want)))
		if d := math.Abs(float64(got) - want); !(d <= 3*ulp) {
			t.Fatalf("tanh(%v) = %v is off by %.1f ulp", xs[i], got, d/ulp)
		}
	}
}

// TestExpError measures the exponential where it is visible: a softmax of two
// columns of which one is 0 and the other x gives e^x / (1 + e^x).
func TestExpError(t *testing.T) {
	xs := line(-86, 0, 1<<14)
	l := newLaunch(t, openEngine(t), specOf(ops.Softmax, uint32(len(xs)), 1, 1, 2), 1)
	for i, x := range xs {
		l.set(0, 2*i, x)
		l.set(0, 2*i+1, 0)
		l.setInt(1, i, 2)
	}
	l.run(t)
	for i, x := range xs {
		e := math.Exp(float64(x))
		got, want := float64(l.float(2, 2*i)), e/(1+e)
		if d := math.Abs(got-want) / want; !(d <= 3e-7) {
			t.Fatalf("e^%v comes out off by %g of it", x, d)
		}
	}
}

// TestExtremes: what no healthy model sends must not upset anything else.
func TestExtremes(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	xs := []float32{0, float32(math.Copysign(0, -1)), inf, -inf, nan, 6, -6, 100, -100, math.MaxFloat32, -math.MaxFloat32, 1e-38, -1e-38, 1e-45}
	for i, got := range each(t, ops.GELU, xs) {
		switch x := xs[i]; {
		case x != x && got == got, x >= 6 && got != x, x <= -6 && got != 0, math.Abs(float64(got-x/2)) > 1e-38 && math.Abs(float64(x)) < 1e-30:
			t.Errorf("gelu(%v) = %v", x, got)
		}
	}
	for i, got := range each(t, ops.Tanh, xs) {
		switch x := xs[i]; {
		case x != x && got == got, x >= 100 && got != 1, x <= -100 && got != -1, math.Abs(float64(x)) < 1e-30 && got != x:
			t.Errorf("tanh(%v) = %v", x, got)
		}
	}
	e := openEngine(t)
	for _, c := range []struct {
		x    []float32
		want []float64
	}{
		{[]float32{5}, []float64{1}},
		{[]float32{-1e30}, []float64{1}},
		{[]float32{math.MaxFloat32, -math.MaxFloat32}, []float64{1, 0}},
		{[]float32{3, -inf, 3, -inf, -200}, []float64{0.5, 0, 0.5, 0, 0}},
		{[]float32{1, nan, 1}, []float64{math.NaN(), math.NaN(), math.NaN()}},
	} {
		t.Run(fmt.Sprint("softmax", c.x), func(t *testing.T) {
			l := newLaunch(t, e, specOf(ops.Softmax, 1, 1, 1, uint32(len(c.x))), 1)
			for i, x := range c.x {
				l.set(0, i, x)
			}
			l.setInt(1, 0, int32(len(c.x)))
			l.run(t)
			for i, w := range c.want {
				if got := float64(l.float(2, i)); got != w && (got == got || w == w) {
					t.Errorf("column %d is %v, want %v", i, got, w)
				}
			}
		})
	}
}

// TestFlatRow: a row without any spread divides by epsilon.
func TestFlatRow(t *testing.T) {
	const width = 5
	l := newLaunch(t, openEngine(t), layerNorm(1, width, 1e-12), 1)
	for i := range width {
		l.set(0, i, 0)
	}
	l.run(t)
	for i := range width {
		if got, beta := l.float(3, i), l.float(2, i); got != beta {
			t.Errorf("%v, want %v", got, beta)
		}
	}
}

// TestLengthsOutOfRange: a length that is no length reads nothing foreign.
func TestLengthsOutOfRange(t *testing.T) {
	e := openEngine(t)
	for _, spec := range []kernels.Spec{specOf(ops.Softmax, 3, 2, 7, 7), specOf(ops.Softmax, 3, 2, 2, 7)} {
		l := newLaunch(t, e, spec, 1)
		for i, n := range []int32{0, -1, 1 << 30} {
			l.setInt(1, i, n)
		}
		l.run(t)
		l.intact(t)
		for i := range l.output() {
			x := l.float(2, i)
			if i < len(l.output())/3 && x != 0 || x != x {
				t.Fatalf("%s: element %d is %v", spec, i, x)
			}
		}
	}
}
