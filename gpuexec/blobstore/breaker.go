package blobstore

import (
	"errors"
	"sync"
	"time"
)

// breaker makes a store that cannot write pause before it tries again. Pauses double
// up to the ten minutes of SPEC P5.
type breaker struct {
	mu struct {
		sync.Mutex
		pause time.Duration // 0 = the last write succeeded
		until time.Time
	}
}

const (
	shortestPause = 5 * time.Second
	longestPause  = 10 * time.Minute
)

var errPaused = errors.New("writing failed a short while ago and is not tried yet")

// allow is nil if a write may be tried. A clock that was set back does not make a
// pause longer than longestPause.
func (b *breaker) allow(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if left := b.mu.until.Sub(now); b.mu.pause > 0 && left > 0 && left <= longestPause {
		return errPaused
	}
	return nil
}

func (b *breaker) broken() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.pause > 0
}

func (b *breaker) failed(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.pause = min(max(2*b.mu.pause, shortestPause), longestPause)
	b.mu.until = now.Add(b.mu.pause)
}

func (b *breaker) succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.pause = 0
}
