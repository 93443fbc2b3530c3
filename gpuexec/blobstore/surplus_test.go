package blobstore

import (
	"testing"
	"time"
)

// P7: an entry whose place was taken again, and that was used then, goes by that use,
// and not by one that was noted of the entry before it. (Found by drawing.)
func TestUsedAfterItsPlaceWasTakenAgain(t *testing.T) {
	x := newIndex(LRU)
	add := func(place string, created int64) {
		x.add(record{place: place, known: true, bytes: 1, disk: 1, created: created, cost: time.Second})
	}
	add("test/5/0", 2)
	add("test/1/0", 1)
	first := func() string {
		x.arrange("")
		return x.surplus(1, "", 9)[0].place
	}
	if got := first(); got != "test/1/0" { // which puts them in order
		t.Fatalf("%s goes first", got)
	}
	x.note(uses{"test/1/0": {created: 2, count: 1, last: 6}}) // of no entry that there is
	add("test/1/0", 1)
	x.note(uses{"test/1/0": {created: 1, count: 1, last: 3}})
	if got := first(); got != "test/5/0" {
		t.Errorf("%s goes first, want the one that was not used", got)
	}
}

// P7: an entry that is used between two choices of a victim goes after the one that was
// not. (The draws of TestSurplusIsTheNaiveOrder find this one time in four.)
func TestUsedBetweenTwoChoices(t *testing.T) {
	for policy, want := range map[Policy]string{LRU: "test/2/0", Cost: "test/2/0", FIFO: "test/1/0"} {
		x := newIndex(policy)
		for seq := range int64(2) {
			x.add(record{place: []string{"test/1/0", "test/2/0"}[seq], known: true, bytes: 1, disk: 1, seq: seq + 1, created: 1, cost: time.Second})
		}
		x.arrange("")
		if got := x.surplus(1, "", 9)[0].place; got != "test/1/0" {
			t.Fatalf("%s: %s goes first", policy, got)
		}
		x.note(uses{"test/1/0": {created: 1, count: 1, last: 9}})
		x.arrange("")
		if got := x.surplus(1, "", 9)[0].place; got != want {
			t.Errorf("%s: %s goes first after the use of test/1/0, want %s", policy, got, want)
		}
	}
}
