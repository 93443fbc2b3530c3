package artefacts_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// warned is the handler of a log that calls a function for each warning.
type warned struct {
	slog.Handler
	do func()
}

func (h warned) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (h warned) Handle(context.Context, slog.Record) error    { h.do(); return nil }

// F6, F8: a Free, listener or handler of a log that closes its own cache would wait for itself: it is told
// so, and the cache closes.
func TestClosedByItsOwnFree(t *testing.T) {
	for _, by := range []string{"free", "listener", "log"} {
		var c *artefacts.Cache
		answers := make(chan error, 3)
		closes := func() { answers <- c.Close(background) }
		cfg, free := artefacts.Config{Entries: limit.Of(1)}, closes
		switch by {
		case "listener":
			cfg.Evicted, free = func(string, artefacts.Cause) { closes() }, nil
		case "log":
			cfg.Logger, free = slog.New(warned{slog.DiscardHandler, closes}), func() { panic("which is logged") }
		}
		var err error
		if c, err = artefacts.Open(cfg); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b"} {
			l, _, err := c.Get(background, artefacts.Request{Key: key, Create: func(context.Context) (artefacts.Built, error) {
				b := artefacts.Built{}
				if key == "a" {
					b.Free = free
				}
				return b, nil
			}})
			if err != nil && (key == "a" || !errors.Is(err, fault.ErrClosed)) { // b evicts a, which closes
				t.Fatal(err)
			}
			l.End()
		}
		want(t, "close", errors.Is(<-answers, fault.ErrCycle), true)
		want(t, "close by another", c.Close(background), nil)
	}
}

// F8: a creator, a Load, or the creator of a kernel that closes its own cache would wait for
// itself, with whatever context: it is told so at once, and the cache closes.
func TestClosedByItsOwnCreator(t *testing.T) {
	for _, by := range []string{"creator", "load", "kernel", "creator of a key that it asks for"} {
		c, err := artefacts.Open(artefacts.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var answer error
		closes := func(context.Context) (artefacts.Built, error) {
			answer = closed(c)
			return artefacts.Built{}, nil
		}
		q := artefacts.Request{Key: "a", Create: closes}
		switch by {
		case "load":
			q.Load = func(ctx context.Context, _ []byte) (artefacts.Built, error) { return closes(ctx) }
			_, _, _ = c.FromBlob(background, q, []byte("blob"))
		case "kernel":
			q.Create = func(ctx context.Context) (artefacts.Built, error) {
				_, err := c.Kernel(ctx, artefacts.Request{Key: "kernel", Create: closes})
				return artefacts.Built{}, err
			}
		case "creator of a key that it asks for":
			q.Create = func(ctx context.Context) (artefacts.Built, error) {
				_, _, err := c.Get(ctx, artefacts.Request{Key: "b", Create: closes})
				return artefacts.Built{}, err
			}
		}
		if by != "load" {
			_, _, _ = c.Get(background, q)
		}
		if err := closed(c); err != nil || !errors.Is(answer, fault.ErrCycle) {
			t.Errorf("closed by a %s: %v; and then: %v", by, answer, err)
		}
	}
}

// closed is the error of closing, or of waiting for it for ever.
func closed(c *artefacts.Cache) error {
	waiting, stop := context.WithTimeout(background, 10*time.Second)
	defer stop()
	return c.Close(waiting)
}

// F6: Config.Hash is user code: it runs on callers, and in no turn.
func TestHashOutsideOfTurns(t *testing.T) {
	var placed atomic.Int64
	c := open(t, artefacts.Config{Entries: limit.Of(3), Hash: func(key string) uint64 {
		if placed.Add(1); actorstest.InTurn() {
			t.Errorf("%q is placed in a turn", key)
		}
		return uint64(len(key))
	}})
	for _, whole := range each("k", 0, 20) {
		c.get(whole, maker{kernel: "x" + whole, nest: []string{"part of " + whole}})
		r := c.request(c.Cache, "whole of "+whole, maker{})
		r.Part, r.Whole = whole, "all of "+whole
		said(c.Get(background, r))
		c.peek(whole)
		said(c.Force(background, c.request(c.Cache, whole, maker{})))
	}
	c.setEntries(0)
	if placed.Load() == 0 {
		t.Error("nothing was placed")
	}
}
