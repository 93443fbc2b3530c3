package advice

import (
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/shapegroups"
)

// ErrInvalid is what a bad argument unwraps to.
var ErrInvalid = fault.ErrInvalid

const (
	// DefaultRequests is how many requests a Recorder keeps for advice, 40
	// bytes each, unless told otherwise.
	DefaultRequests = 1 << 13
	// windows of thrash are that many times the capacity, and at most mostWindow
	// requests, which bounds memory for capacities above 50 thousand groups.
	windowFactor = 20
	mostWindow   = 1 << 20
)

// Recorder keeps the last requests of one session. Its own cost per request is a
// few stores into a ring; distinct shapes are counted only while most requests
// miss. The memory grows with the requests seen.
type Recorder struct {
	keep   int // requests kept for advice
	groups int
	window int // requests looked at for thrash; 0 without a capacity

	room  int    // the longer of the two uses, at its longest
	ring  []note // grows by appending; then the oldest is overwritten
	next  int    // place after the newest
	total int    // requests seen
	sized int    // those when Full set the window

	missed    int                       // of the last window requests
	counts    map[shapegroups.Shape]int // in the window; nil while few miss
	repeated  int                       // shapes counted at least twice
	thrashing bool
	warnings  int
}

type note struct {
	asked, compiled shapegroups.Shape
	missed          bool
}

// NewRecorder keeps the last requests of a session with a capacity in groups,
// which may be math.MaxInt, for no bound. Negative numbers are ErrInvalid.
func NewRecorder(requests, groups int) (*Recorder, error) {
	if requests < 0 || groups < 0 {
		return nil, fault.Invalidf("advice: new recorder", "%d requests and %d groups must be at least 0", requests, groups)
	}
	r := &Recorder{keep: requests}
	r.resize(groups)
	return r, nil
}

// SetGroups tells that the session's capacity changed. Negative is ErrInvalid.
func (r *Recorder) SetGroups(groups int) error {
	if groups < 0 {
		return fault.Invalidf("advice: set groups", "%d groups: want 0 or more, or unlimited", groups)
	}
	r.resize(groups)
	return nil
}

// Full tells that the session evicts for bytes while it holds this many groups, which
// then stands for the capacity until SetGroups is told another (SPEC S5). Its cost is
// O(1) for a request, however often it is told.
func (r *Recorder) Full(groups int) {
	near := r.window > 0 && groups >= r.groups-r.groups/4 && groups <= r.groups+r.groups/4
	if groups < 1 || near || r.total-r.sized < windowFactor*groups {
		return
	}
	r.sized = r.total
	r.resize(groups)
}

func (r *Recorder) resize(groups int) {
	r.groups, r.window = groups, 0
	if groups > 0 && groups != math.MaxInt { // nothing is kept at 0: every request misses, and rightly
		r.window = min(groups, mostWindow/windowFactor) * windowFactor
	}
	r.room = max(r.room, r.keep, r.window)
	r.missed, r.counts, r.repeated = 0, nil, 0
	for i := range r.seen() {
		if r.at(r.total - 1 - i).missed {
			r.missed++
		}
	}
}

// Note records one request: the shape asked, the shape compiled for it after
// bucketing, and whether its group was not resident. It is true when a thrash
// warning is to be raised (SPEC S5): more distinct shapes than the capacity were
// each asked at least twice within the last 20 x capacity requests, over half of
// those requests missed, and that was not so the request before.
func (r *Recorder) Note(asked, compiled shapegroups.Shape, missed bool) (warn bool) {
	if r.window > 0 && r.total >= r.window && len(r.ring) >= r.window {
		r.leave(r.at(r.total - r.window))
	}
	r.put(asked, compiled, missed)
	if r.window == 0 {
		return false
	}
	if missed {
		r.missed++
	}
	if r.counts != nil {
		r.count(compiled)
	}
	seen := r.seen()
	over := 2*r.missed > seen
	switch {
	case over && r.counts == nil:
		r.counts, r.repeated = make(map[shapegroups.Shape]int), 0
		for i := range seen {
			r.count(r.at(r.total - 1 - i).compiled)
		}
	case r.counts != nil && 4*r.missed < seen: // well below, so that this is rare
		r.counts, r.repeated = nil, 0
	}
	was := r.thrashing
	r.thrashing = over && r.repeated > r.groups
	if r.thrashing && !was {
		r.warnings++
		return true
	}
	return false
}

// Warnings is the number of thrash warnings raised so far, Thrashing whether the
// last one has not ended.
func (r *Recorder) Warnings() int   { return r.warnings }
func (r *Recorder) Thrashing() bool { return r.thrashing }

// Asked are the last requests in order, as asked; Compiled the same as compiled.
// Both are fresh copies.
func (r *Recorder) Asked() []shapegroups.Shape {
	return r.stream(func(n *note) shapegroups.Shape { return n.asked })
}

func (r *Recorder) Compiled() []shapegroups.Shape {
	return r.stream(func(n *note) shapegroups.Shape { return n.compiled })
}

func (r *Recorder) stream(of func(*note) shapegroups.Shape) []shapegroups.Shape {
	n := min(r.keep, r.total, len(r.ring))
	all := make([]shapegroups.Shape, n)
	for i := range all {
		all[i] = of(r.at(r.total - n + i))
	}
	return all
}

// seen is the number of requests in the window.
func (r *Recorder) seen() int { return min(r.window, r.total, len(r.ring)) }

// at is request i of all, which must be among the last of the ring.
func (r *Recorder) at(i int) *note {
	place := r.next - (r.total - i)
	if place < 0 {
		place += len(r.ring)
	}
	return &r.ring[place]
}

// put appends to the ring until it has its room; after that it overwrites.
func (r *Recorder) put(asked, compiled shapegroups.Shape, missed bool) {
	if len(r.ring) < r.room {
		if r.next < len(r.ring) { // what was a full ring grows: oldest first again
			r.ring = slices.Concat(r.ring[r.next:], r.ring[:r.next])
		}
		r.ring = append(r.ring, note{asked, compiled, missed})
		r.next = len(r.ring)
	} else if len(r.ring) > 0 {
		if r.next == len(r.ring) {
			r.next = 0
		}
		n := &r.ring[r.next]
		n.asked, n.compiled, n.missed = asked, compiled, missed // one by one costs half of a copy
		r.next++
	}
	r.total++
}

func (r *Recorder) count(s shapegroups.Shape) {
	if r.counts[s]++; r.counts[s] == 2 {
		r.repeated++
	}
}

// leave takes a request that the window leaves behind out of the counts.
func (r *Recorder) leave(n *note) {
	if n.missed {
		r.missed--
	}
	if r.counts == nil {
		return
	}
	switch r.counts[n.compiled]--; r.counts[n.compiled] {
	case 1:
		r.repeated--
	case 0:
		delete(r.counts, n.compiled)
	}
}
