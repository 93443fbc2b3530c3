package wasm_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"
)

// host runs functions on one page of memory that it exports.
type host struct {
	runtime wazero.Runtime
	memory  api.Memory
}

func newHost(t *testing.T) host {
	t.Helper()
	r := wazero.NewRuntime(t.Context())
	t.Cleanup(func() { r.Close(context.Background()) })
	m := wasm.NewModule()
	m.DefineMemory("memory", 1)
	mod, err := r.InstantiateWithConfig(t.Context(), m.Encode(), wazero.NewModuleConfig().WithName("host"))
	if err != nil {
		t.Fatal(err)
	}
	return host{r, mod.Memory()}
}

// run builds a function, calls it and gives its error.
func (h host) run(t *testing.T, build func(f *wasm.Func, args []wasm.Var[wasm.I32]), args ...uint64) error {
	t.Helper()
	m := wasm.NewModule()
	m.ImportMemory("host", "memory", 1)
	f, params := m.Func("f", len(args))
	build(f, params)
	mod, err := h.runtime.InstantiateWithConfig(t.Context(), m.Encode(), wazero.NewModuleConfig().WithName(""))
	if err != nil {
		t.Fatal(err)
	}
	defer mod.Close(t.Context())
	_, err = mod.ExportedFunction("f").Call(t.Context(), args...)
	return err
}

func (h host) words(t *testing.T, at, n uint32) []uint32 {
	t.Helper()
	out := make([]uint32, n)
	for i := range out {
		v, ok := h.memory.ReadUint32Le(at + 4*uint32(i))
		if !ok {
			t.Fatal("out of memory")
		}
		out[i] = v
	}
	return out
}

func bits(xs ...float32) []uint32 {
	out := make([]uint32, len(xs))
	for i, x := range xs {
		out[i] = math.Float32bits(x)
	}
	return out
}

// TestNumbers: what an expression computes is what Go computes.
func TestNumbers(t *testing.T) {
	h := newHost(t)
	const a, b = -7, 3
	ua, ub := uint32(math.MaxUint32-6), uint32(3)
	x, y := wasm.Int32(a), wasm.Int32(b)
	truth := func(v bool) uint32 {
		if v {
			return 1
		}
		return 0
	}
	for name, c := range map[string]struct {
		got  wasm.I32
		want uint32
	}{
		"add": {x.Add(y), ua + ub}, "sub": {x.Sub(y), ua - ub}, "mul": {x.Mul(y), ua * ub},
		"div": {x.DivU(y), ua / ub}, "rem": {x.RemU(y), ua % ub}, "and": {x.And(y), ua & ub},
		"shl": {x.Shl(5), ua << 5}, "add const": {x.AddConst(-1 << 31), ua + 1<<31}, "add none": {x.AddConst(0), ua},
		"mul const": {x.MulConst(1 << 31), ua << 31}, "mul one": {x.MulConst(1), ua},
		"eq": {x.Eq(x), 1}, "ne": {x.Eq(y), 0}, "lt": {y.LtU(x), truth(ub < ua)}, "not lt": {x.LtU(y), 0},
		"ge": {x.GeU(y), 1}, "ge same": {x.GeU(x), 1}, "min": {x.MinU(y), ub}, "min other": {y.MinU(x), ub},
		"zero": {wasm.Int32(0), 0}, "63": {wasm.Int32(63), 63}, "64": {wasm.Int32(64), 64}, "-64": {wasm.Int32(-64), ^uint32(63)},
		"-65": {wasm.Int32(-65), ^uint32(64)}, "max": {wasm.Uint32(math.MaxUint32), math.MaxUint32}, "min int": {wasm.Int32(math.MinInt32), 1 << 31},
	} {
		if err := h.run(t, func(f *wasm.Func, _ []wasm.Var[wasm.I32]) {
			f.StoreF32x4(wasm.Int32(0), 16, c.got.Splat().Floats(), 4)
		}); err != nil {
			t.Fatal(err)
		}
		if got := h.words(t, 16, 4); got[0] != c.want || got[3] != c.want {
			t.Errorf("%s gives %#x, want %#x", name, got, c.want)
		}
	}
}

