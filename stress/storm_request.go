package stress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

const (
	shapes    = 10
	mostNames = 6
)

// visit is one request of a tenant through the door.
type visit struct {
	*user
	t    *tenant
	g    *kiln.Group
	n    int      // of the shape
	seen []func() // each looks at a value again
}

// request opens a group, uses some names, looks at all that it saw once more, and
// closes the group, perhaps much later.
func (u *user) request(ctx context.Context) error {
	v := &visit{user: u, t: u.tenant(), n: u.random.IntN(shapes)}
	var err error
	if v.g, err = v.t.Group(ctx, []int64{int64(v.n)}); err != nil {
		return err
	}
	leave := func() {
		defer v.g.Close()
		defer v.g.Close()
		for _, look := range v.seen {
			look()
		}
	}
	if u.random.IntN(12) == 0 {
		defer func() { u.later(leave) }()
	} else {
		defer leave()
	}
	for range 1 + u.random.IntN(5) {
		if err := v.use(ctx); !told(err) {
			return err
		}
	}
	return nil
}

func nameOf(i int) string { return fmt.Sprint("name ", i) }

func (v *visit) lane() kiln.Lane { return kiln.Lane(v.random.IntN(8) / 7) }

// own is the key of a value that only this name of this tenant may hold.
func (v *visit) own(how string, i int, lane kiln.Lane) string {
	return fmt.Sprint(how, " ", v.t.id, " ", v.n, " ", i, " ", lane)
}

// keys are those of all values that a name may hold: an artefact's, rarely another
// one's, and what was put there without a key.
func (v *visit) keys(i int, lane kiln.Lane) []string {
	return []string{fmt.Sprint("artefact ", (v.n*mostNames+i)%60), "artefact 63", v.own("set", i, lane), v.own("room", i, lane)}
}

// saw looks at a value that a name gave, and again before the group is closed.
func (v *visit) saw(got any, keys []string) {
	look := func() { v.check(got, keys...) }
	look()
	v.seen = append(v.seen, look)
}

// use is one use of one name.
func (v *visit) use(ctx context.Context) error {
	i, lane := v.random.IntN(mostNames), v.lane()
	name, keys := nameOf(i), v.keys(i, lane)
	with := []kiln.Option{kiln.Owner(v.owner()), kiln.OnLane(lane)}
	switch odds := v.random.IntN(100); {
	case odds < 40:
		return v.get(ctx, name, keys, with)
	case odds < 50:
		if got, ok := kiln.Lookup[*value](v.g, name, with...); ok {
			v.saw(got, keys)
		}
	case odds < 60:
		id := v.t.Intern(name)
		if got, ok := kiln.LookupID[*value](v.g, id); ok {
			v.saw(got, v.keys(i, 0))
		}
		if ref, ok := kiln.Refer[*value](v.g, id); ok {
			keys := v.keys(i, 0)
			v.later(func() {
				if l, ok := ref.Acquire(); ok {
					defer l.End()
					v.check(l.Value(), keys...)
				}
			})
		}
	case odds < 68:
		if l, ok := kiln.Acquire[*value](v.g, name, with...); ok {
			v.hold(l.Value(), l.End, keys...)
		}
	case odds < 76:
		return kiln.Set(ctx, v.g, name, v.value(v.own("set", i, lane)), with...)
	case odds < 82:
		return v.take(ctx, name, keys, with)
	case odds < 85:
		v.g.Remove(name, with...)
	case odds < 97:
		return v.launch(ctx)
	case odds < 98:
		return v.tanh(ctx)
	default:
		r := v.recipe("unhashable")
		r.Unhashable = "an input"
		c := v.child()
		r.Make = func(ctx context.Context) (kiln.Made[*value], error) { return c.made(ctx, "", "unhashable") }
		got, err := kiln.Get(ctx, v.g, name, r, with...)
		if err == nil {
			v.saw(got, []string{"unhashable"})
		}
		return err
	}
	return nil
}

// get asks for a name by its recipe, the first name now and then by another one
// than its own: then it may be refused (SPEC G13).
func (v *visit) get(ctx context.Context, name string, keys []string, with []kiln.Option) error {
	key := keys[0]
	if name == nameOf(0) && v.random.IntN(8) == 0 {
		key = keys[1]
	}
	got, err := kiln.Get(ctx, v.g, name, v.recipe(key), with...)
	if err == nil {
		v.saw(got, keys)
	} else if errors.Is(err, fault.ErrInvalid) && name == nameOf(0) {
		return nil
	}
	return err
}

// take takes a value out and frees it, now or later, or puts it back.
func (v *visit) take(ctx context.Context, name string, keys []string, with []kiln.Option) error {
	m, err := kiln.Take[*value](ctx, v.g, name, with...)
	if err != nil {
		return err
	}
	v.check(m.Value, keys...)
	if v.random.IntN(2) == 0 {
		return kiln.Set(ctx, v.g, name, m, with...)
	}
	var once sync.Once
	v.hold(m.Value, func() { once.Do(func() { release(m.Free) }) }, keys...)
	return nil
}

// launch runs a kernel of the device with faults. It is not released before the
// group is closed: a launch never finds it so.
func (v *visit) launch(ctx context.Context) error {
	e, err := v.w.Executor(ctx, v.w.fake, 0)
	if err != nil {
		return err
	}
	n := v.random.IntN(6)
	k, err := v.g.Kernel(ctx, fmt.Sprint("kernel ", n), e, stormSource(n), kiln.Owner(v.owner()))
	if err != nil {
		return err
	}
	if k.Key() != stormSource(n).Key {
		v.violated("asked for %s, got %s", stormSource(n).Key, k.Key())
	}
	if got, ok := kiln.Lookup[*value](v.g, fmt.Sprint("kernel ", n)); ok {
		v.violated("%s came as the value of %s", k.Key(), got.key)
	}
	v.seen = append(v.seen, func() {
		if err := e.Submit(context.WithoutCancel(ctx), gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); !told(err) {
			v.violated("launching %s in an open group: %v", k.Key(), err)
		}
	})
	return e.Submit(ctx, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}})
}

// tanh computes on the embedded device.
func (v *visit) tanh(ctx context.Context) error {
	e, err := v.w.Executor(ctx, v.library, 0)
	if err != nil {
		return err
	}
	op := ops.New(ops.Tanh, 1, int64(1+v.random.IntN(3)))
	src, err := v.library.Source(op)
	if err != nil {
		return err
	}
	k, err := v.g.Kernel(ctx, op.String(), e, src)
	if err != nil {
		return err
	}
	b, err := e.Alloc(ctx, 4*op.Elements())
	if err != nil {
		return err
	}
	defer b.Release()
	grid, _ := v.library.Launch(op)
	bits := make([]byte, 4*op.Elements())
	binary.LittleEndian.PutUint32(bits, math.Float32bits(0.5))
	if err := errors.Join(e.Write(ctx, b, 0, bits),
		e.Submit(ctx, gpuexec.Launch{Kernel: k, Grid: grid, Args: []gpuexec.Arg{gpuexec.BufferArg(b), gpuexec.BufferArg(b)}}),
		e.Read(ctx, b, 0, bits)); err != nil {
		return err
	}
	if y := math.Float32frombits(binary.LittleEndian.Uint32(bits)); math.Abs(float64(y)-math.Tanh(0.5)) > 1e-5 {
		v.violated("the tanh of 0.5 is %v", y)
	}
	return nil
}
