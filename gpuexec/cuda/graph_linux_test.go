//go:build linux && (amd64 || arm64)

package cuda

import (
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/dl"
)

const threadLocal = 1 // capture: other threads may do what they like

// graphs are the driver's functions for them, which nothing but this measurement uses.
type graphs func(name string, args ...uintptr)

//go:uintptrescapes
func (g graphs) call(name string, args ...uintptr) { g(name, args...) }

func graphsOf(t *testing.T, l *library) graphs {
	resolve := func(name string) (uintptr, error) { return fake.Symbol(name) }
	if *real {
		lib := must(dl.Open(soname, dl.Local))
		resolve = func(name string) (uintptr, error) { return purego.Dlsym(lib, name) }
	}
	at := make(map[string]uintptr)
	for _, name := range []string{"cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy"} {
		at[name] = must(resolve(name))
	}
	return func(name string, args ...uintptr) {
		if code, _, _ := purego.SyscallN(at[name], args...); int32(code) != success {
			t.Fatalf("%s: %s", name, l.nameOf(int32(code)))
		}
	}
}

// graph is what launches cost that come one by one, each needing the one before it, and what
// they cost as a graph that is made once: a plan that repeats could be one.
func (s sizes) graph(t *testing.T, b backend) {
	d := must(b.open(bg, 0)).(*device)
	defer func() { check(d.Close()) }()
	src := source(t, gpuexec.Code{Text: `extern "C" __global__ void k(int *a) { a[0] += 1; }`, Block: gpuexec.Size{1}}, buffer(4))
	q, p, m := must(d.OpenQueue()).(*queue), must(d.Compile(bg, src)).(*program), must(d.Alloc(4)).(*memory)
	defer func() { check(q.Close()) }()
	g, made, plan := graphsOf(t, d.library), new(handle), new(handle)
	at := m.at
	args := []unsafe.Pointer{unsafe.Pointer(&at)}
	launches := func() { check(s.raw(d, q, p, 1, args)) }
	within := func(fn func()) { check(d.within("graph", func() error { fn(); return nil })) }
	within(func() {
		g.call("cuStreamBeginCapture_v2", uintptr(q.stream), threadLocal)
		launches()
		g.call("cuStreamEndCapture", uintptr(q.stream), uintptr(unsafe.Pointer(made)))
		g.call("cuGraphInstantiateWithFlags", uintptr(unsafe.Pointer(plan)), uintptr(*made), 0)
	})
	each := func(fn func()) time.Duration {
		began := time.Now()
		within(fn)
		check(q.Finish(bg))
		return time.Since(began) / time.Duration(s.launches)
	}
	var one, whole []time.Duration
	for range 4*s.rounds + 1 {
		one = append(one, each(launches))
		whole = append(whole, each(func() { g.call("cuGraphLaunch", uintptr(*plan), uintptr(q.stream)) }))
	}
	within(func() {
		g.call("cuGraphExecDestroy", uintptr(*plan))
		g.call("cuGraphDestroy", uintptr(*made))
	})
	var count [4]byte
	check(q.Read(m, 0, count[:]))
	if got, want := int(binary.LittleEndian.Uint32(count[:])), s.launches*(len(one)+len(whole)); got != want {
		t.Errorf("%d launches ran, want %d", got, want)
	}
	_, a := median(one, time.Microsecond)
	_, c := median(whole, time.Microsecond)
	s.row(t, "a launch that needs the one before it, by the stream and in a graph", "%s and %s us", a, c)
}
