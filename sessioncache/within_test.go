package sessioncache_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// F6: the close of a handle of which nothing came does not wait for turns without end.
func TestHandleClosesBesideALongTurn(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		p := open(t, sessioncache.Config{})
		g := p.hold(1)
		end := sessioncache.Stall(p.Session)
		began := time.Now()
		g.Close()
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("closed after %v", took)
		}
		end()
		if _, err := p.Stream(bg); err != nil { // a turn after that
			t.Error(err)
		}
		want(t, "groups", p.Groups(), 0)
	})
}

// failed is the handler of a log that calls a function for each error.
type failed struct {
	slog.Handler
	do func()
}

func (h failed) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }
func (h failed) Handle(context.Context, slog.Record) error    { h.do(); return nil }

// F6, F8: a Free that closes or resets its own session, and a listener or a handler of the log
// that does, would wait for itself: it is told so.
func TestClosedByItsOwnFree(t *testing.T) {
	ends := map[string]func(*box) error{
		"Close":    func(p *box) error { return p.Close(bg) },
		"ResetAll": func(p *box) error { return p.ResetAll(bg) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			p := open(t, fifo(1))
			answers := make(chan error, 1)
			if err := p.Set(bg, shape(t, 1), "n", sessioncache.Value{Free: func() { answers <- end(p) }}, sessioncache.Options{}); err != nil {
				t.Fatal(err)
			}
			p.set(2, "n", "v") // evicts it
			wantError(t, name+" in a Free", <-answers, fault.ErrCycle)
			if name == "ResetAll" {
				want(t, "groups", p.Groups(), 1)
			}
			wantError(t, "Close", p.Close(bg), nil)
			want(t, "groups of what was closed", p.Groups(), 0)
		})
	}
	t.Run("in a log", func(t *testing.T) {
		var p *box
		answers := make(chan error, 1)
		c := fifo(1)
		c.Logger = slog.New(failed{slog.DiscardHandler, func() { answers <- p.Close(bg) }})
		p = open(t, c)
		if err := p.Set(bg, shape(t, 1), "n", sessioncache.Value{Free: func() { panic("which is logged") }}, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
		p.set(2, "n", "v")
		wantError(t, "Close", <-answers, fault.ErrCycle)
		wantError(t, "Close", p.Close(bg), nil)
	})
	t.Run("in a listener", func(t *testing.T) {
		var p *box
		answers := make(chan error, 1)
		c := fifo(1)
		c.Evicted = func(shapegroups.Shape, sessioncache.Cause) {
			select {
			case answers <- p.Close(bg):
			default:
			}
		}
		p = open(t, c)
		p.set(1, "n", "v")
		p.set(2, "n", "v")
		wantError(t, "Close", <-answers, fault.ErrCycle)
		wantError(t, "Close", p.Close(bg), nil)
	})
}

// F8: a Free that closes another session, and one that the last lease runs, wait for
// nothing of their own.
func TestOtherSessionClosedByAFree(t *testing.T) {
	p, other := open(t, fifo(1)), open(t, sessioncache.Config{})
	answers := make(chan error, 1)
	if err := p.Set(bg, shape(t, 1), "n", sessioncache.Value{Free: func() { answers <- other.Close(bg) }}, sessioncache.Options{}); err != nil {
		t.Fatal(err)
	}
	p.set(2, "n", "v")
	wantError(t, "Close of another", <-answers, nil)

	if err := p.Set(bg, shape(t, 1), "n", sessioncache.Value{Free: func() { answers <- p.Close(bg) }}, sessioncache.Options{}); err != nil {
		t.Fatal(err)
	}
	l := p.lease(1, "n")
	p.set(2, "n", "v")
	if err := p.ResetAll(bg); err != nil { // what was evicted has been torn
		t.Fatal(err)
	}
	l.End()
	wantError(t, "Close by the last lease", <-answers, nil)
}

// G13, F6: what Take asks of a value is asked of the one that it takes, and in no turn.
func TestTakeAsksOutsideOfTurns(t *testing.T) {
	p := open(t, sessioncache.Config{})
	p.set(1, "n", "first")
	g := p.hold(1)
	defer g.Close()
	asked := 0
	v, err := g.Take(bg, "n", 0, func(value any) bool {
		if asked++; asked == 1 {
			if value != "first" {
				t.Errorf("asked of %v", value)
			}
			ctx, cancel := context.WithTimeout(bg, 10*time.Second)
			defer cancel()
			if err := p.Set(ctx, shape(t, 1), "n", p.value("second"), sessioncache.Options{}); err != nil { // a turn
				t.Error(err)
			}
			return true
		}
		return value == "second"
	})
	if err != nil || v.Any != "second" || asked != 2 {
		t.Fatalf("took %v, asked %d times: %v", v.Any, asked, err)
	}
	v.Free()
	p.set(1, "n", "third")
	_, err = g.Take(bg, "n", 0, func(any) bool { return false })
	wantError(t, "what does not fit", err, fault.ErrInvalid)
}

