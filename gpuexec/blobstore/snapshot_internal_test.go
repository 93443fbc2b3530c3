package blobstore

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// snapshotOf is the text of a snapshot of an index.
func snapshotOf(x *index) string {
	lines, table := linesOf(x.lines())
	h := snapshot{boot: "b", inode: 1, offset: 2, seal: "0123456789abcdef", entries: len(x.entries), order: x.policy, length: int64(len(lines)), totals: x.totals}
	return h.String() + string(lines) + string(table)
}

func readSnapshot(text string) (*index, bool) {
	r, ok := readingOf(strings.NewReader(text), int64(len(text)))
	x := newIndex(FIFO)
	for ok && r.left > 0 {
		var some []record
		some, ok = r.next()
		for _, e := range some {
			x.feed(e)
		}
	}
	x.totals = r.totals
	return x, ok && x.fed()
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
			r.least = use{r.created, rapid.Int64Min(0).Draw(t, "uses"), rapid.Int64Max(mostSeq).Draw(t, "last")}
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
		for _, text := range []string{text, string(flipped)} {
			f, ok := readingOf(strings.NewReader(text), int64(len(text)))
			for place, r := range x.entries {
				o, found := f.find(place)
				if o.at = y.entries[place].at; found && o != *y.entries[place] || ok && !found && text != string(flipped) {
					t.Fatalf("%+v is found as %+v, %t", r, o, found)
				}
			}
		}
		at = min(at, 8*(len(text)-tableRow*len(x.entries))-1) // the lines are whole whatever is in the table
		flipped = []byte(text)
		flipped[at/8] ^= 1 << (at % 8)
		for what, text := range map[string]string{"flipped": string(flipped), "cut": text[:at/8], "twice": text + text[strings.IndexByte(text, '\n')+1:]} {
			if _, ok := readSnapshot(text); ok && !(what == "twice" && len(x.entries) == 0) {
				t.Errorf("%s at %d is accepted: %q", what, at, text)
			}
		}
	})
}

// P7: a snapshot whose entries are not those that its totals count is none.
func TestTotalsOfOtherEntries(t *testing.T) {
	x := newIndex(FIFO)
	x.add(record{place: "test/1/0", known: true, bytes: 3, disk: 5})
	for what, spoil := range map[string]func(){"none": func() {}, "bytes": func() { x.bytes++ }, "on the disk": func() { x.disk++ }} {
		right := x.totals
		spoil()
		if _, ok := readSnapshot(snapshotOf(x)); ok != (what == "none") {
			t.Errorf("wrong: %s, read: %t", what, ok)
		}
		x.totals = right
	}
}

// P7: an index that reads its snapshot late chooses the victims that one which has read
// all of it does, whatever is stored and removed meanwhile, and ends as the same.
func TestRestIsReadLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom(policies).Draw(t, "policy")
		whole := newIndex(policy)
		for i := range rapid.IntRange(1, 60).Draw(t, "entries") {
			whole.add(record{place: fmt.Sprintf("test/%d/0", i), known: true, bytes: 1, disk: rapid.Int64Range(1, 3).Draw(t, "disk"), seq: int64(i),
				cost: time.Duration(rapid.IntRange(1, 3).Draw(t, "cost"))})
			whole.seq = int64(i)
		}
		for range rapid.IntRange(0, 30).Draw(t, "uses") {
			whole.note(uses{fmt.Sprintf("test/%d/0", rapid.IntRange(0, len(whole.entries)-1).Draw(t, "used")): {count: 1, last: whole.seq + 1}})
		}
		text := snapshotOf(whole)
		rest, ok := readingOf(strings.NewReader(text), int64(len(text)))
		if !ok {
			t.Fatal(text)
		}
		rest.most = 300
		late := newIndex(policy)
		late.totals, late.rest, late.gone, late.own = whole.totals, true, map[string]bool{}, maps.Clone(whole.own)
		read := func() {
			some, ok := rest.next()
			for _, e := range some {
				late.feed(e)
			}
			if !ok || rest.left == 0 && !late.fed() {
				t.Fatalf("%+v: %t", rest, ok)
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			place := fmt.Sprintf("test/%d/0", rapid.IntRange(0, 70).Draw(t, "place"))
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0: // another process removes, and stores
				whole.follow(change{record: record{place: place}})
				late.follow(change{record: record{place: place}})
			case 1:
				c := change{added: true, record: record{place: place, known: true, bytes: 1, disk: 2,
					cost: time.Duration(rapid.IntRange(1, 3).Draw(t, "cost"))}}
				whole.follow(change{record: record{place: place}})
				late.follow(change{record: record{place: place}})
				whole.follow(c)
				late.follow(c)
			case 2:
				if late.rest {
					read()
				}
			case 3: // one is looked at
				if late.entries[place] == nil && late.rest && !late.gone[place] {
					r, ok := rest.find(place)
					if ok != (whole.entries[place] != nil) {
						t.Fatalf("%s is found: %t", place, ok)
					}
					if ok {
						late.early(r)
					}
				}
			case 4:
				used := uses{} // all that late has
				for place := range late.entries {
					used[place] = use{count: 1, last: whole.seq + 1}
				}
				whole.note(used)
				late.note(used)
			default:
				capacity := whole.disk - rapid.Int64Range(1, 9).Draw(t, "over")
				for late.bytes, late.disk = whole.bytes, whole.disk; whole.disk > capacity && whole.disk > 0; { // as the journal says
					whole.arrange("")
					late.arrange("")
					if late.starved() {
						read()
						continue
					}
					a, b := whole.surplus(capacity, "", 1)[0], late.surplus(capacity, "", 1)[0]
					if a.place != b.place || a.disk != b.disk {
						t.Fatalf("%+v goes, and %+v where all was read", b, a)
					}
					whole.remove(a.place)
					late.remove(b.place)
				}
			}
			late.bytes, late.disk = whole.bytes, whole.disk // as the journal says
		}
		for late.rest {
			read()
		}
		if !slices.EqualFunc(late.lines(), whole.lines(), func(a, b *record) bool { return a.place == b.place && a.disk == b.disk }) {
			t.Fatal("other entries are left")
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
		if r, ok := readingOf(strings.NewReader(text), int64(len(text))); ok {
			r.find("test/1/0")
		}
		(&reading{from: strings.NewReader(text), end: int64(len(text)), left: 1, most: 512}).next()
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
