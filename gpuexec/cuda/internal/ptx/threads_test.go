package ptx_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/ptx"
)

// madeBy runs a test on what NVRTC made for two kinds of device, which differ in their PTX.
func madeBy(t *testing.T, name string, test func(t *testing.T, e *ptx.Entry)) {
	for _, text := range []string{"threads.75.ptx", "threads.100.ptx"} {
		t.Run(text, func(t *testing.T) { test(t, entry(t, file(t, text), name)) })
	}
}

// launch runs a grid in x, and wants no fault.
func launch(t *testing.T, e *ptx.Entry, m memory, blocks, threads, dynamic uint32, values ...any) {
	t.Helper()
	l := ptx.Launch{Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{threads, 1, 1}, Dynamic: dynamic, Params: params(e, values...), Memory: m}
	if err := e.Run(background, l); err != nil {
		t.Fatal(err)
	}
}

type pair struct {
	First  int32
	_      int32
	Second [2]float64
}

func called(x int32, p pair) int32 {
	if x%3 == 0 {
		return x*(x&3) + p.First
	}
	return x*((x+1)&3) + p.First + int32(p.Second[x&1])
}

// Threads that part in loops, switches and calls come together again, and each has its own
// result: structs, tables and local memory are there.
func TestPaths(t *testing.T) {
	madeBy(t, "paths", func(t *testing.T, e *ptx.Entry) {
		const n = 75
		m, p := memory{}, pair{First: 11, Second: [2]float64{3.9, -8}}
		out := put(m, make([]int32, n))
		launch(t, e, m, 2, 64, 0, out, p, int32(n))
		for i, got := range list[int32](m, out, n) {
			if want := path(int32(i), p); got != want {
				t.Errorf("thread %d has %d, want %d", i, got, want)
			}
		}
	})
}

// path is the kernel paths in Go.
func path(t int32, p pair) (sum int32) {
	for i := int32(0); i < t; i++ {
		switch (i*7 + t) % 11 {
		case 0:
			sum += 3
		case 1:
			sum ^= i
		case 2:
			sum *= 3
		case 3:
			continue
		case 4:
			sum += (i & 7) * (i & 7)
		case 5:
			sum -= t
		case 6:
			sum <<= 1
		case 8:
			sum += called(i, p)
		default:
			sum++
		}
		if sum > 100000 {
			break
		}
	}
	return sum
}

// Shuffles and votes see the lanes that they name; lanes that part are not active for each other.
func TestWarps(t *testing.T) {
	madeBy(t, "warps", func(t *testing.T, e *ptx.Entry) {
		const n = 64
		in, m := make([]uint32, n), memory{}
		for i := range in {
			in[i] = uint32(i*i*37%101 + i%2)
		}
		out := put(m, make([]uint32, 12*n))
		launch(t, e, m, 1, n, 0, out, put(m, in))
		got := list[uint32](m, out, 12*n)
		for i := range in {
			if mine, want := got[12*i:][:12], lane(in, i); !slices.Equal(mine, want) {
				t.Errorf("thread %d has %v, want %v", i, mine, want)
			}
		}
	})
}

// lane is the kernel warps in Go.
func lane(in []uint32, t int) []uint32 {
	lane, warp := t%32, in[t/32*32:][:32]
	where := func(is func(i int) bool) (mask uint32) {
		for i := range warp {
			if is(i) {
				mask |= 1 << i
			}
		}
		return mask
	}
	odd := where(func(i int) bool { return warp[i]&1 != 0 })
	v := warp[lane]
	o := make([]uint32, 12)
	o[0] = warp[lane^5]
	o[1], o[2] = v, v
	if lane >= 3 {
		o[1] = warp[lane-3]
	}
	if lane%8 < 4 {
		o[2] = warp[lane+4]
	}
	o[3] = warp[lane/16*16+int(v%16)]
	o[4] = odd
	o[5] = uint32(min(1, bits.OnesCount32(where(func(i int) bool { return warp[i] == 7 })))) | 2
	o[6] = uint32(lane)
	switch {
	case v&1 != 0:
		o[6], o[7] = odd, warp[bits.TrailingZeros32(odd)]
	case lane < 16:
		o[7] = where(func(i int) bool { return i < 16 && warp[i]&3 == 2 })
	default:
		o[7] = 1
	}
	o[8], o[9] = 1, 32
	for i := range lane % 5 {
		v = v*3 + uint32(i)
	}
	o[10] = v
	o[11] = uint32(bits.LeadingZeros32(v)) + bits.Reverse32(v) + (uint32(lane)<<3 | v>>29)
	return o
}

