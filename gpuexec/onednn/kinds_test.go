package onednn

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

type (
	tensor = primitive.Tensor
	param  = primitive.Param
)

func ints(name string, list ...int64) param    { return param{Name: name, Ints: list} }
func float(name string, list ...float64) param { return param{Name: name, Floats: list} }

func spec(kind, direction, algorithm string, params []param, tensors ...tensor) primitive.Spec {
	return primitive.Spec{Kind: kind, Op: primitive.Operation{Direction: direction, Algorithm: algorithm, Params: params, Tensors: tensors}}
}

// D5: the hints of a forward request's descriptor are the backward one's.
func (r *rig) hinted(s primitive.Spec, forward *primitive.Primitive) primitive.Spec {
	s.Hints = forward.Descriptor().Hints()
	return s
}

func TestPostOps(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k, n = 5, 33, 70
	s := matmul(m, k, n, Dense("f32", k, n))
	s.Attr.PostOps = []primitive.PostOp{
		{Kind: "sum", Scale: 0.5}, {Kind: "eltwise", Algorithm: "gelu_erf"}, {Kind: "binary", Algorithm: "mul", Source: Dense("f32", 1, n)},
		{Kind: "eltwise", Algorithm: "linear", Alpha: 2, Beta: 1},
	}
	if r.is3() {
		s.Attr.PostOps = append(s.Attr.PostOps, primitive.PostOp{Kind: "prelu", Mask: 2})
	}
	src, weights, bias, dst := r.filled(1, Dense("f32", m, k)), r.filled(2, Dense("f32", k, n)), r.filled(3, Dense("f32", 1, n)), r.filled(4, Dense("f32", m, n))
	factor, slope := r.filled(5, Dense("f32", 1, n)), r.filled(6, Dense("f32", 1, n))
	before := wide(Of[float32](dst))
	args := []Arg{{Src, src}, {Weights, weights}, {Bias, bias}, {Dst, dst}, {PostOpSource(2), factor}}
	if r.is3() {
		args = append(args, Arg{PostOpWeights(4), slope})
	}
	r.both(s, args...)
	want := product(Of[float32](src), Of[float32](weights), m, k, n)
	for i := range want {
		x := want[i] + float64(Of[float32](bias)[i%n]) + 0.5*before[i]
		x = 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) * float64(Of[float32](factor)[i%n])
		if want[i] = 2*x + 1; r.is3() && want[i] < 0 {
			want[i] *= float64(Of[float32](slope)[i%n])
		}
	}
	near(t, "product with post-ops", Of[float32](dst), want, 1e-5)
}

func TestQuantised(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k, n = 4, 64, 32
	s := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []tensor{Dense("u8", m, k), Dense("s8", k, n), {}, Dense("f32", m, n)}}}
	s.Attr.ZeroPoints = []primitive.Quant{{Arg: "src"}}
	src, weights, dst, zero := r.memory(Dense("u8", m, k)), r.memory(Dense("s8", k, n)), r.memory(Dense("f32", m, n)), r.memory(Dense("s32", 1))
	a, b := make([]float32, m*k), make([]float32, k*n)
	Of[int32](zero)[0] = 3
	for i := range a {
		Of[uint8](src)[i] = uint8(i % 11)
		a[i] = float32(i%11) - 3
	}
	for i := range b {
		Of[int8](weights)[i] = int8(i%7 - 3)
		b[i] = float32(i%7 - 3)
	}
	args := []Arg{{Src, src}, {Weights, weights}, {Dst, dst}, {ZeroPointsOf(Src), zero}}
	want := product(a, b, m, k, n)
	if r.is3() { // 2.x has scales of another meaning, which are refused
		s.Attr.Scales = []primitive.Quant{{Arg: "src"}, {Arg: "weights", Mask: 2}}
		one, each := r.memory(Dense("f32", 1)), r.filled(7, Dense("f32", n))
		Of[float32](one)[0] = 0.25
		args = append(args, Arg{ScalesOf(Src), one}, Arg{ScalesOf(Weights), each})
		for i := range want {
			want[i] *= 0.25 * float64(Of[float32](each)[i%n])
		}
	}
	r.both(s, args...)
	near(t, "quantised product", Of[float32](dst), want, 1e-5)
}

