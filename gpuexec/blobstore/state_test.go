package blobstore

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// P7: what goes first, against a naive choice of one victim after the other, while
// entries come, go, are used, and cannot be moved.
func TestSurplusIsTheNaiveOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex(rapid.SampledFrom([]Policy{FIFO, LRU, Cost}).Draw(t, "policy"))
		place := func(what string) string {
			return fmt.Sprintf("test/%d/0", rapid.IntRange(0, 12).Draw(t, what))
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch p := place("place"); rapid.IntRange(0, 11).Draw(t, "step") {
			case 0:
				x.remove(p)
			case 1, 7:
				x.note(uses{p: {created: rapid.Int64Range(1, 2).Draw(t, "of"), count: 1, last: rapid.Int64Range(1, 9).Draw(t, "last")}})
			case 2:
				x.setUses(x.others, x.own)
			case 3:
				if r := x.entries[p]; r != nil && x.order != nil && !r.stuck {
					x.pass(r)
				}
			case 4:
				x.retry()
			case 5, 6:
				checkSurplus(t, x, place("keep"), rapid.Int64Range(0, 30).Draw(t, "capacity"))
			default:
				x.add(record{place: p, known: true,
					bytes:   rapid.Int64Range(0, 5).Draw(t, "bytes"),
					disk:    rapid.Int64Range(0, 5).Draw(t, "disk"),
					created: rapid.Int64Range(1, 2).Draw(t, "created"),
					seq:     rapid.Int64Range(1, 2).Draw(t, "seq"),
					cost:    time.Duration(rapid.Int64Range(0, 3).Draw(t, "cost"))})
			}
		}
		checkSurplus(t, x, place("keep"), rapid.Int64Range(0, 30).Draw(t, "capacity"))
	})
}

func checkSurplus(t *rapid.T, x *index, keep string, capacity int64) {
	var bytes, disk int64
	var left []string
	for place, r := range x.entries {
		bytes += r.bytes
		disk += r.disk
		if place != keep && !r.stuck && r.bytes > 0 {
			left = append(left, place)
		}
	}
	if x.bytes != bytes || x.disk != disk {
		t.Fatalf("%d bytes, %d on the disk, want %d and %d", x.bytes, x.disk, bytes, disk)
	}
	x.arrange("")
	for _, r := range x.surplus(capacity, keep, math.MaxInt) {
		if disk <= capacity {
			t.Fatalf("%s goes though %d of %d bytes are in use", r.place, disk, capacity)
		}
		if !slices.Contains(left, r.place) {
			t.Fatalf("%s goes though it is to stay", r.place)
		}
		for _, place := range left {
			if other := x.entries[place]; other != r && naiveBefore(x, other, r) {
				t.Fatalf("%s by %s goes before %s", r.place, x.policy, place)
			}
		}
		left = slices.DeleteFunc(left, func(p string) bool { return p == r.place })
		disk -= r.disk
	}
	if disk > capacity && len(left) > 0 {
		t.Fatalf("%d bytes are left of %d allowed", disk, capacity)
	}
}

// naiveBefore spells the order of P7 out.
func naiveBefore(x *index, a, b *record) bool {
	recency := func(r *record) int64 { return max(r.seq, x.useOf(r).last) }
	switch {
	case x.policy == LRU && recency(a) != recency(b):
		return recency(a) < recency(b)
	case x.policy == Cost:
		left := float64(a.cost) * float64(x.useOf(a).count+1) * float64(max(b.bytes, 1))
		right := float64(b.cost) * float64(x.useOf(b).count+1) * float64(max(a.bytes, 1))
		if left != right {
			return left < right && a.worth(x.useOf(a)) != b.worth(x.useOf(b))
		}
	}
	return a.seq < b.seq || a.seq == b.seq && a.created < b.created
}

// A place that is taken again begins without uses, and what is found on the disk
// again keeps what was known of it.
func TestPlaceIsTakenAgain(t *testing.T) {
	x := newIndex(LRU)
	x.add(record{place: "test/1/0", bytes: 10, known: true, created: 1})
	x.own.add("test/1/0", use{created: 1, count: 5, last: 50})
	x.add(record{place: "test/1/0", bytes: 20, known: true, created: 2, stamp: stamp{1, 2}})
	if u := x.useOf(x.entries["test/1/0"]); u.count != 0 || x.bytes != 20 {
		t.Errorf("%+v %d", u, x.bytes)
	}
	x.own.add("test/1/0", use{created: 2, count: 1, last: 60})
	y := newIndex(LRU)
	y.add(record{place: "test/1/0", bytes: 20, stamp: stamp{1, 2}})
	y.add(record{place: "test/2/0", bytes: 5})
	y.inherit(x)
	if r := y.entries["test/1/0"]; !r.known || y.useOf(r).last != 60 || len(y.unknown()) != 1 {
		t.Errorf("%+v %v", r, y.unknown())
	}
}

