package blobstore

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
)

// startTimers keeps the hourly sweep and the writing of uses going until
// stopTimers was called.
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
	if since >= stale || since < 0 { // the clock was set back: begin a new hour
		s.sweep()
	}
}

// sweep removes what writers that were killed have left, by age. What this
// process made it may be writing now, and it knows how old that really is: a
// clock that was set forward does not take it away.
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

// Leases and marks are swept by shares; temporary files all go at once (SPEC P9),
// each of them paid for by one process of many. But every key that was ever built
// leaves the folder of its lease, so an open or a store that looked at all of them
// would take many times as long as reading the directory. A sweep therefore lists
// their names alone, each time from another place on, since a process may end soon,
// and looks at a few; every claim that ends looks at two more, so that who leaves
// one folder behind takes up to two away, and no more stay than the live ones and
// about twice what an hour makes.
var sweptByShares = []string{keyDir, markDir}

const (
	sweptAtOnce  = 32
	sweptByClaim = 2
)

// sweepShare looks at so many more names of each folder.
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
