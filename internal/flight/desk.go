package flight

import (
	"iter"
	"time"
)

// Desk knows the flights of a room: which flight a key has, how many callers are
// aboard of each, and what is to become of it. It decides and does nothing: it
// has no lock, context, channel or clock. It lives in the pure core of an actor
// or under the mutex of a room, and is owned by whoever owns those.
//
// INVARIANT: at most one listed flight a key (SPEC F1). A flight is listed from
// its Begin until its End.
//
// The zero Desk is empty.
type Desk[K comparable, F Flying] struct {
	listed     map[K]F
	lone       map[F]struct{} // run too, but nobody finds them by a key
	generation uint64         // grows with VoidAll
}

// Flying is what a room keeps of one flight: a pointer to a struct in which Seats
// is embedded.
type Flying interface {
	comparable
	seats() *Seats
}

// Seats is what the desk knows of one flight. The zero value is ready for Begin.
type Seats struct {
	callers    int           // aboard now
	linger     time.Duration // the longest that a caller asked for
	until      time.Time     // nobody is aboard: then the creator is cancelled. Zero = never
	generation uint64        // of the desk, when it began
	listed     bool
	void       bool
	cancelled  bool
	over       bool
}

func (s *Seats) seats() *Seats { return s }

// Callers is how many are aboard.
func (s *Seats) Callers() int { return s.callers }

// Longest is the longest linger time that a caller asked for.
func (s *Seats) Longest() time.Duration { return s.linger }

// Over reports whether the flight has had its End.
func (s *Seats) Over() bool { return s.over }

// Find gives the flight of a key without going aboard.
func (d *Desk[K, F]) Find(key K) (f F, found bool) {
	f, found = d.listed[key]
	return f, found
}

// Join takes a caller aboard the flight of a key, if there is one. late says that
// its creator was cancelled before: if the flight fails, that is nothing to this
// caller. linger is the caller's wish; the longest of all callers counts.
func (d *Desk[K, F]) Join(key K, linger time.Duration) (f F, late, found bool) {
	if f, found = d.listed[key]; !found {
		return f, false, false
	}
	s := f.seats()
	s.callers++
	s.linger = max(s.linger, linger)
	s.until = time.Time{}
	return f, s.cancelled, true
}

// Begin lists a new flight under a key that has none, with its first caller
// aboard.
func (d *Desk[K, F]) Begin(key K, f F, linger time.Duration) {
	if _, taken := d.listed[key]; taken {
		panic("flight: two flights for one key")
	}
	if d.listed == nil {
		d.listed = make(map[K]F)
	}
	d.listed[key] = f
	*f.seats() = Seats{callers: 1, linger: linger, generation: d.generation, listed: true}
}

// BeginLone is Begin for a flight that nobody joins (SPEC C6).
func (d *Desk[K, F]) BeginLone(f F, linger time.Duration) {
	*f.seats() = Seats{callers: 1, linger: linger, generation: d.generation}
	d.setLone(f)
}

func (d *Desk[K, F]) setLone(f F) {
	if d.lone == nil {
		d.lone = make(map[F]struct{})
	}
	d.lone[f] = struct{}{}
}

// Leave takes a caller off a flight. alone says that it was the last one and that
// the flight goes on for nobody: its creator is to be cancelled after the linger
// time, if Expire agrees then; where that is 0, at once (SPEC F4).
func (d *Desk[K, F]) Leave(f F, now time.Time) (alone bool, linger time.Duration) {
	s := f.seats()
	if s.callers == 0 {
		panic("flight: more callers left than came")
	}
	s.callers--
	if s.callers > 0 || s.over || s.cancelled {
		return false, 0
	}
	if s.linger <= 0 {
		s.cancelled = true
		return true, 0
	}
	s.until = now.Add(s.linger)
	return true, s.linger
}

// Expire is for the end of a linger time: it reports whether the creator is to be
// cancelled. It is not if somebody came meanwhile, or came and left again.
func (d *Desk[K, F]) Expire(f F, now time.Time) bool {
	s := f.seats()
	if s.over || s.cancelled || s.until.IsZero() || now.Before(s.until) {
		return false
	}
	s.cancelled = true
	return true
}

// Void keeps the result of a flight from staying in the room: its callers get it,
// nobody else does (SPEC F7).
func (d *Desk[K, F]) Void(f F) { f.seats().void = true }

// VoidAll is Void for every flight under way.
func (d *Desk[K, F]) VoidAll() { d.generation++ }

// May reports whether the result of a flight may stay in the room.
func (d *Desk[K, F]) May(f F) bool {
	s := f.seats()
	return !s.void && !s.over && s.generation == d.generation
}

// End takes a flight off the desk, once: first is false if that has happened. keep
// says that its result, if there is one, may stay in the room.
func (d *Desk[K, F]) End(key K, f F) (first, keep bool) {
	s := f.seats()
	if s.over {
		return false, false
	}
	keep = d.May(f)
	s.over = true
	if s.listed {
		s.listed = false
		delete(d.listed, key)
	} else {
		delete(d.lone, f)
	}
	return true, keep
}

// All gives every flight that has not ended, in no order. Each may have its End
// meanwhile: a room that closes ends all of them, as far as a turn goes, and has their
// callers told and their creators end. The End when the creator returns is then not the
// first.
func (d *Desk[K, F]) All() iter.Seq[F] {
	return func(yield func(F) bool) {
		for _, f := range d.listed {
			if !yield(f) {
				return
			}
		}
		for f := range d.lone {
			if !yield(f) {
				return
			}
		}
	}
}

// Len is the number of flights that have not ended.
func (d *Desk[K, F]) Len() int { return len(d.listed) + len(d.lone) }
