package onednn

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// F3, C5: whichever call of a caller's context goes wrong, no object of the library is left but
// those that the engine and its workers are, and the next caller is served.
func TestContextsThatGoWrong(t *testing.T) {
	need(t, 1)
	numbers := []float32{1, 2, 3, 4, 5, 6}
	for name, ask := range map[string]func(*rig, context.Context) error{
		"a constant": func(r *rig, ctx context.Context) error {
			c, err := r.Constant(r.Engine, unsafe.Slice((*byte)(unsafe.Pointer(&numbers[0])), 24), Dense("f32", 2, 3), tensor{Type: "f32", Dims: []int64{2, 3}, Strides: []int64{1, 2}})
			if err != nil {
				return err
			}
			m, err := c.Make(ctx)
			if err == nil {
				m.Release()
			}
			return err
		},
		"an execution": func(r *rig, ctx context.Context) error {
			s := spec("matmul", "", "", nil, Dense("f32", 3, 4), Dense("f32", 4, 8), tensor{}, Dense("f32", 3, 8))
			return r.once(ctx, &s)
		},
		"an execution that waits": func(r *rig, ctx context.Context) error {
			s := spec("matmul", "", "", nil, Dense("f32", 3, 4), Dense("f32", 4, 8), tensor{}, Dense("f32", 3, 8))
			if err := r.once(bg, &s); err != nil || ctx == bg {
				return err
			}
			w := <-r.workers
			defer func() { r.workers <- w }()
			ended, end := context.WithCancel(bg)
			end()
			m := ctx.(*actorstest.Moody)
			m.Context = ended
			return r.once(m, &s)
		},
	} {
		for what, harm := range map[string]func(){"panics": func() { panic("asked") }, "ends the goroutine": runtime.Goexit} {
			for n := int64(1); n < 100; n++ {
				ctx := actorstest.NewMoody(bg, n, harm)
				left := leftBy(t, func(r *rig) {
					actorstest.Apart(func() { _ = ask(r, ctx) })
					if err := ask(r, bg); err != nil {
						t.Errorf("%s behind a context that %s at call %d: %v", name, what, n, err)
					}
				})
				if left != 0 {
					t.Errorf("%s with a context that %s at call %d leaves %d objects", name, what, n, left)
				}
				if !ctx.Harmed() {
					t.Logf("a context that %s: %d calls for %s", what, n-1, name)
					break
				}
			}
		}
	}
}

// leftBy gives use a library with an engine, and tells how many objects are left behind it.
func leftBy(t *testing.T, use func(*rig)) int64 {
	l, err := Open(Config{Path: path(), Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	cache, err := artefacts.Open(artefacts.Config{Entries: limit.Of(8)})
	if err != nil {
		t.Fatal(err)
	}
	use(engineOf(t, l, cache))
	if err := errors.Join(cache.Close(bg), l.Close()); err != nil {
		t.Error(err)
	}
	return settled(l)
}

// settled is how many objects are left when what is freed behind the callers has been.
func settled(l *Library) int64 {
	for range 200 {
		if l.Len() == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return l.Len()
}

// F3, C5: whichever call of a context goes wrong while a program is compiled, nothing of it is
// left behind the device.
func TestCompileWithContextsThatGoWrong(t *testing.T) {
	b := backend(t)
	large := ops.New(ops.BatchMatMul, 1, 4, 640, 32, 640) // its exact form is built first
	large.TransposeB = true
	for _, op := range []ops.Op{ops.New(ops.MatMul, 3, 4, 5), ops.New(ops.GELU, 300, 50), large} {
		for what, harm := range map[string]func(){"panics": func() { panic("asked") }, "ends the goroutine": runtime.Goexit} {
			for n := int64(1); n < 100; n++ {
				opened, err := b.Open(bg, 0)
				if err != nil {
					t.Fatal(err)
				}
				ctx, d := actorstest.NewMoody(bg, n, harm), opened.(*device)
				actorstest.Apart(func() { _, _ = d.Compile(ctx, source(t, b, op)) })
				p, err := d.Compile(bg, source(t, b, op))
				if err == nil {
					p.Release()
				}
				if err := errors.Join(err, d.Close()); err != nil {
					t.Errorf("%s behind a context that %s at call %d: %v", op, what, n, err)
				}
				if left := settled(d.lib); left != 0 {
					t.Errorf("%s with a context that %s at call %d leaves %d objects", op, what, n, left)
				}
				if !ctx.Harmed() {
					t.Logf("a context that %s: %d calls for %s", what, n-1, op)
					break
				}
			}
		}
	}
}
