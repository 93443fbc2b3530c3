package sessioncache

import (
	"context"
	"time"
)

type state struct {
	done chan struct{}
	asks []ask
	seen int
}

type ask struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// step hands a context on, which is not to use it.
func (s *state) step(a ask, now time.Time) time.Duration {
	s.asks = append(s.asks, a)
	return now.Sub(time.Time{})
}

func (s *state) age(began time.Time) time.Duration { return time.Since(began) }
