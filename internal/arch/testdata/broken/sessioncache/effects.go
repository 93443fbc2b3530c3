package sessioncache

import (
	"log/slog"
	"os"
	"sync"

	"github.com/kiln-cache/kiln/actors"
)

func (s *state) lend() { go func() {}() }

func (s *state) wait() {
	select {
	case <-s.done:
	}
}

func (s *state) tell() { s.done <- struct{}{} }

func (s *state) renew() { s.done = make(chan struct{}) }

func (s *state) take() { <-s.done }

func (s *state) say() { slog.Info("said") }

func (s *state) print() any { return os.Stdout }

func (s *state) lock() any { return new(sync.Mutex) }

func (s *state) know(r *actors.Ref) string { return r.Own }
