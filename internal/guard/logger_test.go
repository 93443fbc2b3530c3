package guard_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/internal/guard"
)

// hostile is a handler that panics or ends its goroutine at one of its methods.
type hostile struct {
	slog.Handler
	enabled, handle func()
}

func (h hostile) Enabled(context.Context, slog.Level) bool { h.enabled(); return true }

func (h hostile) Handle(ctx context.Context, r slog.Record) error {
	h.handle()
	return h.Handler.Handle(ctx, r)
}

// F3: a handler that panics or ends its goroutine loses a record, and its caller goes
// on; what a good one gets is unchanged.
func TestLogger(t *testing.T) {
	lend := func(fn func()) { go fn() }
	for what, harm := range map[string]func(){"panic": func() { panic("handler") }, "goexit": runtime.Goexit, "none": func() {}} {
		for _, in := range []string{"enabled", "handle"} {
			var out bytes.Buffer
			h := hostile{slog.NewTextHandler(&out, nil), func() {}, func() {}}
			if in == "enabled" {
				h.enabled = harm
			} else {
				h.handle = harm
			}
			l := guard.Logger(slog.New(h), lend)
			if guard.Logger(l, lend) != l {
				t.Error("guarded twice")
			}
			l.Warn("record", "b", 2)
			if got := strings.Contains(out.String(), "b=2"); got != (what == "none") {
				t.Errorf("%s in %s: %q", what, in, out.String())
			}
			l.With("a", 1).WithGroup("g").Warn("record", "b", 3)
			if !strings.Contains(out.String(), "a=1 g.b=3") {
				t.Errorf("with attributes: %q", out.String())
			}
		}
	}
	guard.Logger(nil, nil).Error("nobody hears it")
}

// rude is a handler that panics at each record, with attributes and groups too.
type rude struct{ records *int }

func (h rude) Enabled(context.Context, slog.Level) bool  { return true }
func (h rude) Handle(context.Context, slog.Record) error { *h.records++; panic("handler") }
func (h rude) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h rude) WithGroup(string) slog.Handler             { return h }

// F3: a logger that was made of a guarded one is guarded too.
func TestLoggerWithIsGuarded(t *testing.T) {
	records := 0
	l := guard.Logger(slog.New(rude{&records}), func(fn func()) { go fn() })
	for what, l := range map[string]*slog.Logger{"attributes": l.With("a", 1), "a group": l.WithGroup("g")} {
		func() {
			defer func() {
				if v := recover(); v != nil {
					t.Errorf("with %s: the handler's panic came through: %v", what, v)
				}
			}()
			l.Warn("record")
		}()
	}
	if records != 2 {
		t.Errorf("%d records were handled, want 2", records)
	}
}

// What warnings leave out is found out without a goroutine: rooms tell of every compile.
func TestWarningsLendNothingForLess(t *testing.T) {
	var out bytes.Buffer
	lent := 0
	l := guard.Logger(slog.New(guard.Warnings{To: slog.NewTextHandler(&out, nil)}), func(fn func()) { lent++; go fn() })
	for _, l := range []*slog.Logger{l, l.With("a", 1), l.WithGroup("g")} {
		l.Debug("less")
		l.Info("less")
	}
	if lent != 0 || out.Len() > 0 {
		t.Errorf("%d goroutines are lent, %q is written", lent, out.String())
	}
	l.Warn("record")
	if !strings.Contains(out.String(), "record") || strings.Contains(out.String(), "less") {
		t.Errorf("%q is written", out.String())
	}
}
