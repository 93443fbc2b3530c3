package constants

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// warned is the handler of a log that calls a function for each warning.
type warned struct {
	slog.Handler
	do func()
}

func (h warned) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (h warned) Handle(context.Context, slog.Record) error    { h.do(); return nil }

// F6, F8: what is told of a removal, a Free, and the handler of a log, that closes its own engine or cache would
// wait for itself: it is told so, and what it closes is closed.
func TestClosedByItsOwnCallback(t *testing.T) {
	bg := context.Background()
	var close func() error
	answers := make(chan error, 1)
	closes := func() {
		select {
		case answers <- close():
		default:
		}
	}
	told := Config{Listen: func(e Event) {
		if e.Removal != "" {
			closes()
		}
	}}
	for how, of := range map[string]struct {
		cfg     Config
		removed func(Removal)
		free    func()
	}{
		"callback": {removed: func(Removal) { closes() }},
		"free":     {free: closes},
		"listener": {cfg: told},
		"log":      {cfg: Config{Logger: slog.New(warned{slog.DiscardHandler, closes})}, removed: func(Removal) { panic("which is logged") }},
	} {
		for _, whole := range []bool{false, true} {
			c, e := open(t, of.cfg)
			if close = func() error { return e.Close(bg) }; whole {
				close = func() error { return c.Close(bg) }
			}
			o := add(t, e, "k", 1, Options{Removed: of.removed})
			l, err := o.Fulfil("v", 1, of.free)
			if err != nil {
				t.Fatal(err)
			}
			l.End()
			if there, err := e.Remove(bg, key("k")); !there || err != nil {
				t.Fatal(there, err)
			}
			if err := <-answers; !errors.Is(err, fault.ErrCycle) {
				t.Errorf("%s, of all %v: %v", how, whole, err)
			}
			if err := e.Close(bg); err != nil {
				t.Error(err)
			}
		}
	}
}

// F8: a value that every caller of a flight has left is freed on none of their goroutines, one
// of which may be a creator's: its Free is told that a close would wait for itself.
func TestClosedByTheFreeOfWhatWasLeft(t *testing.T) {
	bg := context.Background()
	c, e := open(t, Config{})
	answers := make(chan error, 1)
	held, err := add(t, e, "k", 1, Options{}).Fulfil("v", 1, func() { answers <- c.Close(bg) })
	if err != nil {
		t.Fatal(err)
	}
	if there, err := e.Remove(bg, key("k")); !there || err != nil {
		t.Fatal(there, err)
	}
	n := held.lease.Value()
	waitFor(t, func() bool { return !n.Value.cell.Leased() }) // its residency has let go
	e.shell.let(n)                                            // the last hold, as if it were the flight's
	if err := <-answers; !errors.Is(err, fault.ErrCycle) {
		t.Errorf("Close in the Free: %v", err)
	}
	if err := c.Close(bg); err != nil {
		t.Error(err)
	}
}
