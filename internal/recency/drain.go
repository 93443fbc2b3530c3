package recency

import "sync"

// judged is how many notes of a crowd tell whether it still is one.
const judged = 1024

// stream is where the consumer is in a stripe.
type stream[T any] struct {
	of    *stripe[T]
	head  *part[T]  // nil before the first part
	pos   uint32    // in it
	last  *part[T]  // where this drain ends
	end   uint32    // in it
	holes []hole[T] // passed while they were being written

	looked int // notes since the crowd was last judged
}

type hole[T any] struct {
	in *part[T]
	at uint32
}

// noted is a note on its way to the consumer.
type noted[T any] struct {
	era   uint32
	stamp uint64
	what  *T
}

func (n *noted[T]) before(m *noted[T]) bool {
	return n.era < m.era || n.era == m.era && n.stamp < m.stamp
}

// Drain hands every note whose Note call has returned before to f, each once, in
// order. It never waits: a note that is still being written is left for a later
// Drain, and overlaps all that follow it here, since none of them began after
// this call. Only the one consumer may call it.
func (l *Log[T]) Drain(f func(*T)) {
	l.filled.Store(0)
	l.hand(l.cut(), f)
}

// DrainFor is Drain in a turn of an actor, for its message and for those that wait
// behind it, of which behind gives the number. Each of them came after the uses that
// its sender has to find heeded, so this drain is theirs too, and readers that are
// faster than the actor delay a long queue once, not once for each message. It
// reports whether it drained.
func (l *Log[T]) DrainFor(behind func() int, f func(*T)) bool {
	if l.drained > 0 {
		l.drained--
		return false
	}
	l.drained = behind()
	l.Drain(f)
	return true
}

// hand gives what is before the ends and the cut.
func (l *Log[T]) hand(cut uint64, f func(*T)) {
	crowd := false
	for i := range l.streams[1:] {
		crowd = crowd || !l.streams[1+i].empty()
	}
	if !crowd { // places are the order
		l.waiting.Add(-l.take(0, cut, func(n noted[T]) { f(n.what) }))
		return
	}
	passed := int64(0)
	room, _ := spare.Get().(*[]noted[T])
	if room == nil {
		room = new([]noted[T])
	}
	all := *room
	var ends []int
	for i := range l.streams {
		from := len(all)
		passed += l.take(i, cut, func(n noted[T]) {
			all = append(all, n)
			for at := len(all) - 1; at > from && n.before(&all[at-1]); at-- { // its writer was slow
				all[at-1], all[at] = n, all[at-1]
			}
		})
		if n := len(all) - from; n > 0 {
			ends = append(ends, len(all))
			l.judge(&l.streams[i], n)
		}
	}
	l.waiting.Add(-passed)
	merge(all, ends, f)
	clear(all)
	*room = all[:0]
	spare.Put(room)
}

// spare has the room of crowds' drains, of any log: each would keep its own.
var spare sync.Pool

// stampOf is now, between which and the ends tests make notes.
var stampOf = now

// cut fixes where this drain ends in each stripe. What begins after it may stand
// before these ends; then it has a stamp beyond the one that is given.
//
// INVARIANT: where a note is before the ends and the cut, so is every note that had
// ended when it began. Stripe 0 has no stamps. In an era without them its end is found
// first: notes of other stripes that had ended when one of it began have earlier stamps.
// In a crowd's its end is found last: its notes began before this era.
func (l *Log[T]) cut() (stamp uint64) {
	for {
		era := l.era.Load()
		if era&1 == 0 {
			l.streams[0].find()
		}
		stamp, _ = stampOf()
		l.fence.Add(1) // no end is read before the stamp
		for i := range l.streams {
			if i > 0 || era&1 == 1 {
				l.streams[i].find()
			}
		}
		if l.era.Load() == era {
			return stamp
		}
	}
}

// find sets the end of this drain to what is there now.
func (s *stream[T]) find() {
	s.last = s.of.tail.Load()
	if s.last == nil {
		return
	}
	if s.head == nil {
		s.head = s.of.first.Load()
	}
	s.end = min(s.last.next.Load(), segment)
}

func (s *stream[T]) empty() bool {
	return s.head == s.last && (s.head == nil || s.pos == s.end) && len(s.holes) == 0
}

// take gives the notes of a stripe up to the end and the cut to f, and how many notes
// the full parts hold that it has passed. What comes behind a note beyond the cut took
// its place after that one's stamp: it had not ended before this drain.
func (l *Log[T]) take(stripe int, cut uint64, f func(noted[T])) (passed int64) {
	s := &l.streams[stripe]
	waiting := s.holes[:0]
	for _, h := range s.holes {
		if n, done := h.in.read(h.at); done {
			f(n)
		} else {
			waiting = append(waiting, h)
		}
	}
	clear(s.holes[len(waiting):])
	s.holes = waiting
	for p := s.head; p != nil; p, s.pos = p.leave(), 0 {
		s.head = p
		n := uint32(segment)
		if p == s.last {
			n = s.end
		}
		for ; s.pos < n; s.pos++ {
			at := p.at(s.pos)
			note, done := p.read(at)
			switch {
			case !done: // between taking the place and filling its slot
				s.holes = append(s.holes, hole[T]{p, at})
			case note.stamp > cut:
				return passed
			default:
				f(note)
			}
		}
		if p == s.last {
			return passed
		}
		passed += segment
	}
	return passed
}

// leave gives the part after p, which a slow writer or a hole may keep: not with all
// that came after it.
func (p *part[T]) leave() *part[T] {
	next := p.after.Load()
	p.after.Store(p) // no tail is p any more: see advance
	return next
}

// read gives the note of a slot if it has been written.
func (p *part[T]) read(at uint32) (n noted[T], done bool) {
	n.what = p.slots[at].Load()
	if n.what == nil {
		return n, false
	}
	n.era = p.eras[at]
	if p.stamps != nil {
		n.stamp = p.stamps[at]
	}
	return n, true
}

// merge gives the notes to f in order: they lie in runs, each of them in order, that
// end at ends.
func merge[T any](all []noted[T], ends []int, f func(*T)) {
	next := append([]int{0}, ends...) // of each run; the last is none's
	for range all {
		least := -1
		for i, at := range next[:len(ends)] {
			if at < ends[i] && (least < 0 || all[at].before(&all[next[least]])) {
				least = i
			}
		}
		f(all[next[least]].what)
		next[least]++
	}
}

// judge looks at n notes of a stripe. Where one core makes nearly all the notes of a
// crowd, the next era is without stamps.
func (l *Log[T]) judge(s *stream[T], n int) {
	s.looked += n
	if l.looked += n; l.looked < judged {
		return
	}
	most := 0
	for i := range l.streams {
		most = max(most, l.streams[i].looked)
		l.streams[i].looked = 0
	}
	if most > l.looked/8*7 {
		l.calm()
	}
	l.looked = 0
}

// calm ends the era of a crowd, if there is one: nobody else does.
func (l *Log[T]) calm() {
	if era := l.era.Load(); era&1 == 1 {
		l.filler.Store(0)
		l.era.Store(era + 1)
	}
}