func TestFloats(t *testing.T) {
	h := newHost(t)
	const a, b = float32(2.5), float32(-0.3)
	x, y := wasm.Float32(a), wasm.Float32(b)
	for name, c := range map[string]struct {
		got  wasm.F32
		want float32
	}{
		"add": {x.Add(y), a + b}, "sub": {x.Sub(y), a - b}, "mul": {x.Mul(y), a * b}, "div": {x.Div(y), a / b},
		"max": {y.Max(x), a}, "sqrt": {x.Sqrt(), float32(math.Sqrt(float64(a)))},
		"from int": {wasm.Int32(-5).Float(), -5}, "splat": {x.Splat().Lane(3), a},
	} {
		if err := h.run(t, func(f *wasm.Func, _ []wasm.Var[wasm.I32]) { f.StoreF32x4(wasm.Int32(4), 4, c.got.Splat(), 1) }); err != nil {
			t.Fatal(err)
		}
		if got := h.words(t, 8, 1)[0]; got != math.Float32bits(c.want) {
			t.Errorf("%s gives %v, want %v", name, math.Float32frombits(got), c.want)
		}
	}
}

func TestVectors(t *testing.T) {
	h := newHost(t)
	nan := float32(math.NaN())
	a, b := []float32{1, -2, nan, 4}, []float32{3, -5, 7, nan}
	for i := range 4 {
		h.memory.WriteFloat32Le(uint32(4*i), a[i])
		h.memory.WriteFloat32Le(uint32(16+4*i), b[i])
	}
	x, y := wasm.Int32(0).LoadF32x4(0, 4), wasm.Int32(0).LoadF32x4(16, 4)
	lanes := func(op func(a, b float32) float32) []uint32 {
		var out []float32
		for i := range a {
			out = append(out, op(a[i], b[i]))
		}
		return bits(out...)
	}
	const ones = math.MaxUint32
	for name, c := range map[string]struct {
		got  wasm.F32x4
		want []uint32
	}{
		"add":  {x.Add(y), lanes(func(a, b float32) float32 { return a + b })},
		"sub":  {x.Sub(y), lanes(func(a, b float32) float32 { return a - b })},
		"mul":  {x.Mul(y), lanes(func(a, b float32) float32 { return a * b })},
		"div":  {x.Div(y), lanes(func(a, b float32) float32 { return a / b })},
		"pmin": {x.PMin(y), bits(1, -5, nan, 4)}, "pmax": {x.PMax(y), bits(3, -2, nan, 4)},
		"abs": {x.Abs(), bits(1, 2, nan, 4)}, "lt": {x.Lt(y).Floats(), []uint32{ones, 0, 0, 0}},
		"select":   {x.Lt(y).Select(x, y), bits(1, -5, 7, nan)},
		"constant": {wasm.Float32x4(0.1), bits(0.1, 0.1, 0.1, 0.1)},
		"shl":      {wasm.Int32x4(1, 2, -3, 1<<30).Shl(2).Floats(), []uint32{4, 8, ^uint32(11), 0}},
		"int add":  {wasm.Int32x4(1, 2, -3, 4).Add(wasm.Int32x4(1, -2, 3, 5)).Floats(), []uint32{2, 0, 0, 9}},
		"and":      {wasm.Int32x4(6, 0, -1, 1).And(wasm.Int32x4(3, 3, 3, 3)).Floats(), []uint32{2, 0, 3, 1}},
		"andnot":   {wasm.Int32x4(6, 0, -1, 1).AndNot(wasm.Int32x4(3, 3, 3, 3)).Floats(), []uint32{4, 0, ^uint32(3), 0}},
		"or":       {wasm.Int32x4(6, 0, -1, 1).Or(wasm.Int32x4(3, 3, 3, 3)).Floats(), []uint32{7, 3, ones, 3}},
		"int lt":   {wasm.Int32x4(0, 1, 2, -3).LtS(wasm.Int32(2).Splat()).Floats(), []uint32{ones, ones, 0, ones}},
		"bits":     {x.Bits().Floats(), bits(a...)},
		"load 1":   {wasm.Int32(0).LoadF32x4(4, 1), bits(-2, 0, 0, 0)},
		"load 2":   {wasm.Int32(4).LoadF32x4(0, 2), []uint32{math.Float32bits(-2), math.Float32bits(nan), 0, 0}},
		"load 3":   {wasm.Int32(0).LoadF32x4(12, 3), bits(4, 3, -5, 0)},
		"lanes":    {x.Lane(1).Add(x.Lane(3)).Splat(), bits(2, 2, 2, 2)},
	} {
		if err := h.run(t, func(f *wasm.Func, _ []wasm.Var[wasm.I32]) { f.StoreF32x4(wasm.Int32(64), 0, c.got, 4) }); err != nil {
			t.Fatal(err)
		}
		got := h.words(t, 64, 4)
		for i := range got { // which NaN is the machine's affair
			if g := math.Float32frombits(got[i]); g != g && math.Float32frombits(c.want[i]) != math.Float32frombits(c.want[i]) && c.want[i] != ones {
				got[i] = c.want[i]
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s gives %#x, want %#x", name, got, c.want)
		}
	}
}

// TestPartialAccess: a load or store of some lanes touches no byte beyond them.
func TestPartialAccess(t *testing.T) {
	h := newHost(t)
	for lanes := 1; lanes <= 4; lanes++ {
		end := uint32(wasm.PageBytes - 4*lanes)
		for i := range uint32(8) {
			h.memory.WriteUint32Le(256+4*i, 0xdead)
		}
		err := h.run(t, func(f *wasm.Func, args []wasm.Var[wasm.I32]) {
			f.StoreF32x4(wasm.Uint32(end), 0, wasm.Float32x4(float32(lanes)), lanes)
			f.StoreF32x4(args[0].Get(), 0, wasm.Uint32(end).LoadF32x4(0, lanes), lanes)
		}, 256)
		if err != nil {
			t.Fatalf("%d lanes at the end of memory: %v", lanes, err)
		}
		for i, w := range h.words(t, 256, 8) {
			want := uint32(0xdead)
			if i < lanes {
				want = math.Float32bits(float32(lanes))
			}
			if w != want {
				t.Errorf("%d lanes: word %d is %#x", lanes, i, w)
			}
		}
	}
}

// TestControl: loops, branches, both arms of a condition, and traps.
func TestControl(t *testing.T) {
	h := newHost(t)
	build := func(f *wasm.Func, args []wasm.Var[wasm.I32]) {
		n := args[0]
		sum, i := wasm.NewVar(f, wasm.Int32(0)), wasm.NewVar(f, wasm.Int32(0))
		f.Range(i, n.Get(), 2, func() { sum.Set(sum.Get().Add(i.Get())) })
		f.If(n.Get().LtU(wasm.Int32(5)), func() { sum.Set(sum.Get().AddConst(1000)) }, func() { sum.Set(sum.Get().AddConst(2000)) })
		f.Loop(func(again wasm.Label) {
			f.If(sum.Get().LtU(wasm.Int32(3000)), func() {
				sum.Set(sum.Get().AddConst(500))
				again.BranchIf(wasm.Int32(1))
			}, nil)
		})
		f.TrapIf(n.Get().Eq(wasm.Int32(9)))
		f.StoreF32x4(wasm.Int32(0), 0, sum.Get().Splat().Floats(), 1)
	}
	model := func(n int) uint32 {
		sum := 0
		for i := 0; i < n; i += 2 {
			sum += i
		}
		if n < 5 {
			sum += 1000
		} else {
			sum += 2000
		}
		for sum < 3000 {
			sum += 500
		}
		return uint32(sum)
	}
	for n := range 13 {
		err := h.run(t, build, uint64(n))
		if (err != nil) != (n == 9) {
			t.Errorf("n = %d: %v", n, err)
		}
		if got := h.words(t, 0, 1)[0]; n != 9 && got != model(n) {
			t.Errorf("n = %d: %d, want %d", n, got, model(n))
		}
	}
}

// TestLocals: variables of all types keep their values apart and start at zero.
func TestLocals(t *testing.T) {
	h := newHost(t)
	err := h.run(t, func(f *wasm.Func, args []wasm.Var[wasm.I32]) {
		var numbers []wasm.Var[wasm.I32]
		var vectors []wasm.Var[wasm.F32x4]
		zero := wasm.Declare[wasm.F32](f)
		for i := range 200 { // more than one byte of LEB128
			numbers = append(numbers, wasm.NewVar(f, wasm.Int32(int32(i))))
			vectors = append(vectors, wasm.NewVar(f, wasm.Float32x4(float32(i))))
		}
		at := numbers[64].Get().Add(args[0].Get())
		f.StoreF32x4(at, 0, vectors[199].Get().Add(zero.Get().Splat()), 4)
	}, 64)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.words(t, 128, 1)[0]; got != math.Float32bits(199) {
		t.Errorf("%#x", got)
	}
}

// TestAddressesDoNotWrap: a constant offset past the end of memory is an error.
func TestAddressesDoNotWrap(t *testing.T) {
	h := newHost(t)
	err := h.run(t, func(f *wasm.Func, args []wasm.Var[wasm.I32]) {
		f.StoreF32x4(args[0].Get(), 64, wasm.Float32x4(1), 4)
	}, math.MaxUint32-31)
	if err == nil {
		t.Error("wrapped around")
	}
}

// TestEncode pins the smallest modules to the format's bytes.
func TestEncode(t *testing.T) {
	m := wasm.NewModule()
	m.DefineMemory("m", 2)
	want := []byte{0, 'a', 's', 'm', 1, 0, 0, 0, 1, 1, 0, 5, 4, 1, 1, 2, 2, 7, 5, 1, 1, 'm', 2, 0}
	if got := m.Encode(); !slices.Equal(got, want) {
		t.Errorf("% x", got)
	}
	m = wasm.NewModule()
	m.ImportMemory("a", "b", 1)
	f, _ := m.Func("f", 1)
	f.StoreF32x4(wasm.Int32(0), 4, wasm.Float32(1).Splat(), 4)
	want = slices.Concat([]byte{0, 'a', 's', 'm', 1, 0, 0, 0, 1, 5, 1, 0x60, 1, 0x7f, 0, 2, 8, 1, 1, 'a', 1, 'b', 2, 0, 1, 3, 2, 1, 0,
		7, 5, 1, 1, 'f', 0, 0, 10, 17, 1, 15, 0, 0x41, 0, 0x43}, binary.LittleEndian.AppendUint32(nil, math.Float32bits(1)), []byte{0xfd, 0x13, 0xfd, 0x0b, 2, 4, 0x0b})
	if got := m.Encode(); !slices.Equal(got, want) || !slices.Equal(m.Encode(), got) {
		t.Errorf("% x", got)
	}
}

// TestMisuse: what types cannot catch panics where it is written.
func TestMisuse(t *testing.T) {
	for name, misuse := range map[string]func(){
		"two memories":   func() { m := wasm.NewModule(); m.DefineMemory("m", 1); m.ImportMemory("a", "b", 1) },
		"too many pages": func() { wasm.NewModule().DefineMemory("m", 1<<16) },
		"lane 4":         func() { wasm.Float32x4(0).Lane(4) },
		"load of 5":      func() { wasm.Int32(0).LoadF32x4(0, 5) },
		"store of 0":     func() { f, _ := wasm.NewModule().Func("f", 0); f.StoreF32x4(wasm.Int32(0), 0, wasm.Float32x4(0), 0) },
		"branch from out": func() {
			f, _ := wasm.NewModule().Func("f", 0)
			var l wasm.Label
			f.Loop(func(x wasm.Label) { l = x })
			l.BranchIf(wasm.Int32(1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if fmt.Sprint(recover()) == "<nil>" {
					t.Error("went unnoticed")
				}
			}()
			misuse()
		})
	}
}