// E3: zero points of a type of their own are taken in memory of that type, and no other.
func TestZeroPointsOfAType(t *testing.T) {
	r := open1(t, limit.Limit{})
	done := 0
	for _, name := range []string{"u8", "s8"} {
		s := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []tensor{Dense("u8", 2, 16), Dense("s8", 16, 4), {}, Dense("f32", 2, 4)}}}
		s.Attr.ZeroPoints = []primitive.Quant{{Arg: "src", Type: name}}
		if n, err := r.described(&s); n == 0 {
			t.Logf("%s: %v", name, err) // older versions have none
			continue
		}
		done++
		src, weights, dst, zero := r.memory(Dense("u8", 2, 16)), r.memory(Dense("s8", 16, 4)), r.memory(Dense("f32", 2, 4)), r.memory(Dense(name, 1))
		a, b, shift := make([]float32, 32), make([]float32, 64), map[string]int{"u8": 253, "s8": -3}[name] // of one byte
		zero.Bytes()[0] = byte(shift)
		for i := range a {
			Of[uint8](src)[i], a[i] = uint8(i), float32(i-shift)
		}
		for i := range b {
			Of[int8](weights)[i], b[i] = int8(i-30), float32(i-30)
		}
		args := []Arg{{Src, src}, {Weights, weights}, {Dst, dst}, {ZeroPointsOf(Src), zero}}
		r.run(r.kernel(s), args...)
		near(t, name, Of[float32](dst), product(a, b, 2, 16, 4), 1e-5)
		args[3].Memory = r.memory(Dense("s32", 1))
		if err := r.Execute(bg, r.kernel(s), args...); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("zero points of s32 for those of %s: %v, want ErrInvalid", name, err)
		}
	}
	if done == 0 && r.image.newer {
		t.Error("no type was done")
	}
}