// Threads of a block wait for each other, also those of the last warp, which is not whole;
// what they vote on at a barrier all of them know.
func TestBlocks(t *testing.T) {
	madeBy(t, "blocks", func(t *testing.T, e *ptx.Entry) {
		for _, n := range []uint32{64, 16, 128} {
			in, m, sum := make([]float32, n), memory{}, float32(0)
			for i := range in {
				in[i] = float32(i)
				sum += float32(i)
			}
			out := put(m, make([]float32, n))
			want := sum + 10 + 100
			if n <= 64 {
				want += 1000
			}
			launch(t, e, m, 1, n, 4*n, out, put(m, in), n, float32(n)-1.5)
			for i, got := range list[float32](m, out, int(n)) {
				if got != want {
					t.Fatalf("%d threads: thread %d has %v, want %v", n, i, got, want)
				}
			}
		}
	})
}

// Numbers of 64 bits, and what becomes of them in smaller types.
func TestNumbers(t *testing.T) {
	madeBy(t, "numbers", func(t *testing.T, e *ptx.Entry) {
		in := []float64{0, 1.5, -2.5, 1e9 + 0.7, -3.25e-5, 123456.789, 0.1, -77.7}
		whole := []int64{0, 1, -1, math.MaxInt64, math.MinInt64, 1234567890123, -9876543210, 255 << 7}
		m := memory{}
		out := put(m, make([]float64, 64))
		launch(t, e, m, 1, 8, 0, out, put(m, in), put(m, whole))
		got := list[float64](m, out, 64)
		for i, x := range in {
			n := whole[i]
			high, low := bits.Mul64(uint64(n), 1<<40)
			if n < 0 {
				high -= 1 << 40
			}
			_ = low
			want := []float64{math.Sqrt(math.Abs(x))/3 + math.Floor(x), float64(float32(x)) + float64(int32(x)), float64(n/7) + float64(n%1000),
				float64(uint64(n)/12345) + float64(bits.OnesCount64(uint64(n))), float64(int16(n)) + float64(uint8(n)),
				float64(float32(n) + float32(math.RoundToEven(float64(float32(x))))), math.FMA(x, x, 1), float64(int64(high))}
			if mine := got[8*i:][:8]; !slices.Equal(mine, want) {
				t.Errorf("thread %d has %v, want %v", i, mine, want)
			}
		}
	})
}

// own is a kernel of a text of its own.
func own(t testing.TB, body string) *ptx.Entry {
	t.Helper()
	return entry(t, []byte(module(body)), "k")
}

func module(body string) string {
	return ".version 9.5\n.target sm_80\n.address_size 64\n.global .u32 counter = 7;\n.const .u32 seven = 7;\n.visible .entry k(.param .u64 x) .maxntid 256, 1, 1\n{\n" +
		".reg .pred %p<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.shared .align 4 .b8 here[64];\n.local .align 4 .b8 mine[16];\nld.param.u64 %rd0, [x];\nmov.u32 %r0, %tid.x;\n" + body + "\nret;\n}\n"
}

