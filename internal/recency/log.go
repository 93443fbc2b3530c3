// Package recency notes uses in their order, without a lock: a policy that wants
// exact recency needs that from readers that must not wait.
package recency

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// segment is how many notes a part holds: in 1.5 KiB, or in 2.5 with their stamps.
	segment = 128
	// told is how many parts are filled before the consumer is told: a consumer at the
	// heels of the readers would take the lines that they are writing.
	told = 8
	// farthest is how many notes may wait for the consumer: some MiB of them, which it
	// takes in some milliseconds. Look-ups in a tight loop can outrun a consumer, and
	// neither may they wait nor may the log, or a turn that drains it, grow for ever.
	farthest = 1 << 15
	// nearest is the same for a crowd's notes, which have to be put in order as well.
	nearest = 1 << 11
	// outrun is how often a reader that is faster than the consumer looks at the clock,
	// in notes that were dropped; and slice how long it keeps the consumer off its core.
	outrun = 1 << 10
	slice  = time.Millisecond
	// kinds is how many kinds of notes there are, to those that look at what was dropped.
	kinds = 2
	// mostStripes bounds the memory on a machine of many cores.
	mostStripes = 16
)

// Log takes notes from any number of goroutines and hands them to one consumer
// in the order in which they were begun. Notes that overlap in time may come
// in either order. Every 128th note allocates.
//
// While one core makes the notes, they stand in stripe 0, and their places are their
// order. When others join in, its lines would go from core to core. So the next era
// begins, in which each core has a stripe, and a stamp from the processor orders the
// notes of all. Where there is no such stamp, all notes stand in stripe 0.
//
// INVARIANT: the era only grows, and a note reads it first. Of two notes that do not
// overlap, the later one has the later era; or the same, and the later stamp; or the
// same without stamps, and the later place in stripe 0.
type Log[T any] struct {
	era     atomic.Uint32 // odd: a crowd's, with a stripe for each core
	full    func()        // told once before a drain
	stripes []stripe[T]

	_ [64]byte // what notes write must not share a line with what they read

	waiting atomic.Int64  // notes in full parts that the consumer has not passed
	filled  atomic.Uint64 // parts, since the consumer came
	filler  atomic.Uint32 // who fills the parts of stripe 0, see fill

	// For the consumer only.
	fence   atomic.Uint32 // see cut
	streams []stream[T]
	looked  int // notes of a crowd since it was last judged
	drained int // messages that wait and that a drain has come after
}

// stripe is a line of parts.
type stripe[T any] struct {
	first, tail atomic.Pointer[part[T]] // notes go to the tail; nil before the first
	dropped     [kinds]atomic.Uint64    // notes that were counted only
	stamped     bool
	yielded     atomic.Int64 // when a reader gave way, since began
	_           [80]byte
}

type part[T any] struct {
	base  uint64 // notes of the stripe before this part
	after atomic.Pointer[part[T]]
	_     [48]byte
	next  atomic.Uint32 // places handed out; may run past the end
	_     [60]byte
	slots [segment]atomic.Pointer[T]

	// Written before the note's slot.
	eras   [segment]uint32
	stamps *[segment]uint64 // nil in stripe 0
}

// at is where the note of a place stands: on another line than the one before, which
// another core may just be writing.
func (p *part[T]) at(place uint32) uint32 {
	const lines, perLine = segment / 8, 8
	return place%lines*perLine + place/lines%perLine
}

// NewLog gives an empty log. full is called by the goroutine whose note is the 1,024th
// or so since the last drain, once before the next; it must return soon, and should get
// the consumer to drain.
func NewLog[T any](full func()) *Log[T] {
	n := 1
	if clock {
		n += 1 << bits.Len(uint(min(runtime.NumCPU(), mostStripes)-1)) // see stripeOf
	}
	l := &Log[T]{full: full, stripes: make([]stripe[T], n), streams: make([]stream[T], n)}
	for i := range l.streams {
		l.stripes[i].stamped = i > 0
		l.streams[i].of = &l.stripes[i]
	}
	return l
}

