package stress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// errMade is what creators fail with, now and then.
var errMade = errors.New("made to fail")

const madeToPanic = "made to panic"

// mishap is what a creator does besides its work.
func mishap(random *rand.Rand) error {
	if odds := random.IntN(40); odds < 2 {
		return misbehave(odds)
	}
	return nil
}

// misbehave fails, panics or ends its goroutine, each for one number of the odds.
func misbehave(odds int) error {
	switch odds {
	case 0:
		return errMade
	case 1:
		panic(madeToPanic)
	case 2:
		runtime.Goexit()
	}
	return nil
}

// expected reports whether an error is one that the scenario causes itself.
func expected(err error) bool {
	var p *fault.PanicError
	return err == nil || errors.Is(err, errMade) || errors.As(err, &p) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fault.ErrAbandoned)
}

// sometimes gives a context that ends soon, one time in eight.
func sometimes(ctx context.Context, random *rand.Rand) (context.Context, context.CancelFunc) {
	if random.IntN(8) > 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Duration(random.IntN(200))*time.Microsecond)
}

// Capacities are raised and lowered below this; the bound that must always
// hold is the highest.
const (
	mostEntries = 48
	mostGroups  = 6
	mostBytes   = 6 << 10
)

// closing closes a room and looks at how long its turns were, before and in that: a
// closed engine of constants has no figures any more.
func (r *run) closing(room func(context.Context) error, touched func() int64) func(context.Context) error {
	return func(ctx context.Context) error {
		before := touched()
		err := room(ctx)
		r.turns(before, touched())
		return err
	}
}

func openArtefacts(r *run) (func(context.Context, *rand.Rand) error, func(context.Context) error, error) {
	c, err := artefacts.Open(artefacts.Config{Entries: limit.Of(mostEntries), Bytes: limit.Of(mostBytes)})
	if err != nil {
		return nil, nil, err
	}
	request := func(key string, random *rand.Rand) artefacts.Request {
		fate, bytes := random.IntN(1<<30), int64(random.IntN(400))
		return artefacts.Request{Key: key, Owner: fmt.Sprint("owner", random.IntN(3)), Create: func(context.Context) (artefacts.Built, error) {
			if err := mishap(rand.New(rand.NewPCG(uint64(fate), 0))); err != nil {
				return artefacts.Built{}, err
			}
			v := r.values.make(key)
			return artefacts.Built{Value: v, Bytes: bytes, Free: r.free(v)}, nil
		}}
	}
	act := func(ctx context.Context, random *rand.Rand) error {
		key := fmt.Sprint("key", random.IntN(96))
		var lease *artefacts.Lease
		var err error
		switch op := random.IntN(100); {
		case op < 80:
			lease, _, err = c.Get(ctx, request(key, random))
		case op < 90:
			lease, _, err = c.Peek(ctx, key)
		case op < 94:
			lease, _, err = c.Force(ctx, request(key, random))
		case op < 97:
			err = c.Reset(fmt.Sprint("owner", random.IntN(3)))
		default:
			err = c.SetCapacity(limit.Of(int64(random.IntN(mostEntries+1))), limit.Of(int64(random.IntN(mostBytes+1))))
		}
		if lease != nil {
			r.check(lease.Value(), key)
			lease.End()
		}
		r.within("entries", int64(c.Len()), mostEntries)
		r.within("bytes", c.Bytes(), mostBytes)
		return err
	}
	return act, r.closing(c.Close, func() int64 { return c.Stats().Touched }), nil
}

