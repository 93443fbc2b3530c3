package sessioncache

import "github.com/kiln-cache/kiln/internal/locks"

func (s *state) close() { close(s.done) }

func (s *state) late(a ask) bool { return a.ctx.Err() != nil }

func (s *state) end(a ask) { a.cancel() }

func (s *state) await() {
	for range s.done {
	}
}

// count takes a lock two calls further on.
func (s *state) count() { s.seen = counted() }

// again says nothing that count does not say.
func (s *state) again() { s.count() }

func counted() int { return locks.Next() }

// A shell may do what a core may not.
type shell struct{ state }

func (s *shell) close() { <-s.done }