func TestEltwise(t *testing.T) {
	r := open1(t, limit.Limit{})
	shape := Dense("f32", 3, 50)
	for _, c := range []struct {
		alg         string
		alpha, beta float64
		f, slope    func(x float64) float64
	}{
		{"relu", 0.1, 0, func(x float64) float64 { return math.Max(x, 0.1*x) }, func(x float64) float64 {
			if x > 0 {
				return 1
			}
			return 0.1
		}},
		{"tanh", 0, 0, math.Tanh, func(x float64) float64 { return 1 - math.Pow(math.Tanh(x), 2) }},
		{"square", 0, 0, func(x float64) float64 { return x * x }, func(x float64) float64 { return 2 * x }},
		{"abs", 0, 0, math.Abs, func(x float64) float64 { return math.Copysign(1, x) }},
		{"linear", 3, -2, func(x float64) float64 { return 3*x - 2 }, func(float64) float64 { return 3 }},
		{"exp", 0, 0, math.Exp, math.Exp},
		{"logistic", 0, 0, logistic, func(x float64) float64 { return logistic(x) * (1 - logistic(x)) }},
		{"swish", 2, 0, func(x float64) float64 { return x * logistic(2*x) }, func(x float64) float64 {
			return logistic(2*x) + 2*x*logistic(2*x)*(1-logistic(2*x))
		}},
		{"gelu_erf", 0, 0, func(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) }, func(x float64) float64 {
			return 0.5*(1+math.Erf(x/math.Sqrt2)) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
		}},
		{"tanh_use_dst_for_bwd", 0, 0, math.Tanh, func(x float64) float64 { return 1 - math.Pow(math.Tanh(x), 2) }},
	} {
		src, dst := r.filled(1, shape), r.memory(shape)
		params := []param{float("alpha", c.alpha), float("beta", c.beta)}
		forward := r.both(spec("eltwise", "forward_training", c.alg, params, shape, shape), Arg{Src, src}, Arg{Dst, dst})
		diffSrc, diffDst := r.memory(shape), r.filled(2, shape)
		data := Arg{Src, src}
		if fromDst[c.alg] != 0 {
			data = Arg{Dst, dst}
		}
		r.both(r.hinted(spec("eltwise", "backward_data", c.alg, params, shape, shape, shape), forward), Arg{DiffSrc, diffSrc}, Arg{DiffDst, diffDst}, data)
		y, dx := make([]float64, 150), make([]float64, 150)
		for i, x := range wide(Of[float32](src)) {
			y[i], dx[i] = c.f(x), float64(Of[float32](diffDst)[i])*c.slope(x)
		}
		near(t, c.alg, Of[float32](dst), y, 1e-5)
		near(t, c.alg+" backward", Of[float32](diffSrc), dx, 1e-5)
	}
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func TestSoftmax(t *testing.T) {
	r := open1(t, limit.Limit{})
	const rows, n = 12, 37
	shape, axis := Dense("f32", rows, n), []param{ints("axis", 1)}
	for _, alg := range []string{"accurate", "log"} {
		src, dst, diffSrc, diffDst := r.filled(1, shape), r.memory(shape), r.memory(shape), r.filled(2, shape)
		forward := r.both(spec("softmax", "forward_training", alg, axis, shape, shape), Arg{Src, src}, Arg{Dst, dst})
		r.both(r.hinted(spec("softmax", "backward_data", alg, axis, shape, shape, shape), forward), Arg{DiffSrc, diffSrc}, Arg{DiffDst, diffDst}, Arg{Dst, dst})
		y, dx := make([]float64, rows*n), make([]float64, rows*n)
		for row := range rows {
			x, g := wide(Of[float32](src)[row*n:][:n]), wide(Of[float32](diffDst)[row*n:][:n])
			sum, dot, all := 0.0, 0.0, 0.0
			for _, v := range x {
				sum += math.Exp(v)
			}
			for i, v := range x {
				dot += g[i] * math.Exp(v) / sum
				all += g[i]
			}
			for i, v := range x {
				p := math.Exp(v) / sum
				y[row*n+i], dx[row*n+i] = p, p*(g[i]-dot)
				if alg == "log" {
					y[row*n+i], dx[row*n+i] = math.Log(p), g[i]-p*all
				}
			}
		}
		near(t, alg, Of[float32](dst), y, 1e-5)
		near(t, alg+" backward", Of[float32](diffSrc), dx, 1e-5)
	}
}