// A lane reads from one so many lanes below it, where that is not below the last lane that the
// segment and the clamp name: nvcc emits clamp 0, others have a use too.
func TestShuffleUp(t *testing.T) {
	for bounds, valid := range map[int]uint32{0: 0xfffffffc, 0x1800: 0xfcfcfcfc, 3: 0xffffffe0, 0x1805: 0x80808080, 31: 0} {
		e, m := own(t, fmt.Sprintf(`shfl.sync.up.b32 %%r1|%%p1, %%r0, 2, %d, -1;
selp.u32 %%r2, 1, 0, %%p1;
mul.wide.u32 %%rd1, %%r0, 8;
add.u64 %%rd1, %%rd1, %%rd0;
st.global.v2.u32 [%%rd1], {%%r1, %%r2};`, bounds)), memory{}
		out := put(m, make([]uint32, 64))
		launch(t, e, m, 1, 32, 0, out)
		for lane, got := range slices.Collect(slices.Chunk(list[uint32](m, out, 64), 2)) {
			from, ok := uint32(lane), valid>>lane&1
			if ok != 0 {
				from -= 2
			}
			if !slices.Equal(got, []uint32{from, ok}) {
				t.Errorf("bounds %#x: lane %d has %v, want %v", bounds, lane, got, []uint32{from, ok})
			}
		}
	}
}

// What a GPU reports as an error is a fault with its line, and so is what it would hang in.
func TestFaults(t *testing.T) {
	const first = 15 // line of a body's first instruction
	for body, want := range map[string]ptx.Kind{
		"ld.global.u32 %r1, [%rd0+400];":           ptx.IllegalAddress,
		"st.global.u32 [%rd0+-4], %r0;":            ptx.IllegalAddress,
		"ld.u32 %r1, [%rd0+256];":                  ptx.IllegalAddress,
		"ld.global.u32 %r1, [%rd0+2];":             ptx.Misaligned,
		"ld.global.v2.u32 {%r1, %r2}, [%rd0+4];":   ptx.Misaligned,
		"st.shared.u32 [here+64], %r0;":            ptx.IllegalAddress,
		"st.shared.u32 [here+2], %r0;":             ptx.Misaligned,
		"ld.local.u32 %r1, [mine+16];":             ptx.IllegalAddress,
		"atom.global.add.u32 %r1, [%rd0+1024], 1;": ptx.IllegalAddress,
		"trap;":                                 ptx.Trap,
		"shfl.sync.idx.b32 %r1, %r0, 0, 31, 1;": ptx.Undefined,
		"bar.sync 1, 64;":                       ptx.Deadlock,
		"setp.eq.u32 %p1, %r0, 3;\n@%p1 bra A;\nbar.sync 0;\nbar.sync 0;\nret;\nA:\nbar.sync 1;":             ptx.Deadlock,
		"setp.eq.u32 %p1, %r0, 3;\n@%p1 bra A;\nbar.warp.sync -1;\nret;\nA:\nbar.sync 0;":                    ptx.Deadlock,
		"setp.eq.u32 %p1, %r0, 3;\n@%p1 bra A;\nbar.warp.sync -1;\nret;\nA:\nbar.warp.sync -1;\nbar.sync 0;": ptx.Deadlock,
	} {
		e, m := own(t, body), memory{}
		l := ptx.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Params: params(e, put(m, make([]uint32, 64))), Memory: m}
		f, ok := errors.AsType[*ptx.Fault](e.Run(background, l))
		if !ok || f.Kind != want || f.Line < first || f.Line > first+strings.Count(body, "\n") {
			t.Errorf("%s: %v, want %v in line %d", body, f, want, first)
		}
	}
}

// Sizes that a device refuses are refused.
func TestBadLaunches(t *testing.T) {
	e := own(t, "")
	right := ptx.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{256, 1, 1}, Params: make([]byte, 8), Memory: memory{}}
	if err := e.Run(background, right); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(l *ptx.Launch){
		"no blocks":          func(l *ptx.Launch) { l.Grid[1] = 0 },
		"no threads":         func(l *ptx.Launch) { l.Block[2] = 0 },
		"more than .maxntid": func(l *ptx.Launch) { l.Block[1] = 2 },
		"too much memory":    func(l *ptx.Launch) { l.Dynamic = 1 << 31 },
		"too few parameters": func(l *ptx.Launch) { l.Params = l.Params[:7] },
		"threads that wrap":  func(l *ptx.Launch) { l.Block = [3]uint32{1 << 11, 1 << 11, 1 << 10} },
	} {
		l := right
		change(&l)
		if f, ok := errors.AsType[*ptx.Fault](e.Run(background, l)); !ok || f.Kind != ptx.BadLaunch {
			t.Errorf("%s: %v, want a bad launch", what, f)
		}
	}
}