// Note appends v, which must not be nil, or counts it as one of a kind, 0 or 1, and
// reports false, if too many wait. Safe for concurrent use.
func (l *Log[T]) Note(v *T, kind int) bool {
	era, most := l.era.Load(), int64(farthest)
	if era&1 == 1 {
		most = nearest
	}
	if l.waiting.Load() >= most {
		l.drop(kind)
		return false
	}
	at, stamp := 0, uint64(0)
	if era&1 == 1 {
		var on uint32
		stamp, on = now()
		at = l.stripeOf(on)
	}
	s := &l.stripes[at]
	p := s.tail.Load()
	i := uint32(segment)
	if p != nil {
		i = p.next.Add(1) - 1
	}
	if i >= segment {
		p, i = s.take(p)
	}
	to := p.at(i)
	p.eras[to] = era
	if p.stamps != nil {
		p.stamps[to] = stamp
	}
	p.slots[to].Store(v)
	if i == segment-1 {
		s.advance(p)
		l.fill(era)
	}
	return true
}

// drop counts a note that cannot wait, where no other core counts.
func (l *Log[T]) drop(kind int) {
	s := &l.stripes[0]
	if len(l.stripes) > 1 {
		s = &l.stripes[l.stripeOf(core())]
	}
	if s.dropped[kind].Add(1)%outrun == 0 {
		s.giveWay()
	}
}

// giveWay has a reader that is faster than the consumer leave its core to others now
// and then. Where readers in a loop keep all cores busy, the consumer, and whoever asks
// it for something, would wait for a whole time slice of each of them.
func (s *stripe[T]) giveWay() {
	if now := int64(time.Since(began)); now-s.yielded.Load() > int64(slice) {
		s.yielded.Store(now)
		runtime.Gosched()
	}
}

var began = time.Now()

// stripeOf is the stripe of a core in a crowd: their number is a power of two.
func (l *Log[T]) stripeOf(core uint32) int { return 1 + int(core)&(len(l.stripes)-2) }

// take gives the next place, behind p, which is full; nil is before the first part.
func (s *stripe[T]) take(p *part[T]) (*part[T], uint32) {
	for {
		p = s.advance(p)
		if place := p.next.Add(1) - 1; place < segment {
			return p, place
		}
	}
}

// advance makes the part after p the tail, adding one if there is none, and gives the
// tail. nil is before the first part.
func (s *stripe[T]) advance(p *part[T]) *part[T] {
	after, base := &s.first, uint64(0)
	if p != nil {
		after, base = &p.after, p.base+segment
	}
	if after.Load() == nil {
		add := &part[T]{base: base}
		if s.stamped {
			add.stamps = new([segment]uint64)
		}
		after.CompareAndSwap(nil, add)
	}
	s.tail.CompareAndSwap(p, after.Load())
	return s.tail.Load()
}

// begun is how many places of the stripe were handed out so far.
func (s *stripe[T]) begun() uint64 {
	p := s.tail.Load()
	if p == nil {
		return 0
	}
	return p.base + uint64(min(p.next.Load(), segment))
}

// fill tells of a full part, once for each. In a crowd, parts of stripe 0 are filled
// by now one core, now another; a goroutine that goes to another core now and then is
// none.
func (l *Log[T]) fill(era uint32) {
	l.waiting.Add(segment)
	if clock && era&1 == 0 {
		const ofCore, crowd = 8, 3 // changes among the last eight
		_, core := now()
		last := l.filler.Load()
		changes := last << 1 & (1<<ofCore - 1)
		if last>>ofCore != core {
			changes |= 1
		}
		l.filler.Store(core<<ofCore | changes)
		if bits.OnesCount32(changes) >= crowd {
			l.gather(era)
		}
	}
	if l.filled.Add(1) == told {
		l.full()
	}
}

// gather begins the era of a crowd after one without stamps.
func (l *Log[T]) gather(era uint32) { l.era.CompareAndSwap(era&^1, era|1) }

// Count is the number of notes begun so far: a counter of uses that costs its
// users nothing more. Safe for concurrent use.
func (l *Log[T]) Count() (n uint64) {
	for i := range l.stripes {
		n += l.stripes[i].begun()
	}
	return n + l.Dropped(0) + l.Dropped(1)
}

// Dropped is the number of notes of a kind that were counted only. Safe for concurrent
// use.
func (l *Log[T]) Dropped(kind int) (n uint64) {
	for i := range l.stripes {
		n += l.stripes[i].dropped[kind].Load()
	}
	return n
}