// G14: nothing is taken unasked: no value that comes when none was found, and none of the
// group that came after the handle's.
func TestTakeAsksOfWhatCameLater(t *testing.T) {
	p := open(t, fifo(1))
	g := p.hold(1)
	defer g.Close()
	never := func(any) bool { return false }
	come := sync.OnceFunc(func() { p.set(1, "n", "first") })
	_, err := g.Take(leavingContext{bg, come}, "n", 0, never) // which has found nothing by then
	wantError(t, "what came meanwhile", err, fault.ErrInvalid)
	want(t, "n", text(g, "n"), "first")
	g.Remove("n", 0)
	p.set(2, "n", "v")
	want(t, "evicted", p.has(1), 0)
	p.set(1, "n", "second")
	_, err = g.Take(bg, "n", 0, never)
	wantError(t, "that of another group", err, fault.ErrInvalid)
	want(t, "n", p.get(1, "n"), "second")
}

// S2: what Take shows to fits is not freed meanwhile, also where it is of the group that has
// taken the place of the handle's own.
func TestTakeShowsNothingFreed(t *testing.T) {
	s := open(t, sessioncache.Config{Bytes: sessioncache.LimitOf(10)})
	h := s.outgrown(1)
	freed := false // ResetAll waits for what nobody uses
	if err := s.Set(bg, shape(t, 1), "x", sessioncache.Value{Free: func() { freed = true }}, sessioncache.Options{}); err != nil {
		t.Fatal(err)
	}
	_, err := h.Take(bg, "x", 0, func(any) bool {
		if err := s.ResetAll(bg); err != nil {
			t.Error(err)
		}
		want(t, "freed while fits looks", freed, false)
		return true
	})
	wantError(t, "Take of what is gone by then", err, fault.ErrNotFound)
	want(t, "freed", freed, true)
}

// F6: Config.Hash is user code: it runs on callers, and in no turn.
func TestHashOutsideOfTurns(t *testing.T) {
	pool, err := sessioncache.NewPool(sessioncache.LimitOf(100))
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := shapegroups.ParseBucketing("multiple:2")
	if err != nil {
		t.Fatal(err)
	}
	var placed atomic.Int64
	c := fifo(4)
	c.Pool, c.Hash = pool, func(key string) uint64 {
		if placed.Add(1); actorstest.InTurn() {
			t.Errorf("%q is placed in a turn", key)
		}
		return uint64(len(key))
	}
	other := open(t, sessioncache.Config{Pool: pool})
	for i := range 5 {
		if err := other.sized(i, "n", "v", 20); err != nil {
			t.Fatal(err)
		}
	}
	for _, c.Policy = range []string{"fifo", "lru", "sieve", "duel"} {
		for _, c.Bucket = range []shapegroups.Bucketing{{}, bucket} {
			p := open(t, c)
			for i := range 12 {
				if err := p.sized(i, "n", "v", 5); err != nil {
					t.Fatal(err)
				}
				g := p.hold(i)
				p.put(g, "m", "v")
				for _, name := range []string{"n", "made"} {
					if _, _, err := g.Get(bg, name, sessioncache.Options{Owner: "o"}, func(context.Context) (sessioncache.Value, error) {
						return sessioncache.Value{Bytes: 5}, nil
					}); err != nil {
						t.Fatal(err)
					}
				}
				p.Intern("m")
				p.Intern(strconv.Itoa(i))
				g.Remove("m", 0)
				p.Lookup(shape(t, i+1), "n", 0)
				g.Close()
			}
			if err := errors.Join(p.Announce(shape(t, 3)), p.Reset(bg, "o"), p.SetGroups(bg, sessioncache.LimitOf(1)), p.ResetAll(bg), p.Close(bg)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if placed.Load() == 0 {
		t.Error("nothing was placed")
	}
}

// S2, F6: of very many announced shapes those needed soonest count, each once.
func TestAnnouncedBeyondATurn(t *testing.T) {
	p := open(t, fifo(2))
	many := []shapegroups.Shape{shape(t, 1), shape(t, 1)}
	for i := range 5000 {
		many = append(many, shape(t, 10+i))
	}
	p.set(1033, "n", "v") // announced just too late to count: the 1,025th
	p.set(3, "n", "v")    // not announced, and younger
	if err := p.Announce(many...); err != nil {
		t.Fatal(err)
	}
	p.set(2, "n", "v")
	want(t, "3 stays", p.has(3), 1)
	want(t, "1033 goes", p.has(1033), 0)
	if n := p.stats().Touched; n > 4096 {
		t.Errorf("a turn touched %d", n)
	}
}

// F6: a value for which very many groups have to go has them go in several turns, whether
// it is set or made; it is kept.
func TestLargeValueTakesSeveralTurns(t *testing.T) {
	const many = 10_000
	for _, made := range []bool{false, true} {
		c := capacity("", many)
		c.Groups, c.Bytes = sessioncache.Unlimited, sessioncache.LimitOf(many)
		p := open(t, c)
		for i := range many {
			if err := p.sized(i, "n", "v", 1); err != nil {
				t.Fatal(err)
			}
		}
		g := p.hold(7)
		var err error
		if made {
			_, _, err = g.Get(bg, "large", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
				return sessioncache.Value{Bytes: many - 1}, nil
			})
		} else {
			err = p.sized(7, "large", "v", many-1)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, there := g.Lookup("large", 0)
		want(t, "kept", there, true)
		g.Close()
		want(t, "groups", p.Groups(), 1)
		want(t, "bytes", p.Bytes(), many)
		if n := p.stats().Touched; n > 4096 {
			t.Errorf("a turn touched %d", n)
		}
	}
}
