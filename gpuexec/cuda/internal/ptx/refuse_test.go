package ptx_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/ptx"
)

// What is not known is refused, with its line, and never guessed at.
func TestRefusals(t *testing.T) {
	const line = 15
	for _, body := range []string{
		"wmma.load.a.sync.aligned.m16n16k16.global.row.f16 {%r1}, [%rd0];", // no such instruction
		"add.s32.rn %r1, %r0, %r0;", "add.cc.u32 %r1, %r0, %r0;", "add.sat.s32 %r1, %r0, %r0;", "add.f16 %r1, %r0, %r0;", "add.b32 %r1, %r0, %r0;",
		"add.f32 %r1, %r0, 1;", "add.s32 %r1, %r0, 0f3F800000;", "add.s32 %r1, %r0, 0d3FF0000000000000;", // numbers of another type
		"add.s32 %r1, %r0;", "add.s32 %r1, %r0, %r0, %r0;", "add.s32 %rd1, %r0, %r0;", "add.s32 %r1, %rd0, %r0;", "add.s32 5, %r0, %r0;", "add.s32 %p1, %r0, %r0;", "add.s32 %r1, %r0, %p1;",
		"add.s32 %r99, %r0, %r0;", "add.s32 %r1, nothing, 1;", "add.s32 %r1, !%r0, 1;", "mul.s32 %r1, %r0, %r0;", "mul.wide.u64 %rd1, %rd0, %rd0;", "neg.u32 %r1, %r0;",
		"fma.f32 %r1, %r0, %r0, %r0;", "fma.rm.f64 %rd1, %rd0, %rd0, %rd0;", "div.f32 %r1, %r0, %r0;", "ex2.f32 %r1, %r0;", "sin.approx.f64 %rd1, %rd0;",
		"cvt.s32.f32 %r1, %r0;", "cvt.f32.f64 %r1, %rd0;", "cvt.rn.f64.f32 %rd1, %r0;", "cvt.rna.tf32.f32 %r1, %r0;", "cvt.rz.f32.s64 %r1, %rd0;",
		"mov.u32 %r1, %clock;", "mov.u32 %r1, %tid.w;", "mov.u16 %r1, %tid.x;", "mov.b64 {%r1, %r2, %r3}, %rd0;", "mov.b32 {%r1, %r2}, %r0;",
		"setp.lt.b32 %p1, %r0, %r0;", "setp.lo.s32 %p1, %r0, %r0;", "setp.foo.s32 %p1, %r0, %r0;", "setp.lt.and.s32 %p1, %r0, %r0;", "setp.lt.s32 %r1, %r0, %r0;", "setp.ltu.s32 %p1, %r0, %r0;",
		"ld.global.u32 %r1, %rd0;", "ld.global.u32 %r1, [%r0];", "ld.global.v4.u32 {%r1, %r2}, [%rd0];", "ld.global.v4.u64 {%rd1, %rd2, %rd3, %rd4, %rd5}, [%rd0];", "ld.texture.u32 %r1, [%rd0];",
		"ld.global.u32 %r1, [here];", "ld.param.u32 %r1, [nothing];", "ld.global.L3::hint.u32 %r1, [%rd0];", "ld.global.u64 %r1, [%rd0];", "st.param.u64 [x], %rd0;", "st.const.u32 [seven], %r0;",
		"atom.global.add.s64 %rd1, [%rd0], %rd0, %rd0;", "atom.global.mul.u32 %r1, [%rd0], %r0;", "atom.global.cas.b32 %r1, [%rd0], %r0;", "atom.global.exch.u16 %r1, [%rd0], 1;",
		"shfl.bfly.b32 %r1, %r0, 1, 31;", "shfl.sync.bfly.b64 %rd1, %rd0, 1, 31, -1;", "vote.all.b32 %r1, %p1, -1;", "vote.sync.some.pred %p1, %p2, -1;", "match.sync.b32 %r1, %r0, -1;", "redux.sync.mul.u32 %r1, %r0, -1;",
		"bar.sync 16;", "bar.sync %r0;", "bar.sync;", "bar.red.or.u32 %r1, 0, %p1;", "bar.red.or.pred %p1, 0;", "bar.wait 0;", "barrier.cluster.arrive;", "fence.proxy.async;", "membar;",
		"bra NOWHERE;", "bra.uni 5;", "brx.idx %r0, NOTHING;", "@%r0 bra A;", "@%p1 %p2;", "call nothing;", "call (%r1), other, (%r2);", "call k;", "call again;", "trap 1;", "exit %r0;",
		"cp.async.ca.shared.global [%r0], [%rd0], 16;", "lop3.b32 %r1, %r0, %r0, %r0, 256;", "lop3.b32 %r1, %r0, %r0, %r0, %r0;", "prmt.b64 %rd1, %rd0, %rd0, %rd0;", "testp.normal.f32 %p1, %r0;",
		".reg .b128 %q;", ".reg .f32;", ".unknown 1;", ".global .u32 second;\n.global .u32 second;", "{ add.s32 %r1, %r0, 1;\n", "A: A:", "%r1;", ";;; 5;",
	} {
		text := module(body) + ".func again() { call again; ret; }\n.func (.param .b32 r) other(.param .b32 p) { ret; }\n"
		m, err := ptx.Parse([]byte(text))
		if err == nil {
			t.Errorf("%s: no error, %v", body, m)
		} else if body[0] != '{' && !strings.Contains(err.Error(), fmt.Sprintf("line %d:", line)) && !strings.Contains(body, "again") && !strings.Contains(body, "second") {
			t.Errorf("%s: %v, want line %d", body, err, line)
		}
	}
	for _, text := range []string{"", ".version 9.5", ".version 9.5\n.target sm_80\n.address_size 32", "int main() {}", ".version 9.5\n.target sm_80\n.extern .global .u32 x;", ".version 9.5\n.target sm_80\n.global .b8 x[2] = {1, 2, 3};",
		".version 9.5\n.target sm_80\n.global .u64 x = generic(y);", ".version 9.5\n.target sm_80\n.entry k(.param .u32 x, .param .u32 x) { ret; }", ".version 9.5\n.target sm_80\n.entry k() { ret; }\n.entry k() { ret; }", ".version 9.5\n.target sm_80\n/*"} {
		if _, err := ptx.Parse([]byte(text)); err == nil {
			t.Errorf("%q is a module", text)
		}
	}
}

