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
