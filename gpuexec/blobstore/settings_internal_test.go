package blobstore

import (
	"testing"
	"time"
)

// P7: what went and is not told to be free yet is counted right where several calls have
// written their entries before the first of them is stored.
func TestLateBesideOtherWriters(t *testing.T) {
	x, l, free, now := newIndex(FIFO), late{}, int64(100), time.Now()
	x.added, x.disk = 50, 50
	l.note(x, free, now)
	for round := range int64(3) {
		free -= 4 // four are written
		for range 4 {
			x.added++ // one is stored, and another goes for it
			l.note(x, free, now)
		}
		if l.young != 4*round+4 {
			t.Errorf("round %d: %d", round, l.young)
		}
	}
	free += 5
	if l.note(x, free, now); l.young != 7 {
		t.Errorf("5 of 12 have come: %d are late", l.young)
	}
}
