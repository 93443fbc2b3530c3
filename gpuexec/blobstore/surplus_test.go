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

// P7: what another process stored counts as later than all that this one knows, though
// that process did not know of the uses that this one has seen.
func TestStoredAfterAUseThatItsWriterDidNotKnow(t *testing.T) {
	x := newIndex(LRU)
	one := func(place string, seq int64) record {
		return record{place: place, known: true, bytes: 1, disk: 1, seq: seq, created: 1}
	}
	x.follow(change{true, one("test/1/0", 1)})
	x.follow(change{true, one("test/2/0", 2)})
	x.note(uses{"test/1/0": {created: 1, count: 1, last: 9}})
	x.follow(change{true, one("test/3/0", 3)})
	x.arrange("")
	for i, r := range x.surplus(0, "", 9) {
		if want := []string{"test/2/0", "test/1/0", "test/3/0"}[i]; r.place != want {
			t.Errorf("%s goes as number %d, want %s", r.place, i, want)
		}
	}
}

// P7: uses of an entry that had a place before do not count for the one that has it now.
func TestUsesOfThePlaceBefore(t *testing.T) {
	now, before := use{created: 2, count: 5, last: 9}, use{created: 1, count: 3, last: 4}
	for _, order := range [][]use{{now, before}, {before, now}, {before, now, before}} {
		us := uses{}
		for _, u := range order {
			us.add("test/1/0", u)
		}
		if us["test/1/0"] != now {
			t.Errorf("%v give %v, want %v", order, us["test/1/0"], now)
		}
	}
}
