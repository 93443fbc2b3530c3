package blobstore

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
)

// startTimers starts the hourly sweep and the writing of uses each minute. Both go on
// until stopTimers is called.
func (s *Store) startTimers() {
	var mu sync.Mutex
	var stops [2]func() bool
	ended := false
	var arm func(i int, every time.Duration, do func())
	arm = func(i int, every time.Duration, do func()) {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		stops[i] = s.cfg.After(every, func() {
			if s.begin("store: timer") == nil {
				do()
				s.leave()
			}
			arm(i, every, do)
		})
	}
	s.stopTimers = func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		for _, stop := range stops {
			if stop != nil {
				stop()
			}
		}
	}
	arm(0, stale, s.maybeSweep)
	arm(1, flushEvery, func() { s.flushUses(false) })
}

// maybeSweep sweeps once an hour by the store's clock.
func (s *Store) maybeSweep() {
	s.mu.Lock()
	since := s.cfg.Now().Sub(s.mu.swept)
	s.mu.Unlock()
	if since >= stale || since < 0 { // or the clock was set back
		s.sweep()
	}
}

// sweep removes temporary files that are older than an hour: their writers were
// killed. The age of files of this process is measured by the real clock, so that an
// injected clock that jumps does not remove a file that is being written.
func (s *Store) sweep() {
	now := s.cfg.Now()
	s.mu.Lock()
	s.mu.swept = now
	s.mu.Unlock()
	before := now.Add(-stale)
	list, err := s.main.ReadDir(tmpDir)
	if err != nil {
		s.logOnce("sweep", err)
		return
	}
	for _, entry := range list {
		name := tmpDir + "/" + entry.Name
		info, err := s.main.Lstat(name)
		if err != nil || info.ModTime.After(before) || hostlock.Own(entry.Name) && time.Since(info.ModTime) < stale {
			continue
		}
		if err := s.main.RemoveAll(name); err != nil {
			s.logOnce("sweep", err)
			continue
		}
		s.tell(Event{Kind: "swept", Place: name})
	}
	for _, dir := range sweptByShares {
		list, err := s.main.ReadDir(dir)
		if err != nil {
			s.logOnce("sweep", err)
			continue
		}
		names := make([]string, len(list))
		first := rand.IntN(max(1, len(list)))
		for i := range list {
			names[i] = list[(first+i)%len(list)].Name
		}
		s.mu.Lock()
		s.mu.unswept[dir] = names
		s.mu.Unlock()
	}
	s.sweepShare(sweptAtOnce)
}

// Temporary files are swept all at once (SPEC P9), leases and marks by shares: every
// key that was ever built leaves the folder of its lease, and looking at all of them
// would take an Open many times as long as reading the directory. A sweep lists their
// names, from a random one on since the process may end soon, and looks at the first
// few. Every claim that ends looks at two more. It leaves one folder behind and
// removes up to two, so their number stays below the live ones and about twice those
// that an hour makes.
var sweptByShares = []string{keyDir, markDir}

const (
	sweptAtOnce  = 32
	sweptByClaim = 2
)

// sweepShare looks at the next names of each folder, at no more than most of them.
func (s *Store) sweepShare(most int) {
	before := s.cfg.Now().Add(-stale)
	for _, dir := range sweptByShares {
		s.mu.Lock()
		left := s.mu.unswept[dir]
		share := left[:min(most, len(left))]
		s.mu.unswept[dir] = left[len(share):]
		s.mu.Unlock()
		for _, name := range share {
			if dir == keyDir {
				s.leases.Sweep(name, before)
			} else {
				s.sweepMark(name)
			}
		}
	}
}
