package artefacts_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// told collects what a cache tells of evictions and of itself. It is not safe for
// concurrent use before the cache is closed, as a listener need not be.
type told struct {
	evicted []string
	mu      sync.Mutex
	text    bytes.Buffer
}

func (l *told) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *told) lines(of string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), of)
}

func (l *told) listen(cfg artefacts.Config, level slog.Level) artefacts.Config {
	cfg.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level}))
	cfg.Evicted = func(key string, why artefacts.Cause) { l.evicted = append(l.evicted, key+" "+string(why)) }
	return cfg
}

// Each eviction is told with its cause, in order, and Close waits for the last one.
// A flight that goes, and a part that its whole takes over, are none. C1, C2, C10, D3
func TestEvictionsAreTold(t *testing.T) {
	var l told
	r := open(t, l.listen(entries(2), slog.LevelInfo))
	r.fill("a", "b", "c")
	if err := r.SetCapacity(limit.Of(9), limit.Of(100)); err != nil {
		t.Fatal(err)
	}
	r.get("d", maker{bytes: 99})
	r.setEntries(1)
	r.get("e", maker{owner: "o"})
	r.get("f", maker{fail: "x"})
	r.get("g", maker{owner: "o"})
	if err := r.Reset("o"); err != nil {
		t.Fatal(err)
	}
	r.fill("part")
	q := r.request(r.Cache, "whole", maker{})
	q.Part = "part"
	want(t, "whole", said(r.Get(context.Background(), q)), "whole by=miss")
	r.setEntries(0)
	r.setEntries(1)
	r.fill("h")
	r.close()
	want(t, "told", strings.Join(l.evicted, ", "), "a entries, b bytes, c entries, d entries, e entries, g owner, whole cleared, h cleared")
	want(t, "counted", r.Stats().Evictions, int64(len(l.evicted)))
}

// C2, F3: a listener that takes long hears of one eviction at a time, in order.
func TestEvictedOneAtATime(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var heard []string
		cfg := entries(1)
		cfg.Evicted = func(key string, _ artefacts.Cause) {
			heard = append(heard, "begins "+key)
			time.Sleep(time.Second)
			heard = append(heard, "ends "+key)
		}
		r := open(t, cfg)
		r.fill("a", "b", "c")
		r.close()
		want(t, "heard", strings.Join(heard, ", "), "begins a, ends a, begins b, ends b, begins c, ends c")
	})
}

// A listener that panics, or ends its goroutine, is called for the next one all the
// same, and Close does not wait for ever: F3.
func TestEvictedThatMisbehaves(t *testing.T) {
	var l told
	cfg := l.listen(entries(1), slog.LevelInfo)
	tell := cfg.Evicted
	cfg.Evicted = func(key string, why artefacts.Cause) {
		tell(key, why)
		(maker{panics: map[string]string{"a": "x"}[key], goexit: key == "b"}).misbehave()
	}
	r := open(t, cfg)
	r.fill("a", "b", "c", "d")
	r.close()
	want(t, "told", strings.Join(l.evicted, ", "), "a entries, b entries, c entries, d cleared")
	want(t, "logged", l.lines("artefacts: listener"), 2)
}

// The debug log says what was opened, made and evicted.
func TestDebugLog(t *testing.T) {
	var l told
	cfg := l.listen(entries(1), slog.LevelDebug)
	cfg.Evicted = nil
	r := open(t, cfg)
	r.fill("a", "b")
	r.close()
	for _, line := range []string{
		`msg="artefacts: opened" entries=1 bytes=unlimited`, `msg="artefacts: made" key=a by=miss`, `msg="artefacts: made" key=b by=miss`,
		`msg="artefacts: evicted" key=a for=entries`, `msg="artefacts: evicted" key=b for=cleared`,
	} {
		want(t, line, l.lines(line), 1)
	}
}

