package reads

import (
	"context"
	"sync"

	"github.com/kiln-cache/kiln/sessioncache"
)

// A Maker opens a fresh cache whose values are made when they are first asked for.
// ask, safe for concurrent use, asks for the i-th of the values, which made is told
// of when it is made; end closes the cache. values are whole groups; ctx ends the
// wait for a value.
type Maker func(ctx context.Context, values []Value, made func()) (ask func(i int) (*Value, error), end func() error, err error)

// absent is the first group that no request asks for.
const absent = 1 << 20

// Absent are the values of groups that no request asks for.
func Absent(groups int) (values []Value) {
	for g := range groups {
		values = append(values, Group(absent+g)...)
	}
	return values
}

// InSession makes values in groups of a session.
func InSession(ctx context.Context, values []Value, made func()) (func(int) (*Value, error), func() error, error) {
	s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.Unlimited})
	if err != nil {
		return nil, nil, err
	}
	var groups []*sessioncache.Group
	for g := range len(values) / Names {
		group, err := s.Group(ctx, ShapeOf(absent+g))
		if err != nil {
			return nil, nil, err
		}
		groups = append(groups, group)
	}
	ask := func(i int) (*Value, error) {
		ref, _, err := groups[i/Names].Get(ctx, values[i].Key.Name, sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
			made()
			return sessioncache.Value{Any: &values[i]}, nil
		})
		if err != nil {
			return nil, err
		}
		return ref.Value().(*Value), nil
	}
	end := func() error {
		for _, g := range groups {
			g.Close()
		}
		return s.Close(context.WithoutCancel(ctx))
	}
	return ask, end, nil
}

// promise is a value that is being made.
type promise struct {
	done  chan struct{}
	value *Value
}

// InPromises makes values the plain way, the peer of a miss: the caller that
// stores the promise in a sync.Map keeps it. As in a session, a caller waits with
// a context that may be cancelled.
func InPromises(ctx context.Context, values []Value, made func()) (func(int) (*Value, error), func() error, error) {
	var m sync.Map
	ask := func(i int) (*Value, error) {
		kept, there := m.Load(values[i].Key)
		if !there {
			p := &promise{done: make(chan struct{})}
			if kept, there = m.LoadOrStore(values[i].Key, p); !there {
				made()
				p.value = &values[i]
				close(p.done)
			}
		}
		p := kept.(*promise)
		select {
		case <-p.done:
			return p.value, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return ask, func() error { return nil }, nil
}
