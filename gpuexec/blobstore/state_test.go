package blobstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// P7: what goes first, against a naive choice of one victim after the other.
func TestSurplusIsTheNaiveOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex(rapid.SampledFrom([]Policy{FIFO, LRU, Cost}).Draw(t, "policy"))
		n := rapid.IntRange(0, 12).Draw(t, "entries")
		var bytes int64
		for i := range n {
			r := record{place: fmt.Sprintf("test/%d/0", i), known: true,
				bytes:   rapid.Int64Range(0, 5).Draw(t, "bytes"),
				created: rapid.Int64Range(1, 4).Draw(t, "created"),
				cost:    time.Duration(rapid.Int64Range(0, 3).Draw(t, "cost"))}
			x.add(r)
			bytes += r.bytes
			if rapid.Bool().Draw(t, "used") {
				us := rapid.SampledFrom([]uses{x.own, x.others}).Draw(t, "whose")
				us.add(r.place, use{created: r.created, count: rapid.Int64Range(1, 3).Draw(t, "count"), last: rapid.Int64Range(1, 9).Draw(t, "last")})
				us.add(r.place, use{created: r.created - 1, count: 99, last: 99}) // of an entry that is gone
			}
		}
		if x.bytes != bytes {
			t.Fatalf("%d bytes, want %d", x.bytes, bytes)
		}
		keep := fmt.Sprintf("test/%d/0", rapid.IntRange(0, 12).Draw(t, "keep"))
		capacity := rapid.Int64Range(0, 30).Draw(t, "capacity")
		got := x.surplus(capacity, keep, "")
		left := slices.Clone(x.places())
		for _, r := range got {
			if bytes <= capacity {
				t.Fatalf("%s goes though %d of %d bytes are in use", r.place, bytes, capacity)
			}
			for _, place := range left {
				if other := x.entries[place]; place != keep && other != r && naiveBefore(x, other, r) {
					t.Fatalf("%s by %s goes before %s", r.place, x.policy, place)
				}
			}
			left = slices.DeleteFunc(left, func(p string) bool { return p == r.place })
			bytes -= r.bytes
		}
		if bytes > capacity && len(left) > 0 && !(len(left) == 1 && left[0] == keep) {
			t.Fatalf("%d bytes are left of %d allowed", bytes, capacity)
		}
	})
}

// naiveBefore spells the order of P7 out.
func naiveBefore(x *index, a, b *record) bool {
	recency := func(r *record) int64 { return max(r.created, x.useOf(r).last) }
	switch {
	case x.policy == LRU && recency(a) != recency(b):
		return recency(a) < recency(b)
	case x.policy == Cost:
		left := float64(a.cost) * float64(x.useOf(a).count+1) * float64(max(b.bytes, 1))
		right := float64(b.cost) * float64(x.useOf(b).count+1) * float64(max(a.bytes, 1))
		if left != right {
			return left < right && x.worth(a) != x.worth(b)
		}
	}
	return a.created != b.created && a.created < b.created
}

// A place that is taken again begins without uses, and what is found on the disk
// again keeps what was known of it.
func TestPlaceIsTakenAgain(t *testing.T) {
	x := newIndex(LRU)
	x.add(record{place: "test/1/0", bytes: 10, known: true, created: 1})
	x.own.add("test/1/0", use{created: 1, count: 5, last: 50})
	x.add(record{place: "test/1/0", bytes: 20, known: true, created: 2})
	if u := x.useOf(x.entries["test/1/0"]); u.count != 0 || x.bytes != 20 {
		t.Errorf("%+v %d", u, x.bytes)
	}
	x.own.add("test/1/0", use{created: 2, count: 1, last: 60})
	y := newIndex(LRU)
	y.add(record{place: "test/1/0", bytes: 20})
	y.add(record{place: "test/2/0", bytes: 5})
	y.inherit(x)
	if r := y.entries["test/1/0"]; !r.known || y.useOf(r).last != 60 || len(y.unknown()) != 1 {
		t.Errorf("%+v %v", r, y.unknown())
	}
}

// The journal takes whole changes only, each as it was written.
func TestParseJournal(t *testing.T) {
	whole := func(lines string) string { return "b\n" + lines + journalEnd([]byte(lines)) }
	first := whole("+ 5 6 7 test/1/0\n- test/2/0\n")
	good := first + whole("")
	changes, err := parseJournal(good)
	if err != nil || len(changes) != 2 || changes[0].place != "test/1/0" || changes[0].bytes != 5 || changes[1].added {
		t.Errorf("%+v %v", changes, err)
	}
	bad := []string{journalEnd(nil), "b\n" + whole(""), "+ 5 6 7 test/1/0\n", whole("+ -5 6 7 test/1/0\n"), whole("+ 5 6 7 ../1/0\n"),
		whole("+ 5 6 test/1/0\n"), whole("x\n"), "b\n+ 5 6 7 test/1/0\ne\n", "b\ne\n"} // the last two as of old
	for bit := range len(good) * 8 {
		flipped := []byte(good)
		flipped[bit/8] ^= 1 << (bit % 8)
		bad = append(bad, string(flipped))
	}
	for n := 1; n < len(good); n++ {
		if n != len(first) {
			bad = append(bad, good[:n])
		}
	}
	for tail, whole := range map[string]bool{journalEnd(nil): true, "\n" + journalEnd(nil): true, "x" + journalEnd(nil): false,
		journalEnd(nil)[1:]: false, "\n" + journalEnd(nil)[1:] + "\n": false, "- test/123456789/0\ne\n": false, "\n- test/123456789/0\n": false} {
		if endsWhole(tail) != whole {
			t.Errorf("%q ends whole: %t", tail, !whole)
		}
	}
	for _, text := range bad {
		if _, err := parseJournal(text); err != errStale {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// P5: the pause grows, has an end, and a clock set back does not stretch it.
func TestBreaker(t *testing.T) {
	var b breaker
	now := time.Unix(1e9, 0)
	for range 20 {
		b.failed(now)
	}
	if b.allow(now) == nil || b.allow(now.Add(longestPause-1)) == nil {
		t.Error("no pause")
	}
	if b.allow(now.Add(longestPause)) != nil || b.allow(now.Add(-24*time.Hour)) != nil {
		t.Error("a pause above the longest")
	}
	b.succeeded()
	if b.allow(now) != nil || b.broken() {
		t.Error("a pause after success")
	}
}
