package recency

import (
	"runtime"
	"slices"
	"testing"
	"weak"
)

// slow is a writer that was stopped after it had taken its place.
func slow(l *Log[int]) (end func(*int)) {
	p, place := l.stripes[0].take(nil)
	return func(v *int) { p.slots[p.at(place)].Store(v) }
}

// A note that is still being written holds up nobody, over segments, and comes
// out once, as do those handed over before it.
func TestUnfinishedNote(t *testing.T) {
	l := NewLog[int](func() {})
	end := slow(l)
	const notes = 3 * segment
	var out []int
	drain := func() { l.Drain(func(v *int) { out = append(out, *v) }) }
	for i := range notes {
		l.Note(&i, 0)
		if i%100 == 0 {
			drain()
		}
	}
	drain()
	if len(out) != notes {
		t.Fatalf("%d notes came out of %d that had ended", len(out), notes)
	}
	for i, v := range out {
		if v != i {
			t.Fatalf("note %d came out as %d", v, i)
		}
	}
	late := -1
	end(&late)
	for range 2 {
		drain()
	}
	if len(out) != notes+1 || out[notes] != late {
		t.Fatalf("%d notes came out, want one more, the late one: %v", len(out), out[notes:])
	}
	if n := len(l.streams[0].holes); n != 0 {
		t.Errorf("%d holes are kept", n)
	}
}

// Of several notes that are still being written each comes out, whichever ends first.
func TestUnfinishedNotes(t *testing.T) {
	l := NewLog[int](func() {})
	ends := []func(*int){slow(l), slow(l), slow(l)}
	var out []int
	for i := len(ends) - 1; i >= 0; i-- {
		l.Drain(func(v *int) { out = append(out, *v) })
		ends[i](&i)
	}
	l.Drain(func(v *int) { out = append(out, *v) })
	if !slices.Equal(out, []int{2, 1, 0}) {
		t.Errorf("came out: %v", out)
	}
}

// What begins when a note has ended comes out after it, though the note had not
// ended when Drain came by.
func TestNoteThatEndsDuringDrain(t *testing.T) {
	l := NewLog[int](func() {})
	end := slow(l)
	for i := range segment - 1 {
		l.Note(&i, 0)
	}
	late, after := -1, -2
	var out []int
	drain := func() {
		l.Drain(func(v *int) {
			if len(out) == 0 {
				end(&late)
				l.Note(&after, 0)
			}
			out = append(out, *v)
		})
	}
	drain()
	drain()
	if n := len(out); n != segment+1 || out[n-2] != late || out[n-1] != after {
		t.Fatalf("%d notes came out, the last as %v", n, out[max(0, n-2):])
	}
}

// F6: a writer that tells of its full part late, when the consumer is past it, drops
// nobody's notes.
func TestFullPartToldLate(t *testing.T) {
	l := NewLog[int](func() {})
	v, out := 1, 0
	drain := func() { l.Drain(func(*int) { out++ }) }
	for range segment {
		slow(l)(&v)
	}
	l.Note(&v, 0)
	drain()
	l.fill(0)
	const notes = 3 * segment
	for range notes {
		l.Note(&v, 0)
	}
	drain()
	if out != segment+1+notes || l.waiting.Load() != 0 {
		t.Errorf("%d notes came out of %d, %d wait", out, segment+1+notes, l.waiting.Load())
	}
}

// C12: notes without stamps, of a crowd, and without stamps again come out in their
// order, drained in between or not.
func TestEras(t *testing.T) {
	if !clock {
		t.Skip("there are no stamps here")
	}
	for drains := range 8 {
		l := NewLog[int](func() {})
		var out []int
		notes := 0
		for part := range 4 {
			for range segment + 3 {
				v := notes
				l.Note(&v, 0)
				notes++
			}
			if drains>>part&1 == 1 {
				l.Drain(func(v *int) { out = append(out, *v) })
			}
			if part%2 == 0 {
				l.gather(l.era.Load())
			} else {
				l.calm()
			}
		}
		l.Drain(func(v *int) { out = append(out, *v) })
		if len(out) != notes || !slices.IsSorted(out) || l.Count() != uint64(notes) {
			t.Errorf("drains %b: %d notes of %d came out, count %d, in order: %v", drains, len(out), notes, l.Count(), slices.IsSorted(out))
		}
	}
}

