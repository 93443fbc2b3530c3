package gpuexec

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/internal/flight"
)

// slots bounds the compiles of a device that run at once. Safe for concurrent use.
type slots struct {
	free    chan struct{} // capacity: as many as there are; what is in it is taken
	watch   chan struct{} // capacity 1: taken by the one that looks for circles, of all that wait
	running inSlots       // under compiles
	looks   int           // for circles so far; under looking, for tests
}

type inSlots map[flight.Creator]*compiling

// compiles are those that wait for a slot of any device of the process.
var compiles = struct {
	sync.Mutex
	waiting inSlots
}{waiting: make(inSlots)}

// looking is held by the one that looks for circles, which may go through many devices.
var looking sync.Mutex

func newSlots(n int) *slots {
	return &slots{free: make(chan struct{}, n), watch: make(chan struct{}, 1), running: make(inSlots)}
}

// glance is how often one of the compiles that wait for a slot looks for a circle (SPEC F5).
const glance = 100 * time.Millisecond

// take waits until f may run: in a slot, or beside one that waits for f. The error is that
// of the context, where nobody wants f any more. giveBack follows in every case.
func (s *slots) take(f *compiling) error {
	if err := f.Context().Err(); err != nil {
		return err
	}
	select {
	case s.free <- struct{}{}: // it is no wait, and no circle
		f.slotted = true
		s.runs(f)
		return nil
	default:
	}
	s.waits(f)
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
		s.runs(f)
		return nil
	}
}

func (s *slots) waits(f *compiling) {
	f.slots = s
	compiles.Lock()
	defer compiles.Unlock()
	compiles.waiting[f.Creator()] = f
}

func (s *slots) runs(f *compiling) {
	compiles.Lock()
	defer compiles.Unlock()
	delete(compiles.waiting, f.Creator())
	s.running[f.Creator()] = f
}

func (s *slots) giveBack(f *compiling) {
	compiles.Lock()
	delete(compiles.waiting, f.Creator())
	delete(s.running, f.Creator())
	compiles.Unlock()
	if f.slotted {
		<-s.free
	}
}

// look sees whether no slot would ever be free: every compile that runs waits, through
// flights of any room, for one that waits for a slot, of this device or of another one of
// which the same is true. Then one of those runs beside them, who do nothing meanwhile. It
// costs the same however many wait.
func (s *slots) look() {
	looking.Lock()
	defer looking.Unlock()
	s.looks++
	for work := make(map[*slots]bool); !work[s]; {
		if f := s.stuck(work); f != nil {
			f.letThrough()
			return
		}
	}
}

// stuck gives a compile that waits for a slot as look says, of s or of what it waits for. If
// there is none, it notes a device in work of which a slot will be free.
func (s *slots) stuck(work map[*slots]bool) (awaited *compiling) {
	seen := map[*slots]bool{s: true}
	for next := []*slots{s}; len(next) > 0; {
		at := next[0]
		next = next[1:]
		running := at.all()
		if len(running) < cap(at.free) { // one is free, or has just been taken
			work[at] = true
			return nil
		}
		for _, c := range running {
			awaited = nil
			c.Awaited(func(c flight.Creator) bool {
				if f := waiting(c); f != nil && !work[f.slots] {
					awaited = f
				}
				return awaited != nil
			})
			if awaited == nil {
				work[at] = true
				return nil
			}
			if !seen[awaited.slots] {
				seen[awaited.slots] = true
				next = append(next, awaited.slots)
			}
		}
	}
	return awaited
}

// all gives those that run.
func (s *slots) all() []flight.Creator {
	compiles.Lock()
	defer compiles.Unlock()
	return slices.Collect(maps.Keys(s.running))
}

// waiting gives the compile that waits for a slot, or nil.
func waiting(c flight.Creator) *compiling {
	compiles.Lock()
	defer compiles.Unlock()
	return compiles.waiting[c]
}

// letThrough has a compile that waits run without a slot, once.
func (f *compiling) letThrough() {
	compiles.Lock()
	defer compiles.Unlock()
	if compiles.waiting[f.Creator()] != nil {
		delete(compiles.waiting, f.Creator())
		close(f.through)
	}
}