// S5: a cache that makes again and again what it evicted says so, by entries and by
// bytes, once for as long as it lasts, and in the log at most once a minute.
func TestThrash(t *testing.T) {
	const capacity = 8
	many, few := each("k", 1, 2*capacity), each("k", 1, capacity)
	run := func(r room, rounds int, keys []string) {
		for range rounds {
			for _, k := range keys {
				r.get(k, maker{})
			}
		}
	}
	for _, c := range []struct {
		what string
		cfg  artefacts.Config
	}{
		{"entries", entries(capacity)},
		{"bytes", artefacts.Config{Bytes: limit.Of(capacity)}},
	} {
		t.Run(c.what, func(t *testing.T) {
			var l told
			now := time.Unix(1e9, 0)
			var mu sync.Mutex
			cfg := l.listen(c.cfg, slog.LevelInfo)
			cfg.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
			r := open(t, cfg)
			run(r, 50, few)
			want(t, "all fits", r.Stats().Thrash, 0)
			run(r, 50, many)
			want(t, "thrash", r.Stats().Thrash, 1)
			run(r, 50, few) // it ends
			run(r, 50, many)
			want(t, "thrash again", r.Stats().Thrash, 2)
			eventually(t, "logged", func() int { return l.lines("artefacts: thrash") }, 1)
			run(r, 50, few)
			mu.Lock()
			now = now.Add(time.Minute)
			mu.Unlock()
			run(r, 50, many)
			want(t, "thrash later", r.Stats().Thrash, 3)
			r.close()
			want(t, "logged", l.lines("artefacts: thrash"), 2)
		})
	}
	for _, c := range []struct {
		what string
		do   func(r room)
	}{
		{"only new keys", func(r room) { r.fill(each("new", 1, 500)...) }},
		{"one key again and again", func(r room) {
			for i := range 100 {
				r.fill("k")
				r.fill(each("new"+strconv.Itoa(i)+"-", 1, capacity)...)
			}
		}},
		{"most are hits", func(r room) {
			for range 50 {
				for _, k := range many {
					r.get(k, maker{})
					for range 3 {
						r.get(k, maker{})
					}
				}
			}
		}},
		{"most are stored", func(r room) {
			for _, k := range slices.Repeat(many, 50) {
				r.get(k, maker{})
				r.settle()
			}
		}},
	} {
		cfg := entries(capacity)
		if c.what == "most are stored" {
			cfg.Store = newShelf(t)
		}
		r := open(t, cfg)
		if c.do(r); r.Stats().Thrash != 0 {
			t.Errorf("%s: %d warnings", c.what, r.Stats().Thrash)
		}
	}
}

// A listener of calls that panics, or ends the caller's goroutine, keeps no artefact
// alive, whatever the call was; a panic does not even fail the call: F3, C5.
func TestListenerKeepsNoLease(t *testing.T) {
	get := func(r room) string { return r.get("k", maker{}) }
	calls := map[string]func(room) string{
		"hit": get,
		"miss": func(r room) string {
			r.setEntries(0)
			r.setEntries(2)
			return get(r)
		},
		"lookup":     func(r room) string { r.Lookup("k"); return "k by=hit" },
		"force":      func(r room) string { return said(r.Force(context.Background(), r.request(r.Cache, "k", maker{}))) },
		"nested hit": func(r room) string { return r.get("nests", maker{nest: []string{"k"}}) },
	}
	for what, call := range calls {
		for _, bad := range []maker{{panics: "listener"}, {goexit: true}} {
			var l told
			var armed atomic.Bool
			cfg := l.listen(entries(2), slog.LevelInfo)
			cfg.Listen = func(string, artefacts.Outcome) {
				if armed.Load() {
					bad.misbehave()
				}
			}
			r := open(t, cfg)
			r.fill("k")
			armed.Store(true)
			got := make(chan string, 1)
			go func() { // the listener may end it
				defer close(got)
				got <- call(r)
			}()
			if answer := <-got; !bad.goexit && !strings.Contains(answer, " by=") {
				t.Errorf("%s: %s", what, answer)
			}
			armed.Store(false)
			r.setEntries(0)
			eventually(t, what+": not freed", func() int { return r.count(r.mu.creations, "k") - r.count(r.mu.freed, "k") }, 0)
			if l.lines("artefacts: listener") == 0 {
				t.Errorf("%s: nothing was logged", what)
			}
		}
	}
}

