package stress

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/sessioncache"
)

// user is one goroutine of the storm in one world: a worker, or a creator that asks
// for more.
type user struct {
	*storm
	w      *world
	random *rand.Rand
	depth  int // of creators in creators
}

// deepest is how far creators nest: what they ask for is random, and so endless.
const deepest = 5

// child is the user that a creator is. The creator runs elsewhere, and so has its
// own random numbers.
func (u *user) child() *user {
	return &user{u.storm, u.w, rand.New(rand.NewPCG(u.random.Uint64(), 0)), u.depth + 1}
}

// rest takes a while, or until the context ends.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shortly is ctx for a moment. The context package asks ctx on a goroutine of its own when that is
// over, where a moody one would end the process.
func shortly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(guard.Context(ctx), time.Millisecond)
}

// mischief is what a creator does besides its work.
func (u *user) mischief(ctx context.Context) error {
	err := error(nil)
	switch odds := u.random.IntN(80); {
	case odds < 3:
		return misbehave(odds)
	case odds < 8:
		err = rest(ctx, time.Duration(u.random.IntN(1500))*time.Microsecond)
	case odds < 24 && u.depth < deepest: // nested
		err = u.more(ctx)
	case odds < 28 && u.depth < deepest: // forked
		var wg sync.WaitGroup
		for range 2 {
			c := u.child()
			wg.Go(func() { c.guarded(func() error { return c.more(ctx) }, func(error) {}) })
		}
		wg.Wait()
	case odds == 28: // closes what it may belong to
		short, cancel := shortly(ctx)
		defer cancel()
		_ = u.tenant().Close(short)
	}
	if u.random.IntN(2) == 0 { // some heed the error of what they asked for
		return nil
	}
	return err
}

// made makes a value of a key, once at a time in its scope.
func (u *user) made(ctx context.Context, scope, key string) (m kiln.Made[*value], err error) {
	if scope != "" {
		defer u.making.enter(u.run, scope+" "+key)()
	}
	if err := u.mischief(ctx); err != nil {
		return m, err
	}
	return u.value(key), nil
}

// value is a value that tells of its frees, and whose Free misbehaves.
func (u *user) value(key string) kiln.Made[*value] {
	v := u.values.make(key)
	free, odds := u.free(v), u.random.IntN(100)
	blob := u.random.IntN(20)
	return kiln.Made[*value]{Value: v, Bytes: int64(u.random.IntN(6 << 10)), Cost: time.Duration(u.random.IntN(1000)),
		Free: func() {
			free()
			_ = misbehave(odds + 1) // which does not fail
		},
		Blob: func(context.Context) ([]byte, error) {
			u.check(v, key)
			return append([]byte(key), make([]byte, 2000)...), misbehave(blob)
		}}
}

// load makes a value of a blob.
func (u *user) load(ctx context.Context, scope, key string, blob []byte) (m kiln.Made[*value], err error) {
	if got := string(bytes.TrimRight(blob, "\x00")); got != key {
		u.violated("loading %q, got the blob of %q", key, got)
	}
	return u.made(ctx, scope, key)
}

// recipe is that of an artefact of the user's world.
func (u *user) recipe(key string) kiln.Recipe[*value] {
	c, l := u.child(), u.child()
	return kiln.Recipe[*value]{Key: key,
		Make: func(ctx context.Context) (kiln.Made[*value], error) {
			if c.random.IntN(8) == 0 {
				_ = c.kernel(ctx)
			}
			return c.made(ctx, c.w.id, key)
		},
		Load: func(ctx context.Context, blob []byte) (kiln.Made[*value], error) {
			return l.load(ctx, l.w.id, key, blob)
		},
	}
}

// built is a recipe as the room below the door takes it.
func (u *user) built(key string) artefacts.Request {
	r := u.recipe(key)
	of := func(m kiln.Made[*value], err error) (artefacts.Built, error) {
		return artefacts.Built{Value: m.Value, Bytes: m.Bytes, Cost: m.Cost, Free: m.Free, Blob: m.Blob}, err
	}
	return artefacts.Request{Key: key, Backend: kiln.DefaultBackend, Owner: u.owner(), Linger: pick(u.random, 0, -1, time.Millisecond),
		Create: func(ctx context.Context) (artefacts.Built, error) { return of(r.Make(ctx)) },
		Load:   func(ctx context.Context, blob []byte) (artefacts.Built, error) { return of(r.Load(ctx, blob)) }}
}

// kernel asks for one of the kernel layer, on behalf of the artefact that is made.
func (u *user) kernel(ctx context.Context) error {
	c := u.child()
	key := fmt.Sprint("layer ", u.random.IntN(8))
	got, err := u.w.Artefacts().Kernel(ctx, artefacts.Request{Key: key, Create: func(ctx context.Context) (artefacts.Built, error) {
		m, err := c.made(ctx, c.w.id, key)
		return artefacts.Built{Value: m.Value, Bytes: m.Bytes, Free: m.Free}, err
	}})
	if err == nil {
		u.check(got, key) // the artefact holds it
	}
	return err
}

// room is a creator of the session's room, whose names have no keys.
func (u *user) room(scope, key string) sessioncache.Create {
	c := u.child()
	return func(ctx context.Context) (sessioncache.Value, error) {
		m, err := c.made(ctx, scope, key)
		return of(m), err
	}
}

func of(m kiln.Made[*value]) sessioncache.Value {
	return sessioncache.Value{Any: m.Value, Bytes: m.Bytes, Cost: m.Cost, Free: m.Free}
}

// more is what a creator asks for, with the context that it was given.
func (u *user) more(ctx context.Context) error {
	err := pick(u.random, u.request, u.request, u.artefact, u.constant, u.names)(ctx)
	if !told(err) {
		u.violated("a creator asked: %v", err)
	}
	return err
}

func (u *user) tenant() *tenant { return u.w.tenants[u.random.IntN(tenants)].Load() }

func (u *user) owner() string { return fmt.Sprint("owner ", u.random.IntN(3)) }

func (u *user) artefactKey() string { return fmt.Sprint("artefact ", u.random.IntN(64)) }
