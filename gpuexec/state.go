package gpuexec

import (
	"container/list"
	"slices"

	"github.com/kiln-cache/kiln/fault"
)

// state is the pure core of an executor: which job runs when, and what becomes of
// the jobs when the device goes. It knows no channel, clock, driver or goroutine.
// J stands for a job; the core only compares it.
type state[J comparable] struct {
	capacity int                 // most jobs that wait, for a worker or for other jobs
	idle     int                 // workers of the open device that have nothing to do
	queue    list.List           // of J, in the order in which they became ready
	places   map[J]*list.Element // there
	held     map[J]*hold[J]      // those that wait for other jobs
	after    map[J]*list.List    // of J: those of held that wait for this one, in order of arrival
	over     list.List           // of such lists: of jobs that have ended, see ready
	joining  list.List           // of J: those of held of which a turn has not looked at all that they wait for
	leaving  list.List           // of *hold: of jobs that have left, and are in after still
	left     func() bool         // that a turn may touch one more
	running  []J                 // one a worker; answered when their worker is done
	phase    phase
	gen      uint64 // of the device that is open, or is being opened
}

// hold is what a job waits for. It may name a job twice, and jobs that have ended.
type hold[J comparable] struct {
	left int // jobs that have not ended, of those looked at
	by   []J
	at   []*list.Element // in after, of each
	rest []J             // not looked at yet
}

type phase uint8

const (
	phaseDown phase = iota // being opened
	phaseUp
	phaseClosed // for good
)

// newState gives the state of an executor whose first device, generation 1, is
// being opened. left is asked before each thing that a turn touches.
func newState[J comparable](capacity int, left func() bool) *state[J] {
	return &state[J]{capacity: capacity, left: left, gen: 1, places: make(map[J]*list.Element), held: make(map[J]*hold[J]), after: make(map[J]*list.List)}
}

// effect is one thing that the shell has to do.
type effect[J comparable] struct {
	do  action
	job J      // of run and fail
	err error  // of fail
	gen uint64 // of reopen
}

type action uint8

const (
	run    action = iota // hand the job to a worker; one is idle
	fail                 // answer the job with err; if it runs, end its driver call
	reopen               // the device is lost: open it again as that generation
	ready                // the device runs: answer the callers that wait for it
)

// submit takes a job in, or refuses it. Work of the executor's own (a release)
// is never refused while the device is there. after are jobs that were submitted
// before: the job is not run before they have ended. Where there are more than a turn may
// look at, calls of ready follow.
func (s *state[J]) submit(j J, own bool, after []J, out []effect[J]) []effect[J] {
	full := s.waiting() >= s.capacity && !own
	switch {
	case s.phase == phaseClosed:
		return append(out, effect[J]{do: fail, job: j, err: fault.ErrClosed})
	case s.phase == phaseDown:
		return append(out, effect[J]{do: fail, job: j, err: errGone})
	case full && s.idle == 0:
		return append(out, effect[J]{do: fail, job: j, err: fault.ErrOverloaded})
	}
	h := &hold[J]{rest: after}
	free := s.join(j, h)
	switch {
	case free && s.idle > 0:
		return s.start(j, out)
	case full:
		if !s.part(h) {
			s.leaving.PushBack(h)
		}
		return append(out, effect[J]{do: fail, job: j, err: fault.ErrOverloaded})
	case free:
		s.places[j] = s.queue.PushBack(j)
		return out
	}
	if s.held[j] = h; len(h.rest) > 0 {
		s.joining.PushBack(j)
	}
	return out
}

// join has j wait for the jobs of h that have not ended, as far as a turn goes, and reports
// whether it waits for none.
func (s *state[J]) join(j J, h *hold[J]) (free bool) {
	for len(h.rest) > 0 && s.left() {
		other := h.rest[0]
		if h.rest = h.rest[1:]; !s.known(other) {
			continue
		}
		if s.after[other] == nil {
			s.after[other] = list.New()
		}
		h.by, h.at = append(h.by, other), append(h.at, s.after[other].PushBack(j))
		h.left++
	}
	return len(h.rest) == 0 && h.left == 0
}

// known reports whether a job has not ended.
func (s *state[J]) known(j J) bool {
	return s.places[j] != nil || s.held[j] != nil || slices.Contains(s.running, j)
}

// waiting is how many jobs wait.
func (s *state[J]) waiting() int { return s.queue.Len() + len(s.held) }

func (s *state[J]) start(j J, out []effect[J]) []effect[J] {
	s.idle--
	s.running = append(s.running, j)
	return append(out, effect[J]{do: run, job: j})
}

// ended has the jobs that waited for j alone run next, in their order, whatever became
// of it.
func (s *state[J]) ended(j J, out []effect[J]) []effect[J] {
	if waiters := s.after[j]; waiters != nil {
		delete(s.after, j)
		s.over.PushBack(waiters)
	}
	return s.ready(out)
}

// more reports whether calls of ready are to follow.
func (s *state[J]) more() bool {
	return s.phase == phaseUp && s.over.Len()+s.joining.Len()+s.leaving.Len() > 0
}