func TestLayerNormalization(t *testing.T) {
	r := open1(t, limit.Limit{})
	const rows, n = 37, 96
	shape, row, stat := Dense("f32", rows, n), Dense("f32", n), Dense("f32", rows)
	params := []param{float("epsilon", 1e-5), {Name: "scale"}, {Name: "shift"}}
	src, dst, mean, variance := r.filled(1, shape), r.memory(shape), r.memory(stat), r.memory(stat)
	scale, shift := r.filled(2, row), r.filled(3, row)
	forward := r.both(spec("layer_normalization", "forward_training", "", params, shape, shape, stat),
		Arg{Src, src}, Arg{Dst, dst}, Arg{Mean, mean}, Arg{Variance, variance}, Arg{Scale, scale}, Arg{Shift, shift})
	y, mu, v := make([]float64, rows*n), make([]float64, rows), make([]float64, rows)
	for i := range rows {
		x := wide(Of[float32](src)[i*n:][:n])
		for _, f := range x {
			mu[i] += f / n
		}
		for _, f := range x {
			v[i] += (f - mu[i]) * (f - mu[i]) / n
		}
		for j, f := range x {
			y[i*n+j] = (f-mu[i])/math.Sqrt(v[i]+1e-5)*float64(Of[float32](scale)[j]) + float64(Of[float32](shift)[j])
		}
	}
	near(t, "layer normalisation", Of[float32](dst), y, 1e-5)
	near(t, "mean", Of[float32](mean), mu, 1e-5)
	near(t, "variance", Of[float32](variance), v, 1e-5)

	// Statistics that are given, in inference.
	again := r.memory(shape)
	r.both(spec("layer_normalization", "inference", "", append(params, param{Name: "global_stats"}), shape, shape, stat),
		Arg{Src, src}, Arg{Dst, again}, Arg{Mean, mean}, Arg{Variance, variance}, Arg{Scale, scale}, Arg{Shift, shift})
	near(t, "with the statistics given", Of[float32](again), y, 1e-5)
	// Statistics that nobody asked for.
	r.both(spec("layer_normalization", "inference", "", params, shape, shape, tensor{}), Arg{Src, src}, Arg{Dst, again}, Arg{Scale, scale}, Arg{Shift, shift})
	near(t, "in inference", Of[float32](again), y, 1e-5)

	diffSrc, diffDst, diffScale, diffShift := r.memory(shape), r.filled(4, shape), r.memory(row), r.memory(row)
	args := []Arg{{DiffSrc, diffSrc}, {DiffDst, diffDst}, {Src, src}, {Mean, mean}, {Variance, variance}, {Scale, scale}, {DiffScale, diffScale}, {DiffShift, diffShift}}
	back := r.hinted(spec("layer_normalization", "backward", "", params, shape, shape, shape, stat), forward)
	if p := r.kernel(back).Descriptor().Native().(*plan); len(p.args) > len(args) { // some versions
		args = append(args, Arg{Shift, shift})
	}
	r.both(back, args...)
	gScale, gShift, dx := make([]float64, n), make([]float64, n), make([]float64, rows*n)
	for i := range rows {
		s := 1 / math.Sqrt(v[i]+1e-5)
		sum, dot := 0.0, 0.0
		for j := range n {
			g, x := float64(Of[float32](diffDst)[i*n+j]), (float64(Of[float32](src)[i*n+j])-mu[i])*s
			gScale[j] += g * x
			gShift[j] += g
			sum += g * float64(Of[float32](scale)[j]) / n
			dot += g * float64(Of[float32](scale)[j]) * x / n
		}
		for j := range n {
			g, x := float64(Of[float32](diffDst)[i*n+j]), (float64(Of[float32](src)[i*n+j])-mu[i])*s
			dx[i*n+j] = s * (g*float64(Of[float32](scale)[j]) - sum - x*dot)
		}
	}
	near(t, "diff_src", Of[float32](diffSrc), dx, 1e-4)
	near(t, "diff_scale", Of[float32](diffScale), gScale, 1e-4)
	near(t, "diff_shift", Of[float32](diffShift), gShift, 1e-4)
}