// C13: leases that hold more than the capacity beyond it are told of once, by entries
// and by bytes.
func TestOverleased(t *testing.T) {
	for what, cfg := range map[string]artefacts.Config{"entries": entries(2), "bytes": {Bytes: limit.Of(2)}} {
		var l told
		r := open(t, l.listen(cfg, slog.LevelInfo))
		r.fill(each("unleased", 1, 9)...)
		for i, k := range each("k", 1, 9) {
			lease, _, err := r.Get(context.Background(), r.request(r.Cache, k, maker{}))
			if err != nil {
				t.Fatal(err)
			}
			defer lease.End()
			if i < 4 { // 2 are resident, and no more than 2 are not
				want(t, what+" after "+k, r.Stats().Overleased, false)
			}
		}
		eventually(t, what, func() bool { return r.Stats().Overleased }, true)
		eventually(t, what+": logged", func() int { return l.lines("artefacts: overleased") }, 1)
	}
	r := open(t, entries(0))
	lease, _, err := r.Get(context.Background(), r.request(r.Cache, "k", maker{}))
	if err != nil {
		t.Fatal(err)
	}
	want(t, "disabled", r.Stats().Overleased, false)
	lease.End()
}

// C2: what a lower capacity evicts is told with the one of the two that was lowered.
func TestLoweredIsToldWithItsCause(t *testing.T) {
	var l told
	cfg := entries(9)
	cfg.Bytes = limit.Of(100)
	r := open(t, l.listen(cfg, slog.LevelInfo))
	r.get("a", maker{bytes: 60})
	r.fill("b", "c")
	if err := r.SetCapacity(limit.Limit{}, limit.Of(50)); err != nil {
		t.Fatal(err)
	}
	r.setEntries(1)
	r.close()
	want(t, "told", strings.Join(l.evicted, ", "), "a bytes, b entries, c cleared")
}

// rude is a log's handler that misbehaves.
type rude struct {
	slog.Handler
	maker
}

func (h rude) Enabled(context.Context, slog.Level) bool { return true }

func (h rude) Handle(context.Context, slog.Record) error {
	h.misbehave()
	return nil
}

// F3, C5: a log whose handler misbehaves fails no call and leaks nothing.
func TestLogMisbehaves(t *testing.T) {
	for what, bad := range map[string]maker{"panics": {panics: "x"}, "exits": {goexit: true}} {
		r := open(t, artefacts.Config{Logger: slog.New(rude{maker: bad})})
		want(t, what, r.get("k", maker{}), "k by=miss")
		want(t, what, r.get("k", maker{}), "k by=hit")
		r.close()
		want(t, what+": freed", r.count(r.mu.freed, "k"), 1)
	}
}

// C1: an artefact that is larger than the capacity in bytes, and so is made again for
// each caller, is told of once, with both sizes.
func TestTooLargeToKeepIsTold(t *testing.T) {
	var l told
	r := open(t, l.listen(artefacts.Config{Bytes: limit.Of(2)}, slog.LevelInfo))
	for _, k := range []string{"fits", "large", "large", "larger"} {
		m := maker{bytes: int64(len(k)) - 2}
		lease, _, err := r.Get(context.Background(), r.request(r.Cache, k, m))
		if err != nil {
			t.Fatal(err)
		}
		lease.End()
	}
	want(t, "made", r.count(r.mu.creations, "large"), 2)
	r.close() // after all that was told
	want(t, "logged", l.lines("artefacts: an artefact is larger than the capacity in bytes"), 1)
	want(t, "with the sizes", l.lines("key=large bytes=3 capacity=2"), 1)
}

// C1: with capacity 0 nothing is kept, whatever its size: no artefact is too large.
func TestNothingIsTooLargeForACacheThatIsOff(t *testing.T) {
	var l told
	r := open(t, l.listen(artefacts.Config{Bytes: limit.Of(0)}, slog.LevelInfo))
	r.get("large", maker{bytes: 3})
	r.close() // after all that was told
	want(t, "logged", l.lines("artefacts: an artefact is larger"), 0)
}

// S5, F6: a listener that blocks keeps the thrash line from the log no longer.
func TestThrashIsToldBesideAListenerThatBlocks(t *testing.T) {
	var l told
	gate := make(chan struct{})
	cfg := l.listen(entries(2), slog.LevelInfo)
	cfg.Evicted = func(string, artefacts.Cause) { <-gate }
	r := open(t, cfg)
	for n := 0; l.lines("artefacts: thrash") == 0; n++ {
		if n > 10_000 {
			close(gate)
			t.Fatal("no thrash line while the listener blocks")
		}
		r.fill("k" + strconv.Itoa(n%4))
	}
	close(gate)
}
