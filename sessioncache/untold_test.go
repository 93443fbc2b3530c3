package sessioncache_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

func (l *told) count(of string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), of)
}

// S5, F6: a listener that blocks keeps neither the thrash line from the log nor memory for
// more than a bounded number of evictions: the others are counted.
func TestListenerThatBlocks(t *testing.T) {
	before := lease.MostUntold
	t.Cleanup(func() { lease.MostUntold = before }) // after the session's end
	lease.MostUntold = 1000
	var l told
	gate, in, heard := make(chan struct{}), make(chan struct{}, 1), 0
	c := sessioncache.Config{Policy: "lru", Groups: sessioncache.LimitOf(4), Logger: slog.New(slog.NewTextHandler(&l, nil))}
	c.Evicted = func(shapegroups.Shape, sessioncache.Cause) {
		select {
		case in <- struct{}{}:
		default:
		}
		<-gate
		heard++
	}
	b := open(t, c)
	for n := 1; l.count("session: thrash") == 0 && n < 500; n++ {
		b.set(1+n%5, "x", "v")
	}
	lines := func() int { return l.count("session: thrash") } // written on another goroutine
	eventually(t, func() bool { return lines() == 1 }, func() any { return lines() }, "thrash lines while the listener blocks", 1)
	<-in // it waits with one of them
	for n := 0; b.Stats().Evicted < 1009; n++ {
		b.set(1+n%5, "x", "v")
	}
	if n := b.Stats().Untold; n != 8 {
		t.Errorf("%d evictions are not told of, want 8 of %d", n, b.Stats().Evicted)
	}
	close(gate)
	if err := b.Close(bg); err != nil {
		t.Fatal(err)
	}
	if all := int(b.Stats().Evicted+4) - int(b.Stats().Untold); heard != all { // the last 4 went at the end
		t.Errorf("told of %d evictions, want %d", heard, all)
	}
	if l.count("Evicted does not return in time") != 1 {
		t.Error("nobody was told that some are not told of")
	}
}

// S5, Q1: the thrash line of a session says which bound is short, also where that is the
// pool's.
func TestThrashLineHasTheBounds(t *testing.T) {
	p, err := sessioncache.NewPool(sessioncache.LimitOf(13))
	if err != nil {
		t.Fatal(err)
	}
	for c, want := range map[*sessioncache.Config]string{
		{Pool: p}:                          "groups=64 bytes=unlimited pool_bytes=13",
		{Bytes: sessioncache.LimitOf(13)}:  "groups=64 bytes=13\n",
		{Groups: sessioncache.LimitOf(13)}: "groups=13 bytes=unlimited\n",
	} {
		var l told
		c.Policy, c.Logger = "lru", slog.New(slog.NewTextHandler(&l, nil))
		b := open(t, *c)
		for n := 0; b.Stats().Thrash == 0 && n < 1000; n++ {
			if err := b.sized(1+n%20, "x", "v", 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Close(bg); err != nil {
			t.Fatal(err)
		}
		if l.count("session: thrash") != 1 || l.count(want) != 1 {
			t.Errorf("%s: want %q", l.b.String(), want)
		}
	}
}

// S5: thrash is told as early where bytes bind as where groups do; without a capacity in
// groups what fits has to be known first.
func TestThrashByBytesIsToldAsEarly(t *testing.T) {
	const fit, shapes = 13, 20
	requests := make(map[string]int)
	for what, c := range map[string]sessioncache.Config{
		"groups":           {Policy: "lru", Groups: sessioncache.LimitOf(fit)},
		"bytes":            {Policy: "lru", Groups: sessioncache.Unlimited, Bytes: sessioncache.LimitOf(fit)},
		"bytes and groups": {Policy: "lru", Bytes: sessioncache.LimitOf(fit)},
	} {
		b := open(t, c)
		for n := 0; b.Stats().Thrash == 0 && n < 1000; n++ {
			if err := b.sized(1+n%shapes, "x", "v", 1); err != nil {
				t.Fatal(err)
			}
			requests[what] = n + 1
		}
	}
	if byGroups := requests["groups"]; byGroups > 40 || requests["bytes"] > byGroups+fit+1 || requests["bytes and groups"] != byGroups {
		t.Errorf("told after %v requests", requests)
	}
}
