package advice

import (
	"math"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/shapegroups"
)

// ErrInvalid is what a bad argument unwraps to.
var ErrInvalid = fault.ErrInvalid

const (
	// DefaultRequests is how many requests a Recorder keeps for advice, two bytes
	// each and some dozens for each shape among them, unless told otherwise.
	DefaultRequests = 1 << 13
	// windows of thrash are that many times the capacity, and at most mostWindow
	// requests, which bounds memory for capacities above 50 thousand groups.
	windowFactor = 20
	mostWindow   = 1 << 20
	// A window that begins anew is counted from the newest request on: so many at once, and
	// so many more with each request.
	atOnce, few = 1 << 7, 1 << 2
)

// Recorder keeps the last requests of one session. Its own cost per request is
// a few stores, whatever the capacity becomes; distinct shapes are counted only while most requests
// miss. The memory grows with the requests seen.
type Recorder struct {
	keep   int // requests kept for advice
	kept   ring
	groups int
	window int // requests looked at for thrash; 0 without a capacity

	room  int // of notes: the longest window so far
	notes notes
	total int // requests seen
	sized int // those when Full set the window; 0 = it has not, since SetGroups

	looked    int          // newest requests of the window that missed is of
	missed    int          // of these
	counted   int          // newest requests of the window that counts are of
	counts    map[note]int // by shape; nil while few miss
	repeated  int          // shapes counted at least twice
	thrashing bool
	warnings  int
}

// note is a request for the window: the hash of the shape compiled and, as its lowest
// bit, whether it missed. Two shapes of one hash would count as one, no more.
type note uint32

func noteOf(compiled shapegroups.Shape, missed bool) note {
	n := note(compiled.Hash()) &^ 1
	if missed {
		n |= 1
	}
	return n
}

func (n note) shape() note  { return n &^ 1 }
func (n note) missed() bool { return n&1 == 1 }

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
	r.sized = 0
	return nil
}

// Full tells that the session evicts for bytes while it holds the given number of
// groups. That number then stands for the capacity until SetGroups gives another one
// (SPEC S5). It costs O(1) for each request, however often Full is called.
func (r *Recorder) Full(groups int) {
	near := r.window > 0 && groups >= r.groups-r.groups/4 && groups <= r.groups+r.groups/4
	if groups < 1 || near || r.sized > 0 && r.total-r.sized < windowFactor*groups {
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
	r.room = max(r.room, r.window)
	r.looked, r.missed = 0, 0
	r.uncounted(nil)
	r.catchUp(atOnce)
}

// uncounted begins with other counts.
func (r *Recorder) uncounted(counts map[note]int) { r.counts, r.counted, r.repeated = counts, 0, 0 }

// catchUp looks at most requests of the window that it has not looked at.
func (r *Recorder) catchUp(most int) {
	seen := r.seen()
	for ; most > 0 && r.looked < seen; most-- {
		if r.notes.at(r.looked).missed() {
			r.missed++
		}
		r.looked++
	}
	for ; most > 0 && r.counts != nil && r.counted < seen; most-- {
		r.count(r.notes.at(r.counted))
	}
}

// Note records one request: the shape asked, the shape compiled for it after
// bucketing, and whether its group was not resident. It is true when a thrash
// warning is to be raised (SPEC S5): more distinct shapes than the capacity were
// each asked at least twice within the last 20 x capacity requests, over half of
// those requests missed, and that was not so the request before.
func (r *Recorder) Note(asked, compiled shapegroups.Shape, missed bool) (warn bool) {
	if r.total++; r.keep > 0 {
		r.kept.put(pair{asked, compiled}, r.keep)
	}
	if r.window > 0 && r.notes.len() >= r.window {
		r.leave(r.notes.at(r.window - 1))
	}
	n := noteOf(compiled, missed)
	r.notes.put(n, r.room)
	if r.window == 0 {
		return false
	}
	if r.looked++; missed {
		r.missed++
	}
	if r.counts != nil {
		r.count(n)
	}
	r.catchUp(few)
	seen := r.seen()
	if r.looked < seen {
		return false
	}
	over := 2*r.missed > seen
	switch {
	case over && r.counts == nil:
		r.uncounted(make(map[note]int))
		r.catchUp(atOnce)
	case r.counts != nil && 4*r.missed < seen: // well below, so that this is rare
		r.uncounted(nil)
	}
	was := r.thrashing
	switch {
	case !over:
		r.thrashing = false
	case r.repeated > r.groups || r.counted == seen: // more of them cannot be repeated less
		r.thrashing = r.repeated > r.groups
	}
	if r.thrashing && !was {
		r.warnings++
		return true
	}
	return false
}

// Warnings is the number of thrash warnings raised so far.
func (r *Recorder) Warnings() int { return r.warnings }

// Part is a run of requests, as asked and as compiled: those that are numbered from First
// on, of Total so far.
type Part struct {
	Asked, Compiled []shapegroups.Shape
	First, Total    int
}

// Part copies requests in order, at most the number given as most. It begins with
// request number from, or with the oldest that is kept if that one came later.
func (r *Recorder) Part(from, most int) Part {
	oldest := r.total - r.kept.len()
	p := Part{First: min(max(from, oldest), r.total), Total: r.total}
	n := min(most, r.total-p.First)
	p.Asked, p.Compiled = make([]shapegroups.Shape, n), make([]shapegroups.Shape, n)
	for i := range n {
		at := r.kept.at(p.First - oldest + i)
		p.Asked[i], p.Compiled[i] = at.asked, at.compiled
	}
	return p
}

// seen is the number of requests in the window.
func (r *Recorder) seen() int { return min(r.window, r.notes.len()) }

// count takes one request more into the counts.
func (r *Recorder) count(n note) {
	r.counted++
	if r.counts[n.shape()]++; r.counts[n.shape()] == 2 {
		r.repeated++
	}
}

// leave takes the oldest request of a full window, which it leaves behind, out of the counts.
func (r *Recorder) leave(n note) {
	if r.looked == r.window {
		if r.looked--; n.missed() {
			r.missed--
		}
	}
	if r.counted < r.window {
		return
	}
	r.counted--
	switch r.counts[n.shape()]--; r.counts[n.shape()] {
	case 1:
		r.repeated--
	case 0:
		delete(r.counts, n.shape())
	}
}