func openSessions(r *run) (func(context.Context, *rand.Rand) error, func(context.Context) error, error) {
	s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.LimitOf(mostGroups), Bytes: sessioncache.LimitOf(mostBytes)})
	if err != nil {
		return nil, nil, err
	}
	made := func(key string, random *rand.Rand) sessioncache.Value {
		v := r.values.make(key)
		return sessioncache.Value{Any: v, Bytes: int64(random.IntN(120)), Cost: time.Duration(random.IntN(1000)), Free: r.free(v)}
	}
	act := func(ctx context.Context, random *rand.Rand) error {
		n := random.IntN(24)
		shape, err := shapegroups.N(int64(n))
		if err != nil {
			return err
		}
		name := fmt.Sprint("name", random.IntN(6))
		key := fmt.Sprint(n, "/", name)
		o := sessioncache.Options{Owner: fmt.Sprint("owner", random.IntN(3))}
		switch op := random.IntN(100); {
		case op < 60:
			err = r.useGroup(ctx, s, shape, name, key, o, random, made)
		case op < 75:
			if ref, ok := s.Lookup(shape, name, 0); ok {
				if l, ok := ref.Acquire(); ok {
					r.check(l.Value(), key)
					l.End()
				}
			}
		case op < 88:
			err = s.Set(ctx, shape, name, made(key, random), o)
		case op < 91:
			err = s.Reset(ctx, o.Owner)
		case op < 92:
			err = s.ResetAll(ctx)
		case op < 95:
			err = s.Announce(shape)
		default:
			err = s.SetGroups(ctx, sessioncache.LimitOf(int64(random.IntN(mostGroups+1))))
		}
		r.within("groups", s.Groups(), mostGroups)
		r.within("bytes", s.Bytes(), mostBytes)
		r.within("objects", int64(s.Len()), math.MaxInt64)
		return err
	}
	return act, r.closing(s.Close, func() int64 { return s.Stats().Touched }), nil
}

// useGroup is one request: a group and some of its names.
func (r *run) useGroup(ctx context.Context, s *sessioncache.Session, shape shapegroups.Shape, name, key string, o sessioncache.Options,
	random *rand.Rand, made func(string, *rand.Rand) sessioncache.Value) error {
	h, err := s.Group(ctx, shape)
	if err != nil {
		return err
	}
	defer h.Close()
	fate := uint64(random.IntN(1 << 30))
	ref, _, err := h.Get(ctx, name, o, func(context.Context) (sessioncache.Value, error) {
		random := rand.New(rand.NewPCG(fate, 0)) // the creator's own: it runs elsewhere
		if err := mishap(random); err != nil {
			return sessioncache.Value{}, err
		}
		return made(key, random), nil
	})
	if err == nil {
		r.check(ref.Value(), key) // good until h is closed
	}
	return err
}

func openConstants(r *run) (func(context.Context, *rand.Rand) error, func(context.Context) error, error) {
	const mostMiB, tensor = 4, 300 << 10
	c, err := constants.Open(constants.Config{Capacity: [2]limit.Limit{constants.CPU: limit.Of(mostMiB)},
		Policy: [2]constants.Policy{constants.CPU: constants.Cost}})
	if err != nil {
		return nil, nil, err
	}
	e, err := c.Engine(constants.CPU, 0, "")
	if err != nil {
		return nil, nil, err
	}
	act := func(ctx context.Context, random *rand.Rand) error {
		id := fmt.Sprint("tensor", random.IntN(32))
		key := constants.Key{ID: constants.Versioned(id, 0)}
		bytes := int64(1 + random.IntN(tensor))
		fate := uint64(random.IntN(1 << 30))
		var err error
		switch op := random.IntN(100); {
		case op < 90:
			var l *constants.Lease
			l, _, err = e.Get(ctx, key, bytes, constants.Options{Cost: time.Duration(random.Int64N(int64(time.Second)))}, func(context.Context) (constants.Value, error) {
				if err := mishap(rand.New(rand.NewPCG(fate, 0))); err != nil {
					return constants.Value{}, err
				}
				v := r.values.make(id)
				return constants.Value{Any: v, Bytes: bytes, Free: r.free(v)}, nil
			})
			if err == nil {
				r.check(l.Value(), id)
				l.End()
			}
		case op < 98:
			_, err = e.Remove(ctx, key)
		default:
			err = c.SetCapacity(ctx, constants.CPU, limit.Of(int64(random.IntN(mostMiB+1))))
		}
		r.within("bytes", e.Size(), mostMiB<<20)
		// An owner that was cancelled delivers to nobody.
		if expected(err) || errors.Is(err, fault.ErrInvalid) && ctx.Err() != nil {
			err = nil
		}
		return err
	}
	return act, r.closing(c.Close, func() int64 { return c.Stats().Touched }), nil
}
