package blobstore

import (
	"errors"
	"slices"
	"strings"
	"sync"
)

// commits gathers the syncs of stores that wait at the same time (SPEC P18): one pass
// serves all that asked before it began, and one pass follows another.
type commits struct {
	running turnstile // of the pass under way
	mu      struct {
		sync.Mutex
		next *round
	}
}

// round is one pass of syncs. Its fields are complete when it begins.
type round struct {
	stores int
	names  []string // some more than once
	done   chan struct{}
	failed map[string]error // set when done
}

// syncedAtOnce bounds the syncs of a pass that run at the same time, where several
// stores wait.
const syncedAtOnce = 8

// commit makes files, and the names in folders, survive a loss of power (SPEC P10). A
// name that ends with "/" is that of a folder. With evicted, a name that is gone is no
// error.
func (s *Store) commit(evicted bool, names ...string) error {
	c := &s.commits
	c.mu.Lock()
	p := c.mu.next
	first := p == nil
	if first {
		p = &round{done: make(chan struct{}), failed: map[string]error{}}
		c.mu.next = p
	}
	p.stores++
	p.names = append(p.names, names...)
	c.mu.Unlock()
	if first {
		c.running <- struct{}{}
		c.mu.Lock()
		c.mu.next = nil // who asks from now on waits for the next pass
		c.mu.Unlock()
		s.carry(p)
		close(p.done)
		c.running.unlock()
	}
	<-p.done
	var err error
	for _, name := range names {
		if e := p.failed[name]; !evicted || !isGone(e) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// carry makes a pass. For one store it syncs what that store named. For several it is one call
// for the whole file system, if the system has one: that costs as much as whatever other
// programs have written there, and is cheaper than five syncs for each small store. If
// the call fails, or there is none, each name is synced once.
func (s *Store) carry(p *round) {
	if p.stores > 1 && !s.cfg.Shared && s.main.SyncAll() == nil {
		return
	}
	slices.Sort(p.names)
	p.names = slices.Compact(p.names)
	atOnce := 1
	if p.stores > 1 {
		atOnce = syncedAtOnce
	}
	var mu sync.Mutex
	for names := range slices.Chunk(p.names, atOnce) {
		var wg sync.WaitGroup
		for _, name := range names {
			wg.Go(func() {
				if err := s.sync(name); err != nil {
					mu.Lock()
					defer mu.Unlock()
					p.failed[name] = err
				}
			})
		}
		wg.Wait()
	}
}

func (s *Store) sync(name string) error {
	if folder, ok := strings.CutSuffix(name, "/"); ok {
		return s.syncDir(folder)
	}
	f, err := s.main.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
