package recency

import (
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"
)

// crowded is a log of a crowd, and a note of one of its stripes, made with a stamp of its own.
func crowded(t *testing.T) (l *Log[int], note func(stripe int, stamp uint64, v int)) {
	t.Helper()
	if !clock {
		t.Skip("there are no stamps here")
	}
	l = NewLog[int](func() {})
	l.gather(0)
	return l, func(stripe int, stamp uint64, v int) {
		s := &l.stripes[stripe]
		p, place := s.take(s.tail.Load())
		at := p.at(place)
		p.eras[at], p.stamps[at] = l.era.Load(), stamp
		p.slots[at].Store(&v)
	}
}

// drained is what comes out.
func drained(l *Log[int]) (out []int) {
	l.Drain(func(v *int) { out = append(out, *v) })
	return out
}

// Each place of a part has a slot, on another line than the place before.
func TestPlaces(t *testing.T) {
	var p part[int]
	seen, last := make(map[uint32]bool), p.at(segment-1)
	for place := range uint32(segment) {
		at := p.at(place)
		if seen[at] || at >= segment || at/8 == last/8 {
			t.Fatalf("place %d stands at %d, the one before at %d", place, at, last)
		}
		seen[at], last = true, at
	}
}

// Cores have all stripes but the first, which is for those who have no stamp.
func TestStripes(t *testing.T) {
	for _, n := range []int{2, 3, 5, 17} {
		l := &Log[int]{stripes: make([]stripe[int], n)}
		var seen []int
		for core := range uint32(2 * n) {
			seen = append(seen, l.stripeOf(core))
		}
		slices.Sort(seen)
		if seen = slices.Compact(seen); len(seen) != n-1 || seen[0] != 1 || seen[n-2] != n-1 {
			t.Errorf("of %d stripes cores have %v", n, seen)
		}
	}
}

// Those who ask for a place of a full part have none: they are neither counted nor looked for.
func TestPlacesBeyondThePart(t *testing.T) {
	l := NewLog[int](func() {})
	v := 1
	l.Note(&v, 0)
	p := l.stripes[0].tail.Load()
	for range segment - 1 {
		slow(l)(&v) // takes a place, and does not make the next part the tail
	}
	for range 5 {
		p.next.Add(1)
	}
	l.stripes[0].tail.Store(p)
	if l.Count() != segment {
		t.Errorf("%d are counted, want %d", l.Count(), segment)
	}
	if n := len(drained(l)); n != segment {
		t.Errorf("%d came out, want %d", n, segment)
	}
}

// F6: a writer that was stopped before it made the next part the tail takes no tail back.
func TestTailOnlyGrows(t *testing.T) {
	for _, drains := range []bool{false, true} {
		l := NewLog[int](func() {})
		v := 1
		for range 3*segment + 1 {
			l.Note(&v, 0)
		}
		if drains {
			drained(l)
		}
		s := &l.stripes[0]
		tail := s.tail.Load()
		if s.advance(s.first.Load()) != tail || s.tail.Load() != tail {
			t.Errorf("drained %v: another part is the tail", drains)
		}
	}
}

// C12: what has a stamp before others comes out before them, in whatever places it stands.
func TestSlowStamps(t *testing.T) {
	l, note := crowded(t)
	at := func() uint64 { stamp, _ := now(); return stamp }
	one, two, three, four := at(), at(), at(), at()
	note(1, four, 4)
	note(2, three, 3)
	note(1, two, 2)
	note(1, one, 1)
	if out := drained(l); !slices.Equal(out, []int{1, 2, 3, 4}) {
		t.Errorf("came out: %v", out)
	}
}

// A note of a crowd that had not ended when a drain came by comes out of the next one,
// also where nobody has noted anything since.
func TestUnfinishedNoteOfACrowd(t *testing.T) {
	l, _ := crowded(t)
	s := &l.stripes[1]
	p, place := s.take(nil)
	if out := drained(l); len(out) != 0 {
		t.Fatalf("came out: %v", out)
	}
	v, at := 7, p.at(place)
	p.eras[at] = 1
	p.stamps[at], _ = now()
	p.slots[at].Store(&v)
	if out := drained(l); !slices.Equal(out, []int{7}) {
		t.Errorf("came out: %v", out)
	}
}

