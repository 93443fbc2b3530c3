package advice

import (
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Belady is the offline optimum, which knows the whole stream and may also serve
// a shape without keeping it. It is a bound, not a policy of sessions.
const Belady = "belady"

// Setup is one cell of a simulation.
type Setup struct {
	Policy   string // that of a session (fifo, lru, sieve or duel), or Belady
	Groups   int    // capacity
	Keep     string // that of a session: always (or empty) or worth
	Announce int    // the shapes of the next Announce requests are announced
	Waiting  int    // requests are served out of Waiting+1 at hand in the order of SPEC S8; those left are announced
}

// Result counts the requests of a simulation, and those of them that hit.
type Result struct {
	Requests, Hits, Distinct int
}

// Ratio is hits by requests, 0 without requests.
func (r Result) Ratio() float64 {
	if r.Requests == 0 {
		return 0
	}
	return float64(r.Hits) / float64(r.Requests)
}

// kinds are the policies that Simulate knows: those of sessions, and Belady.
func kinds() (names []string) {
	for _, k := range policy.Kinds() {
		names = append(names, string(k))
	}
	return append(names, Belady)
}

// Simulate replays stream through the code that a session runs. A request is a
// hit if its group is resident. Every group counts one and costs the same; a miss
// registers its group at once, as a session does when nothing runs concurrently.
// Announce and Waiting do not change Belady's result, which is computed for the
// order of arrival. A bad setup is ErrInvalid.
func Simulate(stream []shapegroups.Shape, s Setup) (Result, error) {
	if s.Announce < 0 || s.Waiting < 0 {
		return Result{}, fault.Invalidf("advice: simulate", "announce %d and waiting %d must be at least 0", s.Announce, s.Waiting)
	}
	kind := s.Policy
	if kind == Belady {
		kind = string(policy.FIFO) // for the checks that all share
	}
	p, err := policy.New(policy.Config{Kind: policy.Kind(kind), Groups: s.Groups, Keep: policy.Keep(s.Keep)})
	if err != nil {
		return Result{}, err
	}
	r := Result{Requests: len(stream), Distinct: distinct(stream)}
	if s.Policy == Belady {
		r.Hits = belady(stream, s.Groups)
		return r, nil
	}
	c := cache{policy: p, groups: s.Groups}
	line := shapegroups.Queue[shapegroups.Shape]{Ahead: s.Waiting}
	resident := func(shape shapegroups.Shape) bool { return p.Resident(shape) != nil }
	var coming []shapegroups.Shape
	for next := 0; ; {
		for next < len(stream) && line.Len() <= s.Waiting {
			line.Push(stream[next])
			next++
		}
		shape, ok := line.Pop(resident)
		if !ok {
			return r, nil
		}
		if s.Announce > 0 || s.Waiting > 0 {
			coming = append(coming[:0], line.Waiting()...)
			if more := s.Announce - len(coming); more > 0 {
				coming = append(coming, stream[next:min(next+more, len(stream))]...)
			}
			p.Announce(coming)
		}
		if c.serve(shape) {
			r.Hits++
		}
	}
}

// cache is a session that holds nothing but its policy.
type cache struct {
	policy *policy.Policy
	groups int
}

// serve plays one request and says whether it was a hit.
func (c *cache) serve(shape shapegroups.Shape) bool {
	if c.policy.Request(shape) != nil {
		return true
	}
	if c.groups == 0 {
		return false
	}
	if c.policy.Len() >= c.groups {
		if !c.policy.Worth(shape, nil) {
			return false
		}
		c.policy.Remove(c.policy.Victim(nil, policy.Busy))
	}
	c.policy.Admit(shape, 1, 1)
	return false
}

// distinct is the number of different shapes in stream.
func distinct(stream []shapegroups.Shape) int {
	seen := make(map[shapegroups.Shape]struct{})
	for _, shape := range stream {
		seen[shape] = struct{}{}
	}
	return len(seen)
}