func TestBinaryAndReduction(t *testing.T) {
	r := open1(t, limit.Limit{})
	const rows, n = 6, 20
	shape, row, column := Dense("f32", rows, n), Dense("f32", 1, n), Dense("f32", rows, 1)
	a, b, dst := r.filled(1, shape), r.filled(2, row), r.memory(shape)
	for alg, f := range map[string]func(a, b float64) float64{
		"add": func(a, b float64) float64 { return a + b }, "mul": func(a, b float64) float64 { return a * b }, "max": math.Max, "min": math.Min,
		"div": func(a, b float64) float64 { return a / b }, "sub": func(a, b float64) float64 { return a - b },
	} {
		r.both(spec("binary", "", alg, nil, shape, row, shape), Arg{Src, a}, Arg{Src1, b}, Arg{Dst, dst})
		want := make([]float64, rows*n)
		for i, x := range wide(Of[float32](a)) {
			want[i] = f(x, float64(Of[float32](b)[i%n]))
		}
		near(t, alg, Of[float32](dst), want, 1e-5)
	}
	out := r.memory(column)
	for alg, f := range map[string]func(row []float64) float64{
		"sum":  func(x []float64) float64 { return fold(x, 0, func(a, b float64) float64 { return a + b }) },
		"mean": func(x []float64) float64 { return fold(x, 0, func(a, b float64) float64 { return a + b }) / n },
		"max":  func(x []float64) float64 { return fold(x, math.Inf(-1), math.Max) },
		"mul":  func(x []float64) float64 { return fold(x, 1, func(a, b float64) float64 { return a * b }) },
		"norm_lp_sum": func(x []float64) float64 {
			return math.Sqrt(fold(x, 0, func(a, b float64) float64 { return a + b*b }) + 0.5)
		},
	} {
		var params []param
		if alg == "norm_lp_sum" {
			params = []param{float("p", 2), float("epsilon", 0.5)}
		}
		r.both(spec("reduction", "", alg, params, shape, column), Arg{Src, a}, Arg{Dst, out})
		want := make([]float64, rows)
		for i := range want {
			want[i] = f(wide(Of[float32](a)[i*n:][:n]))
		}
		near(t, alg, Of[float32](out), want, 1e-5)
	}
}

func fold(list []float64, start float64, f func(a, b float64) float64) float64 {
	for _, x := range list {
		start = f(start, x)
	}
	return start
}

// D4: sum, concat and reorder.
func TestInternalKinds(t *testing.T) {
	r := open1(t, limit.Limit{})
	shape := Dense("f32", 4, 6)
	a, b, dst := r.filled(1, shape), r.filled(2, shape), r.memory(shape)
	sum, err := primitive.Sum([]float64{2, -1}, []tensor{shape, shape, shape})
	if err != nil {
		t.Fatal(err)
	}
	r.both(sum, Arg{Source(0), a}, Arg{Source(1), b}, Arg{Dst, dst})
	want := make([]float64, 24)
	for i := range want {
		want[i] = 2*float64(Of[float32](a)[i]) - float64(Of[float32](b)[i])
	}
	near(t, "sum", Of[float32](dst), want, 1e-6)

	concat, err := primitive.Concat(1, []tensor{shape, shape, Dense("f32", 4, 12)})
	if err != nil {
		t.Fatal(err)
	}
	both := r.memory(Dense("f32", 4, 12))
	r.both(concat, Arg{Source(0), a}, Arg{Source(1), b}, Arg{Dst, both})
	for i, got := range Of[float32](both) {
		from := a
		if i%12 >= 6 {
			from = b
		}
		if got != Of[float32](from)[i/12*6+i%6] {
			t.Fatalf("concat: number %d is %v", i, got)
		}
	}

	turned := tensor{Type: "f32", Dims: []int64{4, 6}, Strides: []int64{1, 4}}
	reorder, err := primitive.Reorder([]tensor{shape, turned})
	if err != nil {
		t.Fatal(err)
	}
	out := r.memory(turned)
	r.both(reorder, Arg{Src, a}, Arg{Dst, out})
	for i, got := range Of[float32](out) {
		if got != Of[float32](a)[i%4*6+i/4] {
			t.Fatalf("reorder: number %d is %v", i, got)
		}
	}
}

// K4: a reorder with zero points that is made can be executed: 2.6 and 3.2 make those by a mask,
// and then refuse each execution.
func TestReorderWithZeroPoints(t *testing.T) {
	r := open1(t, limit.Limit{})
	for _, types := range [][2]string{{"f32", "s8"}, {"s8", "f32"}} {
		for mask := range uint64(3) {
			s := spec("reorder", "", "", nil, Dense(types[0], 4, 8), Dense(types[1], 4, 8))
			s.Attr.ZeroPoints = []primitive.Quant{{Arg: map[bool]string{true: "src", false: "dst"}[types[0] == "s8"], Mask: mask}}
			lease, _, err := r.Primitive(bg, &s, "")
			if err != nil {
				continue
			}
			var args []Arg
			for _, a := range lease.Primitive().Native().(*kernel).plan.args {
				args = append(args, Arg{a.slot, r.memory(a.tensor)})
			}
			r.run(lease.Primitive(), args...)
			lease.End()
		}
	}
}