// A loop without an end is stopped by the context: in a thread, and between threads.
func TestContextEnds(t *testing.T) {
	for _, body := range []string{"A:\nbra A;", "setp.eq.u32 %p1, %r0, 0;\n@%p1 bra B;\nA:\nld.volatile.global.u32 %r1, [%rd0];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra A;\nret;\nB:\nbar.sync 0;"} {
		e, m := own(t, body), memory{}
		l := ptx.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Params: params(e, put(m, make([]uint32, 64))), Memory: m}
		ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
		if err := e.Run(ctx, l); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the context's error", body, err)
		}
		cancel()
	}
}

// Threads of a warp, and warps of a block, that wait for what others write go on when it is
// written, whichever of them stands further behind.
func TestThreadsThatWait(t *testing.T) {
	for _, writer := range []string{"0", "31", "63"} {
		e, m := own(t, "setp.eq.u32 %p1, %r0, "+writer+";\n@%p1 bra B;\nA:\nld.volatile.global.u32 %r1, [%rd0];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra A;\nred.global.add.u32 [%rd0+4], %r1;\nret;\nB:\nst.volatile.global.u32 [%rd0], 2;"), memory{}
		out := put(m, make([]uint32, 2))
		launch(t, e, m, 1, 64, 0, out)
		if got := list[uint32](m, out, 2); got[1] != 126 {
			t.Errorf("writer %s: a sum of %d, want 126", writer, got[1])
		}
	}
}

// Barriers with numbers: threads that only arrive do not wait, and those that have ended
// are not waited for.
func TestBarriers(t *testing.T) {
	body := `setp.gt.u32 %p1, %r0, 100;
@%p1 ret;
setp.lt.u32 %p1, %r0, 32;
shl.b32 %r1, %r0, 2;
@%p1 bra CONSUME;
setp.gt.u32 %p2, %r0, 63;
@%p2 bra END;
add.s32 %r2, %r0, 5;
mov.u32 %r3, here;
add.s32 %r1, %r1, -128;
and.b32 %r1, %r1, 63;
add.s32 %r3, %r3, %r1;
st.shared.u32 [%r3], %r2;
bar.arrive 3, 64;
bra END;
CONSUME:
bar.sync 3, 64;
ld.shared.u32 %r4, [here+60];
st.global.u32 [%rd0], %r4;
END:
bar.sync 0;
bar.red.popc.u32 %r5, 0, %p1;
st.global.u32 [%rd0+4], %r5;`
	e, m := own(t, body), memory{}
	out := put(m, make([]uint32, 2))
	launch(t, e, m, 1, 128, 0, out)
	if got := list[uint32](m, out, 2); got[0] != 63+5 || got[1] != 32 {
		t.Errorf("%v, want 68 and 32", got)
	}
}