// F6: a crowd whose consumer comes loses no note, however long it goes on, and what came
// out is not kept.
func TestCrowdThatIsDrained(t *testing.T) {
	l, _ := crowded(t)
	for range 64 {
		l.gather(l.era.Load())
		for v := range nearest / 2 {
			l.Note(&v, 0)
		}
		if n := len(drained(l)); n != nearest/2 {
			t.Fatalf("%d came out, want %d", n, nearest/2)
		}
	}
	if n := l.waiting.Load(); n < 0 || n > segment*int64(len(l.stripes)) || l.Dropped(0) != 0 {
		t.Errorf("%d wait, %d were dropped", n, l.Dropped(0))
	}
	if room, _ := spare.Get().(*[]noted[int]); room != nil {
		for i, n := range (*room)[:cap(*room)] {
			if n.what != nil {
				t.Fatalf("note %d of %d is kept", i, cap(*room))
			}
		}
	}
}

// F6: when a slow writer has ended, its part goes.
func TestSlowWriterThatEnded(t *testing.T) {
	l := NewLog[int](func() {})
	v := 1
	for range segment + 1 {
		l.Note(&v, 0)
	}
	s := &l.stripes[0]
	p, place := s.take(s.tail.Load())
	slot, kept := &p.slots[p.at(place)], weak.Make(p)
	p = nil
	for range 2 * segment {
		l.Note(&v, 0)
	}
	drained(l)
	slot.Store(&v)
	slot = nil
	drained(l)
	runtime.GC()
	if kept.Value() != nil {
		t.Error("its part is still there")
	}
	runtime.KeepAlive(l)
}

// Three changes of the core among the last eight parts begin a crowd, fewer do not; and the
// end of one forgets them.
func TestChangesOfTheCore(t *testing.T) {
	if !clock {
		t.Skip("there are no stamps here")
	}
	const elsewhere = 1 << 20 // no core of this machine
	for before, crowd := range map[uint32]bool{0b1: false, 0b11: true, 0b1000_0001: false, 0b100_0010: true} {
		l := NewLog[int](func() {})
		l.filler.Store(elsewhere<<8 | before)
		l.fill(0)
		if (l.era.Load() == 1) != crowd {
			t.Errorf("changes %b and one: era %d", before, l.era.Load())
		}
		l.gather(l.era.Load())
		if l.calm(); l.filler.Load() != 0 || l.era.Load() != 2 {
			t.Errorf("after a crowd: era %d, changes %b", l.era.Load(), l.filler.Load())
		}
	}
}

// A crowd is none where more than seven of eight notes are of one core, in 1,024 of them.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		notes [][2]int // of the stripes 1 and 2, as they come
		crowd bool
	}{
		{[][2]int{{judged - 1, 0}}, true},
		{[][2]int{{judged, 0}}, false},
		{[][2]int{{judged / 10 * 9, judged/10 + 4}}, false},
		{[][2]int{{judged / 8 * 6, judged / 8 * 2}}, true},
		{[][2]int{{judged / 2, judged / 2}, {judged / 2, judged / 2}, {judged - 1, 0}}, true},
		{[][2]int{{judged / 2, judged / 2}, {judged / 10 * 9, judged/10 + 4}}, false},
		{[][2]int{{judged, judged}, {judged / 8 * 6, judged / 8 * 2}, {judged / 8 * 6, judged / 8 * 2}}, true},
	} {
		l, _ := crowded(t)
		for _, n := range c.notes {
			l.looked += n[0] // as if they had come out together
			l.streams[1].looked += n[0]
			l.judge(&l.streams[2], n[1])
		}
		if (l.era.Load() == 1) != c.crowd {
			t.Errorf("%v: era %d, want a crowd: %v", c.notes, l.era.Load(), c.crowd)
		}
	}
}

// C12: where another era begins while a drain finds its ends, it finds them again.
func TestEraDuringACut(t *testing.T) {
	l, _ := crowded(t)
	defer func() { stampOf = now }()
	times := 0
	stampOf = func() (uint64, uint32) {
		if times++; times == 1 {
			l.calm()
		}
		return now()
	}
	if drained(l); times != 2 {
		t.Errorf("%d stamps, want one of each era", times)
	}
}

// F6: a reader that outruns the consumer leaves its core once in a slice, and no more often.
func TestReaderGivesWayNowAndThen(t *testing.T) {
	var s stripe[int]
	started, times, last := time.Now(), int64(0), int64(0)
	for range 100_000 {
		if s.giveWay(); s.yielded.Load() != last {
			times, last = times+1, s.yielded.Load()
		}
	}
	if most := int64(time.Since(started)/slice) + 1; times > most {
		t.Errorf("%d times in %v, want at most %d", times, time.Since(started), most)
	}
}
