package gpuexec

import "slices"

// state is the pure core of an executor: which job runs when, and what becomes
// of the jobs when the device goes. It knows no channel, clock, driver or
// goroutine; a job is an address to it.
type state struct {
	capacity int // most jobs that wait
	workers  int // of the running generation
	idle     int
	queue    []*job // in order of arrival
	running  map[*job]struct{}
	phase    phase
	gen      uint64 // of the open device
}

type phase uint8

const (
	phaseUp     phase = iota
	phaseDown         // lost, being opened again
	phaseClosed       // for good
)

func newState(capacity, workers int) *state {
	return &state{capacity: capacity, workers: workers, idle: workers, running: make(map[*job]struct{}), gen: 1}
}

// effect is one thing the shell has to do.
type effect struct {
	run     *job    // hand to a worker; one is idle
	fail    *job    // answer with err; if it runs, end its driver call
	err     error   // of fail
	restart *uint64 // open the device again as this generation
	up      bool    // tell who waits for Ready
}

// submit takes a job in, or refuses it. Work of the executor's own (a release)
// is never refused while the device is there.
func (s *state) submit(j *job, out []effect) []effect {
	switch {
	case s.phase == phaseClosed:
		return append(out, effect{fail: j, err: ErrClosed})
	case s.phase == phaseDown:
		return append(out, effect{fail: j, err: ErrDeviceLost})
	case s.idle > 0:
		return s.start(j, out)
	case len(s.queue) >= s.capacity && !j.own:
		return append(out, effect{fail: j, err: ErrOverloaded})
	}
	s.queue = append(s.queue, j)
	return out
}

func (s *state) start(j *job, out []effect) []effect {
	s.idle--
	s.running[j] = struct{}{}
	return append(out, effect{run: j})
}

// withdraw forgets a job whose caller has left, and reports whether it was
// waiting; one that runs goes on, with its context ended.
func (s *state) withdraw(j *job) bool {
	i := slices.Index(s.queue, j)
	if i < 0 {
		return false
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	return true
}

// done notes that a worker of the generation is free again and gives it the
// next job. It reports whether the job's caller still waits for its result.
func (s *state) done(j *job, gen uint64, out []effect) (bool, []effect) {
	_, waited := s.running[j]
	delete(s.running, j)
	if gen != s.gen || s.phase != phaseUp {
		return waited, out
	}
	s.idle++
	if len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = s.queue[1:]
		out = s.start(next, out)
	}
	return waited, out
}

// lost answers everybody with ErrDeviceLost and has the device opened again.
func (s *state) lost(gen uint64, out []effect) []effect {
	if gen != s.gen || s.phase != phaseUp {
		return out // told twice, or of a device that is gone already
	}
	s.phase = phaseDown
	out = s.failAll(ErrDeviceLost, out)
	s.gen++
	next := s.gen
	return append(out, effect{restart: &next})
}

// up notes that the device of that generation runs.
func (s *state) up(gen uint64, out []effect) []effect {
	if s.phase != phaseDown || gen != s.gen {
		return out
	}
	s.phase, s.idle = phaseUp, s.workers
	return append(out, effect{up: true})
}

// close answers everybody with ErrClosed.
func (s *state) close(out []effect) []effect {
	if s.phase == phaseClosed {
		return out
	}
	s.phase = phaseClosed
	return s.failAll(ErrClosed, out)
}

func (s *state) failAll(err error, out []effect) []effect {
	for _, j := range s.queue {
		out = append(out, effect{fail: j, err: err})
	}
	for j := range s.running {
		out = append(out, effect{fail: j, err: err})
	}
	s.queue = nil
	clear(s.running)
	return out
}