// Atomic operations give what was there, in every kind of memory.
func TestAtomics(t *testing.T) {
	for name, want := range map[string]uint32{"add.u32": 10 + 32*3, "min.u32": 3, "min.s32": 3, "max.u32": 10, "and.b32": 10 & 3, "or.b32": 11, "xor.b32": 10, "exch.b32": 3, "inc.u32": 10, "dec.u32": 3} {
		start := uint32(10)
		switch name {
		case "inc.u32": // 10 → 0, then 0 to 3 eight times over, less one
			want = 3
		case "dec.u32": // 10 → 3, then 3 to 0 eight times over, less one
			want = 0
		}
		e, m := own(t, "mov.u64 %rd1, counter;\natom.global."+name+" %r1, [%rd0], 3;\nmov.u32 %r2, 3;\nst.shared.u32 [here], 10;\nbar.sync 0;\natom.shared."+name+" %r3, [here], %r2;\nbar.sync 0;\nld.shared.u32 %r4, [here];\nst.global.u32 [%rd0+4], %r4;"), memory{}
		out := put(m, []uint32{start, 0})
		launch(t, e, m, 1, 32, 0, out)
		if got := list[uint32](m, out, 2); got[0] != want || got[1] != want {
			t.Errorf("%s: %v, want %d", name, got, want)
		}
	}
	e, m := own(t, "atom.global.cas.b32 %r1, [%rd0], %r0, 40;\nst.shared.u32 [here], %r1;\nred.global.add.f32 [%rd0+8], 0f3F800000;\nred.add.u64 [%rd0+16], 5;\nmov.u64 %rd2, counter;\natom.add.u32 %r2, [%rd2], 1;\nsetp.eq.u32 %p1, %r0, 31;\n@%p1 st.global.u32 [%rd0+4], %r2;"), memory{}
	out := put(m, make([]uint32, 6))
	launch(t, e, m, 1, 32, 0, out)
	if got := list[uint32](m, out, 6); !slices.Equal(got, []uint32{40, 7 + 31, 0x42000000, 0, 160, 0}) {
		t.Errorf("%v", got)
	}
}

// An address of any space is told by itself: a variable's, shared, local and a parameter's.
func TestGenericAddresses(t *testing.T) {
	body := `mov.u64 %rd1, here;
cvta.shared.u64 %rd1, %rd1;
st.u32 [%rd1+8], 3;
ld.shared.u32 %r1, [here+8];
mov.u64 %rd2, mine;
cvta.local.u64 %rd2, %rd2;
st.u32 [%rd2+4], %r0;
ld.local.u32 %r2, [mine+4];
mov.u64 %rd3, seven;
ld.const.u32 %r3, [%rd3];
mov.b64 %rd4, x;
cvta.param.u64 %rd4, %rd4;
ld.u64 %rd5, [%rd4];
sub.s64 %rd6, %rd5, %rd0;
cvt.u32.u64 %r4, %rd6;
cvta.to.shared.u64 %rd1, %rd1;
cvt.u32.u64 %r5, %rd1;
ld.shared.u32 %r5, [%r5+8];
mad.lo.u32 %r6, %r1, 1000, %r2;
mad.lo.u32 %r6, %r3, 100, %r6;
add.u32 %r6, %r6, %r4;
mad.lo.u32 %r6, %r5, 10000, %r6;
mul.wide.u32 %rd7, %r0, 4;
add.s64 %rd7, %rd7, %rd0;
st.global.u32 [%rd7], %r6;`
	e, m := own(t, body), memory{}
	out := put(m, make([]uint32, 32))
	launch(t, e, m, 1, 32, 0, out)
	for i, got := range list[uint32](m, out, 32) {
		if want := uint32(33700 + i); got != want {
			t.Fatalf("thread %d has %d, want %d", i, got, want)
		}
	}
}

// A switch by a table of labels.
func TestTableOfLabels(t *testing.T) {
	e, m := own(t, "and.b32 %r1, %r0, 3;\nmov.u32 %r2, 9;\nT: .branchtargets A, B, C, D;\nbrx.idx %r1, T;\nA: mov.u32 %r2, 10;\nbra D;\nB: mov.u32 %r2, 11;\nC: add.u32 %r2, %r2, 20;\nD:\nmul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd1, %rd0;\nst.global.u32 [%rd1], %r2;"), memory{}
	out := put(m, make([]uint32, 32))
	launch(t, e, m, 1, 32, 0, out)
	for i, got := range list[uint32](m, out, 32) {
		if want := []uint32{10, 31, 29, 9}[i%4]; got != want {
			t.Errorf("thread %d has %d, want %d", i, got, want)
		}
	}
}