// ready goes through those that waited for jobs that have ended, as far as a turn goes, and
// gives what is ready to idle workers. It goes on with those that join and leave.
func (s *state[J]) ready(out []effect[J]) []effect[J] {
	for e := s.over.Front(); e != nil; e = s.over.Front() {
		waiters := e.Value.(*list.List)
		for w := waiters.Front(); w != nil && s.left(); w = waiters.Front() {
			s.release(waiters.Remove(w).(J))
		}
		if waiters.Len() > 0 {
			break
		}
		s.over.Remove(e)
	}
	for e := s.joining.Front(); e != nil && s.left(); e = s.joining.Front() {
		j := e.Value.(J)
		h := s.held[j]
		if h == nil { // it has left
			s.joining.Remove(e)
			continue
		}
		free := s.join(j, h)
		if len(h.rest) > 0 {
			break
		}
		if s.joining.Remove(e); free {
			s.release(j)
		}
	}
	for e := s.leaving.Front(); e != nil && s.part(e.Value.(*hold[J])); e = s.leaving.Front() {
		s.leaving.Remove(e)
	}
	for s.idle > 0 && s.queue.Len() > 0 {
		next := s.queue.Front().Value.(J)
		s.drop(next)
		out = s.start(next, out)
	}
	return out
}

// release is for a job that waits for one job less. It may have left.
func (s *state[J]) release(j J) {
	h := s.held[j]
	if h == nil {
		return
	}
	if h.left--; h.left <= 0 && len(h.rest) == 0 {
		delete(s.held, j)
		s.places[j] = s.queue.PushBack(j)
	}
}

// drop takes a job out of the queue and reports whether it was there.
func (s *state[J]) drop(j J) bool {
	e := s.places[j]
	if e != nil {
		delete(s.places, j)
		s.queue.Remove(e)
	}
	return e != nil
}

// forget takes a job out of those that wait, and reports whether it was among them. It
// costs the same however many wait for workers, and for how many it waits.
func (s *state[J]) forget(j J) bool {
	h := s.held[j]
	if h == nil {
		return s.drop(j)
	}
	delete(s.held, j)
	s.leaving.PushBack(h)
	return true
}

// part takes a job that has left out of after, as far as a turn goes, and reports whether it
// is in there no more.
func (s *state[J]) part(h *hold[J]) (over bool) {
	for n := len(h.by); n > 0; n = len(h.by) {
		if !s.left() {
			return false
		}
		other := h.by[n-1]
		if waiters := s.after[other]; waiters != nil {
			if waiters.Remove(h.at[n-1]); waiters.Len() == 0 {
				delete(s.after, other)
			}
		}
		h.by, h.at = h.by[:n-1], h.at[:n-1]
	}
	return true
}

// withdraw forgets a job whose caller has left, and reports whether it was
// waiting. One that runs goes on, with its context ended.
func (s *state[J]) withdraw(j J, out []effect[J]) (bool, []effect[J]) {
	if !s.forget(j) {
		return false, out
	}
	return true, s.ended(j, out)
}

// done notes that a worker of that generation is free again and gives it the next
// job. It reports whether the caller of the job still waits for its result.
func (s *state[J]) done(j J, gen uint64, out []effect[J]) (bool, []effect[J]) {
	i := slices.Index(s.running, j)
	waited := i >= 0
	if waited {
		s.running = slices.Delete(s.running, i, i+1)
	}
	if gen != s.gen || s.phase != phaseUp {
		return waited, out
	}
	s.idle++
	return waited, s.ended(j, out)
}

// lost answers those that run with ErrDeviceLost and has the device opened again. Calls
// of strand follow, for those that wait. It does nothing for a device that is gone already.
func (s *state[J]) lost(gen uint64, out []effect[J]) []effect[J] {
	if gen != s.gen || s.phase != phaseUp {
		return out
	}
	return s.reopen(s.stop(errGone, out))
}

func (s *state[J]) reopen(out []effect[J]) []effect[J] {
	s.phase = phaseDown
	s.gen++
	return append(out, effect[J]{do: reopen, gen: s.gen})
}

// up notes that the device of that generation is open with n workers; lost says
// that it has gone again meanwhile. Nobody waits any more that is to be answered first.
func (s *state[J]) up(gen uint64, n int, lost bool, out []effect[J]) []effect[J] {
	if s.phase != phaseDown || gen != s.gen {
		return out
	}
	if lost {
		return s.reopen(out)
	}
	s.phase, s.idle = phaseUp, n
	return append(out, effect[J]{do: ready})
}

// close answers those that run with ErrClosed. Calls of strand follow.
func (s *state[J]) close(out []effect[J]) []effect[J] {
	if s.phase == phaseClosed {
		return out
	}
	s.phase = phaseClosed
	return s.stop(fault.ErrClosed, out)
}

// stop answers the jobs that run. None of the others does from now on.
func (s *state[J]) stop(err error, out []effect[J]) []effect[J] {
	for _, j := range s.running {
		out = append(out, effect[J]{do: fail, job: j, err: err})
		delete(s.after, j)
	}
	s.running, s.idle = nil, 0
	s.over.Init()
	s.joining.Init()
	s.leaving.Init()
	return out
}

// stranded reports whether jobs wait for a device that is gone.
func (s *state[J]) stranded() bool { return s.phase != phaseUp && s.waiting() > 0 }

// strand answers them as far as a turn goes.
func (s *state[J]) strand(out []effect[J]) []effect[J] {
	err := fault.ErrClosed
	if s.phase == phaseDown {
		err = errGone
	}
	next := func(j J) bool {
		if !s.stranded() || !s.left() {
			return false
		}
		s.drop(j)
		delete(s.held, j)
		delete(s.after, j)
		out = append(out, effect[J]{do: fail, job: j, err: err})
		return true
	}
	for e := s.queue.Front(); e != nil && next(e.Value.(J)); e = s.queue.Front() {
	}
	for j := range s.held {
		if s.queue.Len() > 0 || !next(j) {
			break
		}
	}
	return out
}