// The journal takes whole changes only, each as it was written.
func TestParseJournal(t *testing.T) {
	whole := func(lines string) string { return "b\n" + lines + journalEnd([]byte(lines), totals{9, 8, 7}) }
	first := whole("+ 5 4096 6 7 8 test/1/0\n- test/2/0\n")
	good := first + whole("")
	changes, err := parseJournal(good)
	if err != nil || len(changes) != 2 || changes[0].place != "test/1/0" || changes[0].bytes != 5 || changes[1].added {
		t.Errorf("%+v %v", changes, err)
	}
	bad := []string{journalEnd(nil, totals{}), "b\n" + whole(""), "+ 5 4096 6 7 8 test/1/0\n", whole("+ -5 4096 6 7 8 test/1/0\n"), whole("+ 5 4096 6 7 8 ../1/0\n"),
		whole("+ 5 4096 6 7 5764607523034234880000 test/1/0\n"), whole("+ 5 4096 6 7 9223372036854775807 test/1/0\n"),
		whole("+ 5 4096 6 7 test/1/0\n"), whole("x\n"), "b\n+ 5 4096 6 7 test/1/0\ne\n", "b\n- test/2/0\ne 0123456789abcdef\n", "b\ne\n"} // the last three as of old
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
	for tail, whole := range map[string]bool{journalEnd(nil, totals{}): true, "\n" + journalEnd(nil, totals{}): true, "x" + journalEnd(nil, totals{}): false,
		journalEnd(nil, totals{})[1:]: false, "\n" + journalEnd(nil, totals{})[1:] + "\n": false, "- test/123456789/0\ne\n": false, "\n- test/123456789/0\n": false} {
		if _, ok := endOf(tail); ok != whole {
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

// P2: each file counts rounded up to 4 KiB: one that fills its blocks takes no further
// one, and an empty file, or none, takes none.
func TestDiskBytes(t *testing.T) {
	const block = 4 << 10
	for _, c := range []struct{ key, kernel, bytes, disk int64 }{
		{1, 1, 2, 2 * block}, {block, block, 2 * block, 2 * block}, {block + 1, 0, block + 1, 2 * block}, {0, -1, 0, 0},
	} {
		if r := sized("test/7/0", files{key: c.key, kernel: c.kernel}); r.bytes != c.bytes || r.disk != c.disk {
			t.Errorf("%d and %d bytes count as %d, %d on the disk; want %d and %d", c.key, c.kernel, r.bytes, r.disk, c.bytes, c.disk)
		}
	}
}

// P7: what is known of an entry is not believed of another one that took its place, also
// if that is as large.
func TestInheritNeedsTheSameEntry(t *testing.T) {
	for name, c := range map[string]struct {
		old, found record
		created    int64 // as its file says, where that is read
		cost, seq  int64
	}{
		"the same file":            {record{bytes: 5, stamp: stamp{1, 1}}, record{bytes: 5, stamp: stamp{1, 1}}, 0, 1, 7},
		"another size":             {record{bytes: 5, stamp: stamp{1, 1}}, record{bytes: 6, stamp: stamp{1, 1}}, 1, 3, 1},
		"another file":             {record{bytes: 5, stamp: stamp{1, 1}}, record{bytes: 5, stamp: stamp{2, 1}}, 1, 3, 1},
		"another time":             {record{bytes: 5, stamp: stamp{1, 1}}, record{bytes: 5, stamp: stamp{1, 2}}, 1, 3, 1},
		"by its creation":          {record{bytes: 5}, record{bytes: 5, stamp: stamp{2, 1}}, 1, 3, 7},
		"another one, by creation": {record{bytes: 5}, record{bytes: 5, stamp: stamp{2, 1}}, 2, 3, 2},
	} {
		old, x := newIndex(Cost), newIndex(Cost)
		o := c.old
		o.place, o.known, o.created, o.cost, o.seq = "test/7/0", true, 1, 1, 7
		old.add(o)
		c.found.place, c.found.seq = o.place, 9
		x.add(c.found)
		old.seq = 20
		if x.inherit(old); x.seq < 20 { // numbers that were given are not given again
			t.Errorf("%s: the sequence goes on from %d", name, x.seq)
		}
		for _, r := range x.unknown() {
			r.created, r.cost = c.created, 3
			r.learned()
		}
		if r := x.entries[o.place]; !r.known || int64(r.cost) != c.cost || r.seq != c.seq {
			t.Errorf("%s: %+v", name, *r)
		}
	}
}

// P7, P10: two files are told apart by a nanosecond: an inode is given again at once.
func TestStampOfANanosecond(t *testing.T) {
	at := time.Unix(1, 1)
	if a, b := stampOf(vfs.Info{Inode: 1, ModTime: at}), stampOf(vfs.Info{Inode: 1, ModTime: at.Add(1)}); a == b {
		t.Errorf("%v is both", a)
	}
}

// P8, P10: what holds where a Config says nothing.
func TestDefaults(t *testing.T) {
	c, err := Config{}.withDefaults(t.Context())
	if err != nil || c.Lease != 10*time.Second || c.LongestBuild != 10*time.Minute || c.Durability != Full {
		t.Error(c.Lease, c.LongestBuild, c.Durability, err)
	}
}
