package stress

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/sessioncache"
)

// act is one operation of a worker, in whichever room.
func (u *user) act(ctx context.Context) error {
	var err error
	switch odds := u.random.IntN(2000); {
	case odds < 1000:
		err = u.request(ctx)
	case odds < 1200:
		err = u.names(ctx)
	case odds < 1400:
		err = u.artefact(ctx)
	case odds < 1550:
		err = u.constant(ctx)
	case odds < 1700:
		err = u.compute(ctx)
	case odds < 1980:
		err = u.control(ctx)
	case odds < 1985:
		u.damage()
	case odds < 1992:
		err = u.relocate(ctx)
	case odds < 1994:
		err = u.replace(ctx)
	case odds < 1995:
		if e, failed := u.w.Executor(ctx, u.w.fake, 0); failed == nil {
			err = e.Close(ctx)
		}
	case odds < 1997:
		err = u.reopen(ctx)
	default:
		u.bag.empty(u.storm)
	}
	u.gauges()
	if told(err) {
		return nil
	}
	return err
}

// gauges are within their bounds at every moment (SPEC C1, F9, G9, Q1).
func (u *user) gauges() {
	a := u.w.Artefacts()
	u.within("artefacts", int64(a.Len()), mostEntries)
	u.within("bytes of artefacts", a.Bytes(), stormBytes)
	u.within("bytes of sessions", u.w.Stats().SessionBytes, stormBytes)
	t := u.tenant().Cache()
	u.within("groups", t.Groups(), mostGroups)
	u.within("bytes of a session", t.Bytes(), stormBytes)
	if t.Len() < 0 || a.LeasedBytes() < 0 {
		u.violated("%d names, %d bytes leased", t.Len(), a.LeasedBytes())
	}
}

// artefact uses the artefact cache below the door.
func (u *user) artefact(ctx context.Context) error {
	a, key := u.w.Artefacts(), u.artefactKey()
	var lease *artefacts.Lease
	var err error
	switch odds := u.random.IntN(100); {
	case odds < 55:
		lease, _, err = a.Get(ctx, u.built(key))
	case odds < 65:
		lease, _, err = a.Peek(ctx, key)
	case odds < 72:
		q, c := u.built(key), u.child()
		q.Create = func(ctx context.Context) (artefacts.Built, error) {
			m, err := c.made(ctx, "", key) // joins nothing, and is not joined (SPEC C6)
			return artefacts.Built{Value: m.Value, Bytes: m.Bytes, Free: m.Free}, err
		}
		lease, _, err = a.Force(ctx, q)
	case odds < 80:
		lease, err = u.fromBlob(ctx, key)
	case odds < 85:
		var blob []byte
		if blob, err = a.Blob(ctx, key); err == nil && string(blob[:len(key)]) != key {
			u.violated("the blob of %s begins with %q", key, blob[:len(key)])
		}
	case odds < 98:
		if ref, ok := a.Lookup(key); ok {
			lease, _ = ref.Acquire()
		}
	default:
		err = a.Settle(ctx)
	}
	if lease != nil {
		u.hold(lease.Value(), lease.End, key)
	}
	return err
}

// fromBlob brings a blob that may be bad.
func (u *user) fromBlob(ctx context.Context, key string) (*artefacts.Lease, error) {
	q, c := u.built(key), u.child()
	q.Load = func(ctx context.Context, blob []byte) (artefacts.Built, error) {
		if string(blob) != key {
			return artefacts.Built{}, fault.ErrRefused
		}
		m, err := c.made(ctx, c.w.id, key)
		return artefacts.Built{Value: m.Value, Bytes: m.Bytes, Free: m.Free, Blob: m.Blob}, err
	}
	lease, _, err := u.w.Artefacts().FromBlob(ctx, q, []byte(pick(u.random, key, key, "bad")))
	return lease, err
}

// hold looks at a value and ends its use now or later. To end it again does nothing.
func (u *user) hold(v any, end func(), keys ...string) {
	look := func() {
		defer end()
		defer end()
		u.check(v, keys...)
	}
	u.check(v, keys...)
	if u.random.IntN(8) == 0 {
		u.later(look)
		return
	}
	look()
}

// tensor counts its removals (SPEC T7).
func (u *user) removed(id string) func(constants.Removal) {
	told := make(chan struct{}, 1)
	return func(constants.Removal) {
		select {
		case told <- struct{}{}:
		default:
			u.violated("told twice of the removal of %s", id)
		}
	}
}

