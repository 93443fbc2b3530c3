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

// P7: blocks that come are those that are late for longest, and count once.
func TestOldBlocksComeFirst(t *testing.T) {
	x, now := newIndex(FIFO), time.Now()
	l := late{young: 100, old: 50, since: now, noted: now, of: x}
	if l.note(x, 60, now); l.old != 0 || l.young != 90 {
		t.Errorf("60 of 150 have come: %d and %d are late", l.old, l.young)
	}
}
