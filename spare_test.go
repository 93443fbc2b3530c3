package kiln_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// T4: before a device is said to have no memory, constants on it go that nobody uses, the
// cheapest a byte first and no more than it takes; what is in use, on another device or on
// none stays.
func TestAllocHasUnusedConstantsGo(t *testing.T) {
	r := open(t, kiln.Config{})
	full, other := must(r.Executor(ctx, &fakedevice.Backend{MostBytes: 100}, 0)), must(r.Executor(ctx, &fakedevice.Backend{MostBytes: 100}, 0))
	engine := must(r.Constants().Engine(constants.CPU, 0, ""))
	key := func(name string) constants.Key { return constants.Key{Backend: 1, ID: name} }
	on := func(e *gpuexec.Executor, name string, bytes int64, cost time.Duration) *constants.Lease {
		t.Helper()
		l, _, err := engine.Get(ctx, key(name), bytes, constants.Options{Cost: cost}, func(ctx context.Context) (constants.Value, error) {
			if e == nil {
				return constants.Value{Any: name, Bytes: bytes}, nil
			}
			b, err := e.Alloc(ctx, bytes)
			if err != nil {
				return constants.Value{}, err
			}
			return constants.Value{Any: b, Bytes: bytes, Free: b.Release}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	used := on(full, "used", 10, 0)
	for i := range 8 {
		on(full, fmt.Sprint(i), 10, time.Duration(1+(i+4)%8)*time.Second).End() // 4 is the cheapest
	}
	on(other, "other", 10, 0).End()
	on(nil, "host", 10, 0).End()
	there := func() (all string) {
		for i := range 8 {
			if l, ok := engine.Lookup(key(fmt.Sprint(i))); ok {
				l.End()
				all += fmt.Sprint(i)
			}
		}
		return all
	}
	var bufs []*gpuexec.Buffer
	for _, c := range []struct {
		bytes int64
		err   error
		left  string
	}{
		{10, nil, "01234567"}, {10, nil, "0123567"}, {20, nil, "01237"}, {30, nil, "23"}, {60, kiln.ErrTooLarge, ""}, {20, nil, ""}, {10, kiln.ErrTooLarge, ""},
	} {
		b, err := full.Alloc(ctx, c.bytes)
		if !errors.Is(err, c.err) || there() != c.left {
			t.Fatalf("%d bytes: %v, want %v; %s are left, want %s", c.bytes, err, c.err, there(), c.left)
		}
		if err == nil {
			bufs = append(bufs, b)
		}
	}
	for _, name := range []string{"used", "other", "host"} {
		if l, ok := engine.Lookup(key(name)); ok {
			l.End()
		} else {
			t.Errorf("the tensor %q went", name)
		}
	}
	if n := r.Constants().Stats().Removals[constants.Evicted]; n != 8 {
		t.Errorf("%d evicted, want 8", n)
	}
	used.End()
	for _, b := range bufs {
		b.Release()
	}
}

// T4: a computation that allocates has others' tensors go, and callers at once that all
// need room get it.
func TestAllocsAtOnceHaveUnusedConstantsGo(t *testing.T) {
	const callers, rounds = 4, 50
	r := open(t, kiln.Config{})
	e := must(r.Executor(ctx, &fakedevice.Backend{MostBytes: callers * 10}, 0))
	engine := must(r.Constants().Engine(constants.CPU, 0, ""))
	done := make(chan error, callers)
	for c := range callers {
		go func() {
			var err error
			for i := 0; i < rounds && err == nil; i++ {
				var l *constants.Lease
				l, _, err = engine.Get(ctx, constants.Key{ID: fmt.Sprint(c, i)}, 10, constants.Options{}, func(ctx context.Context) (constants.Value, error) {
					for {
						b, err := e.Alloc(ctx, 10)
						if errors.Is(err, kiln.ErrTooLarge) {
							continue // what another one had go may be a third one's by now
						}
						if err != nil {
							return constants.Value{}, err
						}
						return constants.Value{Any: b, Bytes: 10, Free: b.Release}, nil
					}
				})
				if err == nil {
					l.End()
				}
			}
			done <- err
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