// constant uses the constants of a device that evicts, or of one that is unbounded:
// there no caller bypasses the cache, and so no two compute at a time.
func (u *user) constant(ctx context.Context) error {
	const open = 7 // the index of the unbounded device
	kind, index := constants.CPU, 0
	if u.random.IntN(2) == 0 {
		kind, index = constants.GPU, open
	}
	e, err := u.w.Constants().Engine(kind, index, pick(u.random, "", "context"))
	if err != nil {
		return err
	}
	id := fmt.Sprint("tensor ", u.random.IntN(24))
	key := constants.Key{ID: constants.Versioned(id, 0)}
	bytes := int64(40<<10 + len(id)) // declared by all alike
	opts := constants.Options{Cost: time.Duration(u.random.IntN(1000)), Removed: u.removed(id), CanOwn: u.random.IntN(2) == 0}
	var lease *constants.Lease
	switch odds := u.random.IntN(100); {
	case odds < 60:
		scope := ""
		if index == open {
			scope = fmt.Sprintf("%p", e)
		}
		c := u.child()
		lease, _, err = e.Get(ctx, key, bytes, opts, func(ctx context.Context) (constants.Value, error) {
			m, err := c.made(ctx, scope, id)
			return constants.Value{Any: m.Value, Bytes: bytes, Free: m.Free}, err
		})
	case odds < 80:
		lease, err = u.promise(ctx, e, key, id, bytes, opts)
	case odds < 90:
		lease, _ = e.Lookup(key)
	case odds < 97:
		_, err = e.Remove(ctx, key)
	default:
		err = e.Close(ctx)
	}
	if lease == nil {
		return u.late(ctx, err)
	}
	if held, ok := lease.Hold(u.removed(id)); ok && u.random.IntN(2) == 0 {
		u.later(func() {
			if v, ok := held.Use(); ok {
				u.check(v, id)
			}
			held.Drop()
			held.Drop()
		})
	} else if ok {
		held.Drop()
	}
	u.hold(lease.Value(), lease.End, id)
	return u.late(ctx, err)
}

// late is err, but for that of an owner that was cancelled before it delivered.
func (u *user) late(ctx context.Context, err error) error {
	if errors.Is(err, fault.ErrInvalid) && ctx.Err() != nil {
		return nil
	}
	return err
}

// promise computes a tensor outside of the cache.
func (u *user) promise(ctx context.Context, e *constants.Engine, key constants.Key, id string, bytes int64, opts constants.Options) (*constants.Lease, error) {
	out, err := e.GetOrAdd(ctx, key, bytes, opts)
	if err != nil || out.Owner == nil {
		return out.Lease, err
	}
	defer out.Owner.Abandon() // after the first of these nothing counts
	if err := guard.Guarded(func() error { return u.mischief(out.Owner.Context()) }); err != nil {
		out.Owner.Fail(err)
		return nil, nil
	}
	m := u.value(id)
	wrong := int64(u.random.IntN(16) / 15)
	lease, err := out.Owner.Fulfil(m.Value, bytes+wrong, m.Free)
	if err != nil {
		release(m.Free) // it stayed the caller's: closed, cancelled, or of another size
		return nil, nil
	}
	return lease, nil
}

// compute uses an executor of no runtime.
func (u *user) compute(ctx context.Context) error {
	d := u.spare.Load()
	k, err := d.Compile(ctx, stormSource(u.random.IntN(6)))
	if err != nil {
		return err
	}
	defer k.Release()
	switch u.random.IntN(8) {
	case 0:
		d.fake.Lose()
	case 1:
		blob, err := k.Blob(ctx)
		if err != nil {
			return err
		}
		l, err := d.Load(ctx, stormSource(0), blob) // refused, where it is that of another
		if err == nil {
			l.Release()
		}
		return err
	}
	b, err := d.Alloc(ctx, int64(1+u.random.IntN(2<<10)))
	if err != nil {
		return err
	}
	defer b.Release()
	return errors.Join(d.Write(ctx, b, 0, []byte{1}), d.Submit(ctx, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}), d.Read(ctx, b, 0, make([]byte, 1)))
}

func stormSource(n int) gpuexec.Source { return gpuexec.Source{Key: fmt.Sprint("kernel ", n)} }

// names uses the room of a tenant below the door.
func (u *user) names(ctx context.Context) error {
	v := &visit{user: u, t: u.tenant(), n: u.random.IntN(shapes)}
	c, i, lane := v.t.Cache(), u.random.IntN(mostNames), v.lane()
	shape, err := kiln.ShapeOf([]int64{int64(v.n)})
	if err != nil {
		return err
	}
	key := v.own("room", i, lane)
	o := sessioncache.Options{Owner: u.owner(), Lane: lane}
	switch odds := u.random.IntN(10); {
	case odds < 2:
		if ref, ok := c.Lookup(shape, nameOf(i), lane); ok {
			if l, ok := ref.Acquire(); ok {
				u.hold(l.Value(), l.End, v.keys(i, lane)...)
			}
		}
		return nil
	case odds < 4:
		return c.Set(ctx, shape, nameOf(i), of(u.value(key)), o)
	}
	g, err := c.Group(ctx, shape)
	if err != nil {
		return err
	}
	defer g.Close()
	ref, _, err := g.Get(ctx, nameOf(i), o, u.room(v.t.id, key))
	if err == nil {
		u.check(ref.Value(), v.keys(i, lane)...)
		u.more(ctx)
		u.check(ref.Value(), v.keys(i, lane)...) // good until g is closed
	}
	return err
}
