// Package recency notes uses in their order, without a lock: a policy that wants
// exact recency needs that from readers that must not wait.
package recency

import "sync/atomic"

// segment is as many notes as are handed over at a time. 256 keep a drain far
// below the time of one actor turn and the memory at 2 KiB.
const segment = 256

// farthest is how many notes may wait for the consumer: 2 MiB of them, which it takes
// in some milliseconds. Look-ups in a tight loop can outrun a consumer, and neither
// may they wait nor may the log, or a turn that drains it, grow for ever.
const farthest = 1 << 18

// Log takes notes from any number of goroutines and hands them to one consumer
// in the order in which they were begun. Notes that overlap in time may come
// in either order. Note costs one atomic addition and one store; every 256th
// one allocates the next segment. When farthest notes wait, further ones are counted
// and dropped until the next Drain.
type Log[T any] struct {
	tail atomic.Pointer[part[T]] // where notes go
	full func()                  // told once a segment
	mute atomic.Bool             // farthest notes wait

	_ [64]byte // what the consumer writes must not share a line with what notes read

	drained atomic.Uint64 // notes before head
	dropped atomic.Uint64

	taken *T       // stands in the slot of a note that was handed over before an earlier one
	head  *part[T] // consumer only: holds the first note that was not handed over
	pos   int      // consumer only: its slot
}

type part[T any] struct {
	base  uint64 // notes before this part
	after atomic.Pointer[part[T]]
	_     [48]byte
	next  atomic.Uint32 // places handed out; may run past the end
	_     [60]byte
	slots [segment]atomic.Pointer[T]
}

// slot is where the note of a place stands: on another line than the one before,
// which another core may just be writing.
func (p *part[T]) slot(place uint32) *atomic.Pointer[T] {
	const lines, perLine = segment / 8, 8
	return &p.slots[place%lines*perLine+place/lines%perLine]
}

// NewLog gives an empty log. full is called by the goroutine whose note filled
// a segment; it must return soon, and should get the consumer to drain.
func NewLog[T any](full func()) *Log[T] {
	p := new(part[T])
	l := &Log[T]{full: full, taken: new(T), head: p}
	l.tail.Store(p)
	return l
}

// Note appends v, which must not be nil. Safe for concurrent use.
func (l *Log[T]) Note(v *T) {
	if l.mute.Load() {
		l.dropped.Add(1)
		return
	}
	for {
		p := l.tail.Load()
		i := p.next.Add(1) - 1
		if i < segment {
			p.slot(i).Store(v)
			if i == segment-1 {
				l.advance(p)
				l.filled(p)
			}
			return
		}
		l.advance(p)
	}
}

// Count is the number of notes begun so far: a counter of uses that costs its
// users nothing more. Safe for concurrent use.
func (l *Log[T]) Count() uint64 {
	p := l.tail.Load()
	return l.dropped.Load() + p.base + uint64(min(p.next.Load(), segment))
}

// advance makes the part after p the tail, adding one if there is none.
func (l *Log[T]) advance(p *part[T]) {
	if p.after.Load() == nil {
		p.after.CompareAndSwap(nil, &part[T]{base: p.base + segment})
	}
	l.tail.CompareAndSwap(p, p.after.Load())
}

// filled tells of a full part, once for each, and drops further notes if too many
// wait. The consumer may be far past p by now: its last writer may have been slow.
func (l *Log[T]) filled(p *part[T]) {
	if p.base+segment > l.drained.Load()+farthest {
		l.mute.Store(true) // until the Drain that full gets
	}
	l.full()
}

// Drain hands every note whose Note call has returned before to f, each once, in
// order. It never waits: a note that is still being written is left for a later
// Drain, and overlaps all that follow it here, since none of them began after
// this call. Only the one consumer may call it.
func (l *Log[T]) Drain(f func(*T)) {
	defer func() {
		l.drained.Store(l.head.base)
		if l.mute.Load() {
			l.mute.Store(false)
		}
	}()
	last := l.tail.Load()
	end := int(min(last.next.Load(), segment))
	whole := true // every note so far was handed over
	for p, pos := l.head, l.pos; ; pos = 0 {
		n := segment
		if p == last {
			n = end
		}
		for ; pos < n; pos++ {
			v := p.slot(uint32(pos)).Load()
			switch {
			case v == nil: // between taking the slot and filling it
				whole = false
			case whole:
				l.pos = pos + 1
			case v != l.taken:
				p.slot(uint32(pos)).Store(l.taken)
			}
			if v != nil && v != l.taken {
				f(v)
			}
		}
		if p == last {
			return
		}
		if p = p.after.Load(); whole {
			l.head, l.pos = p, 0
		}
	}
}
