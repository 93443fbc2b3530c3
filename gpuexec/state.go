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
	capacity int                 // most jobs that wait
	idle     int                 // workers of the open device that have nothing to do
	queue    list.List           // of J, in order of arrival
	places   map[J]*list.Element // there
	running  []J                 // one a worker; answered when their worker is done
	phase    phase
	gen      uint64 // of the device that is open, or is being opened
}

type phase uint8

const (
	phaseDown phase = iota // being opened
	phaseUp
	phaseClosed // for good
)

// newState gives the state of an executor whose first device, generation 1, is
// being opened.
func newState[J comparable](capacity int) *state[J] {
	return &state[J]{capacity: capacity, gen: 1, places: make(map[J]*list.Element)}
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
// is never refused while the device is there.
func (s *state[J]) submit(j J, own bool, out []effect[J]) []effect[J] {
	switch {
	case s.phase == phaseClosed:
		return append(out, effect[J]{do: fail, job: j, err: fault.ErrClosed})
	case s.phase == phaseDown:
		return append(out, effect[J]{do: fail, job: j, err: errGone})
	case s.idle > 0:
		return s.start(j, out)
	case s.queue.Len() >= s.capacity && !own:
		return append(out, effect[J]{do: fail, job: j, err: fault.ErrOverloaded})
	}
	s.places[j] = s.queue.PushBack(j)
	return out
}

func (s *state[J]) start(j J, out []effect[J]) []effect[J] {
	s.idle--
	s.running = append(s.running, j)
	return append(out, effect[J]{do: run, job: j})
}

// withdraw forgets a job whose caller has left, and reports whether it was
// waiting. One that runs goes on, with its context ended. It costs the same however
// many wait.
func (s *state[J]) withdraw(j J) bool {
	e := s.places[j]
	if e == nil {
		return false
	}
	delete(s.places, j)
	s.queue.Remove(e)
	return true
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
	if first := s.queue.Front(); first != nil {
		next := first.Value.(J)
		s.withdraw(next)
		out = s.start(next, out)
	}
	return waited, out
}

// lost answers everybody with ErrDeviceLost and has the device opened again. It
// does nothing for a device that is gone already.
func (s *state[J]) lost(gen uint64, out []effect[J]) []effect[J] {
	if gen != s.gen || s.phase != phaseUp {
		return out
	}
	return s.reopen(s.failAll(errGone, out))
}

func (s *state[J]) reopen(out []effect[J]) []effect[J] {
	s.phase = phaseDown
	s.gen++
	return append(out, effect[J]{do: reopen, gen: s.gen})
}

// up notes that the device of that generation is open with n workers; lost says
// that it has gone again meanwhile.
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

// close answers everybody with ErrClosed.
func (s *state[J]) close(out []effect[J]) []effect[J] {
	if s.phase == phaseClosed {
		return out
	}
	s.phase = phaseClosed
	return s.failAll(fault.ErrClosed, out)
}

func (s *state[J]) failAll(err error, out []effect[J]) []effect[J] {
	for e := s.queue.Front(); e != nil; e = e.Next() {
		out = append(out, effect[J]{do: fail, job: e.Value.(J), err: err})
	}
	for _, j := range s.running {
		out = append(out, effect[J]{do: fail, job: j, err: err})
	}
	s.queue.Init()
	clear(s.places)
	s.running = nil
	return out
}
