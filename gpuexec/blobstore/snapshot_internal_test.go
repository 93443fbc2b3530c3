package blobstore

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

// snapshotOf is the text of a snapshot of an index.
func snapshotOf(x *index) string {
	var lines []byte
	for _, r := range x.entries {
		lines = appendAdded(lines, r)
	}
	h := snapshot{boot: "b", inode: 1, offset: 2, seal: "0123456789abcdef", entries: len(x.entries), totals: x.totals, digest: xxhash.Sum64(lines)}
	return h.String() + string(lines)
}

func readSnapshot(text string) (*index, bool) {
	h, lines, ok := parseSnapshot(text)
	if !ok {
		return nil, false
	}
	return h.parseEntries(FIFO, lines)
}

// P7: a snapshot is the index that was written, or none at all, whatever bit of it is
// another.
func TestSnapshotIsWholeOrNone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex(FIFO)
		for range rapid.IntRange(0, 5).Draw(t, "entries") {
			r := sized(rapid.SampledFrom([]string{"test/1/0", "test/2/0", "a.b/18446744073709551615/7"}).Draw(t, "place"),
				files{key: rapid.Int64Range(0, 1e6).Draw(t, "key"), kernel: rapid.Int64Range(-1, 1e9).Draw(t, "kernel")})
			r.created, r.seq = rapid.Int64().Draw(t, "created"), rapid.Int64Max(mostSeq).Draw(t, "seq")
			if r.known = rapid.Bool().Draw(t, "known"); r.known {
				r.cost = 5
			} else {
				r.cost = notKnown
			}
			x.add(r)
			x.seq = max(x.seq, r.seq)
		}
		text := snapshotOf(x)
		y, ok := readSnapshot(text)
		if !ok || y.totals != x.totals || len(y.entries) != len(x.entries) || len(y.unknown()) != len(x.unknown()) {
			t.Fatalf("%q: %t", text, ok)
		}
		for place, r := range x.entries {
			if o := y.entries[place]; o == nil || *o != *r {
				t.Fatalf("%+v is read as %+v", r, o)
			}
		}
		at := rapid.IntRange(0, len(text)*8-1).Draw(t, "bit")
		flipped := []byte(text)
		flipped[at/8] ^= 1 << (at % 8)
		for what, text := range map[string]string{"flipped": string(flipped), "cut": text[:at/8], "twice": text + text[strings.IndexByte(text, '\n')+1:]} {
			if _, ok := readSnapshot(text); ok && !(what == "twice" && len(x.entries) == 0) {
				t.Errorf("%s at %d is accepted: %q", what, at, text)
			}
		}
	})
}

// P4: no text makes the reader of the index or of the journal panic.
func FuzzSnapshot(f *testing.F) {
	x := newIndex(FIFO)
	x.add(record{place: "test/1/0", bytes: 1, known: true})
	f.Add(snapshotOf(x))
	f.Add("index \n")
	f.Add("b\n+ 1 1 1 1 1 test/1/0\n" + journalEnd([]byte("+ 1 1 1 1 1 test/1/0\n"), totals{}))
	f.Fuzz(func(t *testing.T, text string) {
		readSnapshot(text)
		(&snapshot{digest: xxhash.Sum64String(text), entries: len(text) / 10}).parseEntries(LRU, text)
		changes, err := parseJournal(text)
		for _, c := range changes {
			if !isPlace(c.place) || err != nil {
				t.Errorf("%q is taken for a place: %v", c.place, err)
			}
			x.follow(c)
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	x := newIndex(FIFO)
	for i := range 100_000 {
		r := sized("test/"+strings.Repeat("1", 10)+strconv.Itoa(i)+"/0", files{key: 10, kernel: 2000})
		r.known, r.seq, r.created = true, mostSeq/2+int64(i), mostSeq/2+int64(i)
		x.add(r)
	}
	text := snapshotOf(x)
	for b.Loop() {
		if _, ok := readSnapshot(text); !ok {
			b.Fatal("not read")
		}
	}
}
