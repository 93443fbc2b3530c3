package recency

import "testing"

// F6: a reader whose notes are dropped, since the consumer does not come, leaves its core
// now and then.
func TestReaderGivesWay(t *testing.T) {
	l := NewLog[int](func() {})
	v := 1
	for range farthest + segment {
		l.Note(&v, 0)
	}
	gave := func() (n int64) {
		for i := range l.stripes {
			n += l.stripes[i].yielded.Load()
		}
		return n
	}
	if gave() != 0 {
		t.Error("a reader whose notes are taken gave way")
	}
	began = began.Add(-2 * slice) // the clock of a machine that was quick
	for range outrun * len(l.stripes) {
		l.Note(&v, 0)
	}
	if gave() == 0 {
		t.Error("a reader that outruns the consumer never gave way")
	}
}

// F6: of notes of a crowd, which have to be put in order as well, fewer wait for a consumer
// that does not come.
func TestNotesOfACrowdThatNobodyDrains(t *testing.T) {
	if !clock {
		t.Skip("there are no stamps here")
	}
	l := NewLog[int](func() {})
	l.gather(l.era.Load())
	v := 1
	for range farthest {
		l.Note(&v, 0)
	}
	n := 0
	l.Drain(func(*int) { n++ })
	if most := nearest + segment*len(l.stripes); n < nearest || n > most {
		t.Errorf("%d notes came out, want %d, and no more than %d", n, nearest, most)
	}
}
