package guard

import (
	"context"
	"log/slog"

	"github.com/kiln-cache/kiln/internal/zone"
)

// Logger is l, whose handler is user code, for a room: a panic or runtime.Goexit of
// the handler loses one record and nothing else (SPEC F3). lend runs a function on
// another goroutine, which the call waits for: the handler is code of the zones that the call is
// code of. A nil l is silent.
func Logger(l *slog.Logger, lend func(fn func())) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	if _, guarded := l.Handler().(handler); guarded || l.Handler() == slog.DiscardHandler {
		return l
	}
	return slog.New(handler{l.Handler(), zone.Carry(lend)})
}

// handler is a user's handler on goroutines that it may end.
type handler struct {
	user slog.Handler
	lend func(fn func())
}

// ask calls the user's handler and gives the error of Guard.
func (h handler) ask(fn func() error) error {
	done := make(chan error, 1)
	h.lend(func() { Guard(fn, func(err error) { done <- err }) })
	return <-done
}

func (h handler) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	if _, own := h.user.(Warnings); own && level < slog.LevelWarn {
		return false // no goroutine is lent to find that out
	}
	err := h.ask(func() error { enabled = h.user.Enabled(ctx, level); return nil })
	return enabled && err == nil
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	return h.ask(func() error { return h.user.Handle(ctx, r) })
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.user.WithAttrs(attrs), h.lend}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.user.WithGroup(name), h.lend}
}

// Warnings is a handler that passes on what is at least a warning.
type Warnings struct{ To slog.Handler }

// Enabled, Handle, WithAttrs and WithGroup are those of a slog.Handler.
func (w Warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.To.Enabled(ctx, level)
}
func (w Warnings) Handle(ctx context.Context, r slog.Record) error { return w.To.Handle(ctx, r) }
func (w Warnings) WithAttrs(attrs []slog.Attr) slog.Handler        { return Warnings{w.To.WithAttrs(attrs)} }
func (w Warnings) WithGroup(name string) slog.Handler              { return Warnings{w.To.WithGroup(name)} }