// K4: what a key has of attributes reaches the library, each at its place.
func TestAttributesReachTheLibrary(t *testing.T) {
	l := need(t, 1)
	im, err := newImage(l.image.lib) // a table of its own, to listen to
	if err != nil {
		t.Fatal(err)
	}
	table, ok := im.tables.(*table3)
	if !ok {
		t.Skip("2.x has few of them")
	}
	var told []string
	tell := func(what string, numbers ...any) int32 {
		told = append(told, what+" "+strings.Trim(fmt.Sprint(numbers...), "[]"))
		return success
	}
	table.PostOpSum = func(_ handle, scale float32, zero, of int32) int32 { return tell("sum", scale, zero, of) }
	table.FPMathInts = func(_ handle, mode, ints int32) int32 { return tell("fpmath", mode, ints) }
	table.Accumulation = func(_ handle, mode int32) int32 { return tell("accumulation", mode) }
	table.Deterministic = func(_ handle, on int32) int32 { return tell("deterministic", on) }
	table.Rounding = func(_ handle, arg, mode int32) int32 { return tell("rounding", arg, mode) }
	table.Scales = func(_ handle, arg, mask, n int32, groups *dims, of int32) int32 {
		return tell("scales", arg, mask, n, groups[0], groups[1], of)
	}
	table.Zeros = func(_ handle, arg, mask, n int32, groups *dims, of int32) int32 {
		return tell("zeros", arg, mask, n, groups[0], groups[1], of)
	}
	mine, err := open(im, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	s := primitive.Spec{Kind: "matmul", Attr: primitive.Attributes{
		FPMath: "f16", FPMathInts: true, Accumulation: "any", Deterministic: true,
		Rounding:   []primitive.Rounding{{Arg: "dst", Mode: "stochastic"}},
		Scales:     []primitive.Quant{{Arg: "weights", Mask: 3, Groups: []int64{32, 1}}},
		ZeroPoints: []primitive.Quant{{Arg: "src", Mask: 2, Groups: []int64{1, 16}}},
		PostOps:    []primitive.PostOp{{Kind: "sum", Scale: 0.5, ZeroPoint: 7, Type: "s8"}},
	}}
	attr, err := mine.attributes(&s)
	if err != nil {
		t.Fatal(err)
	}
	mine.free(mine.c.AttrFree, attr)
	want := []string{"fpmath 2 1", "accumulation 2", "deterministic 1", "rounding 17 1", "scales 33 3 2 32 1 3", "zeros 1 2 2 1 16 4", "sum 0.5 7 5"}
	if !slices.Equal(told, want) {
		t.Errorf("the library was told\n%q, want\n%q", told, want)
	}
}

// E3: groups are those of the last dimensions: a batch before them has values of its own.
func TestGroupsOfTheLastDimensions(t *testing.T) {
	weights := Dense("s8", 2, 64, 32)
	for _, c := range []struct {
		mask uint64
		want int64
	}{{0b111, 2 * 2 * 32}, {0b110, 2 * 32}, {0b010, 2}, {0b001, 2}, {0, 1}} {
		var got int64
		q := primitive.Quant{Arg: "weights", Mask: c.mask, Groups: []int64{32, 1}}
		err := quantArgument(&q, ScalesOf, "f32", map[Slot]*tensor{Weights: &weights}, func(_ Slot, t tensor) { got = t.Dims[0] })
		if err != nil || got != c.want {
			t.Errorf("mask %b: %d values, want %d: %v", c.mask, got, c.want, err)
		}
	}
}
