package gpuexec

import (
	"sync"
	"time"

	"github.com/kiln-cache/kiln/internal/flight"
)

// slots bounds the compiles of a device that run at once. Safe for concurrent use.
type slots struct {
	free  chan struct{} // capacity: as many as there are; what is in it is taken
	watch chan struct{} // capacity 1: taken by the one that looks for circles, of all that wait

	mu struct {
		sync.Mutex
		running, waiting inSlots
		looks            int // for circles so far; for tests
	}
}

type inSlots map[flight.Creator]*compiling

func newSlots(n int) *slots {
	s := &slots{free: make(chan struct{}, n), watch: make(chan struct{}, 1)}
	s.mu.running, s.mu.waiting = make(inSlots), make(inSlots)
	return s
}

// glance is how often one of the compiles that wait for a slot looks for a circle (SPEC F5).
const glance = 100 * time.Millisecond

// take waits until f may run: in a slot, or beside one that waits for f. The error is that
// of the context, where nobody wants f any more. giveBack follows in every case.
func (s *slots) take(f *compiling) error {
	s.put(s.mu.waiting, f)
	watch := s.watch
	var tick <-chan time.Time
	for {
		select {
		case s.free <- struct{}{}:
			f.slotted = true
		case <-f.pass:
		case <-f.through:
		case <-f.Context().Done():
			return f.Context().Err()
		case watch <- struct{}{}: // as one of many that wait, it costs nothing
			watch = nil
			defer func() { <-s.watch }()
			ticker := time.NewTicker(glance)
			defer ticker.Stop()
			tick = ticker.C
			continue
		case <-tick:
			s.look()
			continue
		}
		s.put(s.mu.running, f)
		return nil
	}
}

func (s *slots) put(where inSlots, f *compiling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.waiting, f.Creator())
	where[f.Creator()] = f
}

func (s *slots) giveBack(f *compiling) {
	s.mu.Lock()
	delete(s.mu.waiting, f.Creator())
	delete(s.mu.running, f.Creator())
	s.mu.Unlock()
	if f.slotted {
		<-s.free
	}
}

// look sees whether no slot would ever be free: every compile that runs waits, through
// flights of any room, for one that waits for a slot. Then one of those runs beside them,
// who do nothing meanwhile. It costs the same however many wait.
func (s *slots) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.looks++
	waits := func(c flight.Creator) bool { return s.mu.waiting[c] != nil }
	var awaited flight.Creator
	for running := range s.mu.running {
		var ok bool
		if awaited, ok = running.Awaited(waits); !ok {
			return
		}
	}
	if f := s.mu.waiting[awaited]; f != nil {
		delete(s.mu.waiting, awaited) // once
		close(f.through)
	}
}