// Lanes that look for their equals, and reduce what they have to one number; lanes that
// have ended are no members any more.
func TestMatchesAndReductions(t *testing.T) {
	body := `setp.gt.u32 %p1, %r0, 29;
@%p1 exit;
mul.wide.u32 %rd1, %r0, 24;
add.s64 %rd1, %rd1, %rd0;
and.b32 %r1, %r0, 3;
match.any.sync.b32 %r2, %r1, -1;
match.all.sync.b32 %r3|%p2, %r1, -1;
redux.sync.add.u32 %r4, %r0, -1;
sub.s32 %r5, 5, %r0;
redux.sync.min.s32 %r6, %r5, -1;
redux.sync.xor.b32 %r7, %r0, -1;
vote.sync.uni.pred %p3, %p2, -1;
selp.b32 %r8, 1, 0, %p3;
st.global.v2.u32 [%rd1], {%r2, %r3};
st.global.v2.u32 [%rd1+8], {%r4, %r6};
st.global.v2.u32 [%rd1+16], {%r7, %r8};`
	e, m := own(t, body), memory{}
	out := put(m, make([]uint32, 6*32))
	launch(t, e, m, 1, 32, 0, out)
	got := list[uint32](m, out, 6*32)
	for i := range 30 {
		want := []uint32{0x11111111 << (i % 4) & (1<<30 - 1), 0, 29 * 30 / 2, uint32(0xffffffff - 23), 1, 1}
		if mine := got[6*i:][:6]; !slices.Equal(mine, want) {
			t.Fatalf("thread %d has %#x, want %#x", i, mine, want)
		}
	}
}

// Kernels of one module run at once: their atomic operations are, and each has its registers.
func TestKernelsAtOnce(t *testing.T) {
	e, m := own(t, "red.global.add.u32 [%rd0], 1;\nmov.u64 %rd1, counter;\nred.global.add.u32 [%rd1], 1;"), memory{}
	out := put(m, make([]uint32, 1))
	done := make(chan error, 1)
	for range 8 {
		go func() {
			done <- e.Run(background, ptx.Launch{Grid: [3]uint32{20, 1, 1}, Block: [3]uint32{64, 1, 1}, Params: params(e, out), Memory: m})
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if got := list[uint32](m, out, 1)[0]; got != 8*20*64 {
		t.Errorf("%d, want %d", got, 8*20*64)
	}
}

// Lanes that part meet where their paths do: behind a branch, and behind a loop that they
// leave one after the other.
func TestLanesMeet(t *testing.T) {
	body := `mov.u32 %r1, 0;
setp.lt.u32 %p1, %r0, 7;
@%p1 bra A;
add.u32 %r1, %r1, 1;
A:
activemask.b32 %r2;
B:
add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, %r0;
@%p1 bra B;
activemask.b32 %r3;
mul.wide.u32 %rd1, %r0, 8;
add.s64 %rd1, %rd1, %rd0;
st.global.v2.u32 [%rd1], {%r2, %r3};`
	e, m := own(t, body), memory{}
	out := put(m, make([]uint32, 64))
	launch(t, e, m, 1, 32, 0, out)
	for i, got := range list[uint32](m, out, 64) {
		if got != 0xffffffff {
			t.Fatalf("thread %d is with %#x", i/2, got)
		}
	}
}

// A barrier waits for a warp however long that takes.
func TestSlowWarp(t *testing.T) {
	body := `setp.lt.u32 %p1, %r0, 32;
@%p1 bra B;
A:
add.u32 %r1, %r1, 1;
setp.lt.u32 %p2, %r1, 100000;
@%p2 bra A;
st.shared.u32 [here], 5;
B:
bar.sync 0;
ld.shared.u32 %r2, [here];
@%p1 st.global.u32 [%rd0], %r2;`
	e, m := own(t, "mov.u32 %r1, 0;\n"+body), memory{}
	out := put(m, make([]uint32, 1))
	launch(t, e, m, 1, 64, 0, out)
	if got := list[uint32](m, out, 1); got[0] != 5 {
		t.Errorf("the fast warp read %d, want 5", got[0])
	}
}