// A module says what it is, and what its kernels want.
func TestModule(t *testing.T) {
	m, err := ptx.Parse(append(file(t, "threads.75.ptx"), 0)) // as the compiler ends it
	if err != nil || m.Version != "9.5" || m.Target != "sm_75" {
		t.Fatalf("%+v, %v", m, err)
	}
	e, ok := m.Entry("paths")
	if want := "[{8 8 0} {24 8 8} {4 4 32}]"; !ok || fmt.Sprint(e.Params()) != want {
		t.Errorf("%v, want %s", e.Params(), want)
	}
	if e, _ = m.Entry("blocks"); e.Shared() < 8 {
		t.Errorf("%d bytes of shared memory, want 8 or more", e.Shared())
	}
	if _, ok := m.Entry("called"); ok {
		t.Error("a function of the device is an entry")
	}
}

// A text of many calls within each other is refused before it fills memory.
func TestCallsThatGrow(t *testing.T) {
	var b strings.Builder
	b.WriteString(".version 9.5\n.target sm_80\n.func f0() { ret; }\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&b, ".func f%d() { call f%d; call f%d; ret; }\n", i, i-1, i-1)
	}
	b.WriteString(".entry k() { call f39; ret; }\n")
	if _, err := ptx.Parse([]byte(b.String())); err == nil || !strings.Contains(err.Error(), "instructions") {
		t.Errorf("%v, want too many instructions", err)
	}
}

// Whatever the text, Parse ends, and what it takes runs without a panic.
func FuzzParse(f *testing.F) {
	f.Add(file(f, "vadd.ptx"))
	for _, body := range []string{"", "bar.red.popc.u32 %r5, 0, %p1;", "T: .branchtargets A, B;\nbrx.idx %r0, T;\nA: B:", "{ .reg .b16 %h<3>; mov.b32 {%h1, %h2}, %r0; cvt.f32.f16 %r1, %h1; }", "shfl.sync.up.b32 %r1|%p1, %r0, 1, 0, -1;"} {
		f.Add([]byte(module(body)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := ptx.Parse(text)
		if err != nil {
			return
		}
		for _, name := range []string{"k", "vadd"} {
			if e, ok := m.Entry(name); ok {
				run(e)
			}
		}
	})
}

// run runs an entry for a moment, in memory that is not there.
func run(e *ptx.Entry) {
	ctx, cancel := context.WithTimeout(background, time.Millisecond)
	defer cancel()
	_ = e.Run(ctx, ptx.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{40, 1, 1}, Params: bytes.Repeat([]byte{1}, 1<<16), Memory: memory{}})
}