// C12: a note that was made while a drain looked at one stripe after the other is left
// for the next: another, that had ended before, may stand where the drain had looked.
func TestCut(t *testing.T) {
	if !clock {
		t.Skip("there are no stamps here")
	}
	l := NewLog[int](func() {})
	l.gather(0)
	early, late := 1, 2
	var out []int
	f := func(v *int) { out = append(out, *v) }
	l.Note(&early, 0)
	cut := l.cut()
	l.Note(&late, 0)
	for i := range l.streams { // as if each end had been found after that note
		l.streams[i].find()
	}
	l.hand(cut, f)
	if !slices.Equal(out, []int{early}) {
		t.Errorf("came out: %v, want the first note only", out)
	}
	l.Drain(f)
	if !slices.Equal(out, []int{early, late}) {
		t.Errorf("came out: %v", out)
	}
}

// C12: where notes are made while a drain finds the ends, none of stripe 0 comes out
// before another that had ended when it began. Slow writers end in a later era.
func TestCutOfStripeZero(t *testing.T) {
	if !clock {
		t.Skip("there are no stamps here")
	}
	defer func() { stampOf = now }()
	first, second := 1, 2
	for _, crowd := range []bool{false, true} {
		l := NewLog[int](func() {})
		l.gather(0)
		at, era := &l.stripes[0], uint32(0) // of the slow writer
		if !crowd {
			l.calm()
			at, era = &l.stripes[1], 1
		}
		stampOf = func() (stamp uint64, on uint32) {
			if !crowd { // else both notes have ended before the stamp
				stamp, on = now()
			}
			p, place := at.take(at.tail.Load())
			to := p.at(place)
			if p.eras[to] = era; p.stamps != nil {
				p.stamps[to], _ = now()
			}
			p.slots[to].Store(&first)
			l.Note(&second, 0)
			if stampOf = now; crowd {
				return now()
			}
			return stamp, on
		}
		var out []int
		for range 2 {
			l.Drain(func(v *int) { out = append(out, *v) })
		}
		if !slices.Equal(out, []int{first, second}) {
			t.Errorf("crowd %v: came out: %v", crowd, out)
		}
	}
}

// A core that has a crowd's log to itself goes back to notes without stamps.
func TestCrowdThatIsNone(t *testing.T) {
	if !clock {
		t.Skip("there are no stamps here")
	}
	l := NewLog[int](func() {})
	l.gather(0)
	v := 1
	for range 1000 { // the scheduler may move this goroutine at any time
		for range judged {
			l.Note(&v, 0)
		}
		l.Drain(func(*int) {})
		if l.era.Load() == 2 {
			return
		}
	}
	t.Error("a thousand times as many notes as tell, all of one goroutine, and still a crowd")
}

// F6: a writer that is stopped keeps the part alive in which its place is, and none of
// those that came after it.
func TestSlowWriterKeepsOnePart(t *testing.T) {
	l := NewLog[int](func() {})
	end := slow(l)
	v, out := 1, 0
	drain := func() { l.Drain(func(*int) { out++ }) }
	for range 2 * segment {
		l.Note(&v, 0)
	}
	after := weak.Make(l.stripes[0].first.Load().after.Load())
	for range segment {
		l.Note(&v, 0)
	}
	drain()
	runtime.GC()
	if after.Value() != nil {
		t.Error("the part after that of the slow writer is still there")
	}
	end(&v)
	drain()
	if out != 3*segment+1 {
		t.Errorf("%d notes came out of %d", out, 3*segment+1)
	}
}

// C12, F6: one drain is for a message and those that wait behind it; the next one
// after them gets a drain of its own.
func TestDrainFor(t *testing.T) {
	l := NewLog[int](func() {})
	v, out := 1, 0
	turn := func(behind int) bool {
		l.Note(&v, 0)
		return l.DrainFor(func() int { return behind }, func(*int) { out++ })
	}
	for i, want := range []struct {
		behind, out int
		drains      bool
	}{{2, 1, true}, {9, 1, false}, {9, 1, false}, {0, 4, true}, {1, 5, true}, {0, 5, false}, {0, 7, true}} {
		if drains := turn(want.behind); drains != want.drains || out != want.out {
			t.Errorf("turn %d: drained %v, %d notes came out, want %+v", i, drains, out, want)
		}
	}
}

// C12: a drain is for none of the messages that come while it lasts: the uses that their senders have
// to find heeded may have come after its end.
func TestDrainIsForThoseThatWaited(t *testing.T) {
	l := NewLog[int](func() {})
	v, behind, out := 1, 0, 0
	l.Note(&v, 0)
	l.DrainFor(func() int { return behind }, func(*int) {
		l.Note(&v, 0)
		behind++ // which was sent after that
		out++
	})
	if !l.DrainFor(func() int { return 0 }, func(*int) { out++ }) || out != 2 {
		t.Errorf("%d uses are heeded before the message that came after them, want 2", out)
	}
}
