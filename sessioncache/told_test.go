package sessioncache_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// told is what sessions said of their evictions.
type told struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *told) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *told) evicted(s shapegroups.Shape, why sessioncache.Cause) {
	_, _ = fmt.Fprintf(l, "%v %s, ", s, why)
}

// Each eviction of a group is told with its cause, in order, and Close waits for the
// last one. A listener that panics, or ends its goroutine, is called for the next one
// all the same. G2, G9, S3, S6, F3
func TestEvictionsAreTold(t *testing.T) {
	var l, log told
	p := newPool(t, 100)
	c := tenant(p, 0, 100)
	c.Groups, c.Logger = sessioncache.LimitOf(2), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c.Evicted = func(s shapegroups.Shape, why sessioncache.Cause) {
		l.evicted(s, why)
		if why == sessioncache.ForGroups {
			panic("of the test")
		}
		if why == sessioncache.ForMemory {
			runtime.Goexit()
		}
	}
	s, room := watched(t, c)
	sized := func(b *box, n int, bytes int64) {
		t.Helper()
		if err := b.sized(n, "x", "v", bytes); err != nil {
			t.Fatal(err)
		}
	}
	for n := 1; n <= 3; n++ { // 1 goes
		sized(s, n, 40)
	}
	if err := s.SetGroups(bg, sessioncache.LimitOf(9)); err != nil {
		t.Fatal(err)
	}
	sized(s, 4, 60)                          // 2 goes
	room.Shrink(bg, 40, pressure.Spare)      // 3 goes
	sized(open(t, tenant(p, 0, 100)), 1, 50) // 4 goes
	h, err := s.Group(bg, shape(t, 9))
	if err != nil {
		t.Fatal(err)
	}
	h.Close() // nothing came of it: that is no eviction
	sized(s, 5, 10)
	if err := s.ResetAll(bg); err != nil {
		t.Fatal(err)
	}
	sized(s, 6, 10)
	if err := s.Close(bg); err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	for i, why := range []string{"groups", "bytes", "memory", "pool", "cleared", "cleared"} {
		fmt.Fprintf(&told, "%v %s, ", shape(t, i+1), why)
	}
	want(t, "told", l.b.String(), told.String())
	want(t, "logged", strings.Count(log.b.String(), `msg="session: evicted"`), 6)
	want(t, "counted, but for what was cleared", s.Stats().Evicted, 4)
}

// blocking is a log handler that blocks on a warning until it is told to go on.
type blocking struct {
	slog.Handler
	warned, goOn chan struct{}
}

func (b blocking) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		b.warned <- struct{}{}
		<-b.goOn
	}
	return nil
}

// S5, F6: a session whose log blocks in the warning of thrash serves on; Close waits
// for the log.
func TestThrashIsToldOffTheTurn(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		log := blocking{slog.NewTextHandler(io.Discard, nil), make(chan struct{}, 9), make(chan struct{})}
		c := fifo(4)
		c.Logger = slog.New(log)
		p := open(t, c)
		for n := range 600 {
			p.set(n%12, "n", "v")
		}
		<-log.warned
		g := p.hold(99)
		p.put(g, "n", "v")
		g.Close()
		p.hold(100).Close() // nothing comes of it
		want(t, "99 n", p.get(99, "n"), "v")
		ctx, stop := context.WithTimeout(bg, time.Minute)
		defer stop()
		wantError(t, "close while the log blocks", p.Close(ctx), context.DeadlineExceeded)
		close(log.goOn)
		if err := p.Close(bg); err != nil {
			t.Fatal(err)
		}
	})
}

// G9: each eviction that is told is counted, also that of a group for a name of its own.
func TestEvictionsForOwnNamesAreCounted(t *testing.T) {
	var l told
	b := open(t, sessioncache.Config{Bytes: sessioncache.LimitOf(10), Evicted: l.evicted})
	for _, name := range []string{"first", "second", "third"} {
		if err := b.Set(bg, shape(t, 1), name, sessioncache.Value{Bytes: 6}, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	b.outgrown(2) // it has those of shape 1 go, and then goes itself
	want(t, "counted", b.Stats().Evicted, uint64(4))
	if err := b.Close(bg); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	want(t, "told", strings.Count(l.b.String(), ","), 4)
}
