package blobstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// snapshot is the first line of the file that has an index as it was at one place of the
// journal, so that an Open need not list the directory: whoever has read it goes on in
// the journal from there. A line for each entry follows, as in the journal, with a digest
// of it and what is known of the uses, in the order of index.lines: but for those that were
// used since the first are the next victims, and who needs no more reads no more. After the lines a table tells where that of a place
// is, in the order of the places' hashes, 16 bytes each: the hash and the offset.
//
// It is a hint, believed only where all of this line is so: it was written since the
// machine was started, for a power loss takes entries away; the journal is the same file
// with the same bytes before that place; and, where nothing follows there, no folder of a
// backend was changed since, for somebody may have copied or removed entries by hand.
type snapshot struct {
	boot    string // of vfs.FS
	inode   uint64 // of the journal
	offset  int64
	seal    string // the last word before that offset
	links   uint64 // of the root
	folders int64  // bytes of the lines, after the table, that tell when the folders of the backends were changed
	entries int
	unknown int    // entries whose number may be too large, and their lines too late
	order   Policy // of the lines
	length  int64  // bytes of all lines
	totals
}

const (
	mostHead = 512      // bytes
	readOnce = 16 << 10 // bytes of lines: some hundred entries
)

func (h *snapshot) String() string {
	return sealed(fmt.Sprintf("index %s %d %d %s %d %d %d %d %s %d %d %d %d ", h.boot, h.inode, h.offset, h.seal, h.links, h.folders,
		h.entries, h.unknown, h.order, h.length, h.seq, h.bytes, h.disk))
}

// parseSnapshot reads the first line of a text, and gives its length.
func parseSnapshot(text []byte) (h snapshot, length int64, whole bool) {
	line, _, ok := bytes.Cut(text, []byte("\n"))
	if !ok {
		return h, 0, false
	}
	_, err := fmt.Sscanf(string(line), "index %s %d %d %s %d %d %d %d %s %d %d %d %d ", &h.boot, &h.inode, &h.offset, &h.seal, &h.links, &h.folders,
		&h.entries, &h.unknown, &h.order, &h.length, &h.seq, &h.bytes, &h.disk)
	return h, int64(len(line) + 1), err == nil && h.String() == string(line)+"\n" && h.length >= 0 && h.folders >= 0
}

func headOf(f io.ReaderAt) (h snapshot, length int64, whole bool) {
	head := make([]byte, mostHead)
	n, _ := f.ReadAt(head, 0) // short, at worst
	return parseSnapshot(head[:n])
}

// appendEntry adds the line of an entry.
func appendEntry(lines []byte, r *record) []byte {
	at := len(lines)
	lines = append(strconv.AppendInt(lines, r.least.count, 10), ' ')
	lines = append(strconv.AppendInt(lines, r.least.last, 10), ' ')
	lines = appendAdded(lines, r)
	lines[len(lines)-1] = ' '
	seal := sealOf(lines[at:])
	return append(append(lines, seal[:]...), '\n')
}

func parseEntry(line []byte) (record, bool) {
	at := len(line) - sealSize
	if at < 1 {
		return record{}, false
	}
	seal := sealOf(line[:at])
	if string(seal[:]) != string(line[at:len(line)-1]) {
		return record{}, false
	}
	count, rest, _ := strings.Cut(string(line[:at-1]), " ")
	last, rest, _ := strings.Cut(rest, " ")
	c, ok := parseChange(rest)
	var err, e error
	c.least.count, err = strconv.ParseInt(count, 10, 64)
	c.least.last, e = strconv.ParseInt(last, 10, 64)
	c.least.created = c.created
	return c.record, ok && c.added && err == nil && e == nil && c.least.last <= mostRead
}

func sealOf(line []byte) (seal [sealSize - 1]byte) {
	hex.Encode(seal[:], binary.BigEndian.AppendUint64(nil, xxhash.Sum64(line)))
	return seal
}

// reading is a snapshot whose lines are read one block after the other.
type reading struct {
	snapshot
	from  io.ReaderAt
	first int64 // where the lines begin
	at    int64 // where the next line begins
	end   int64 // of the lines
	left  int   // entries
	most  int64 // bytes that are read at once
}

// readingOf begins to read a snapshot of that many bytes.
func readingOf(from io.ReaderAt, size int64) (r reading, ok bool) {
	head := make([]byte, min(mostHead, size))
	if short, err := readAll(from, head, 0); err != nil || short {
		return r, false
	}
	h, at, ok := parseSnapshot(head)
	ok = ok && h.entries >= 0 && at+h.length+tableRow*int64(h.entries)+h.folders == size
	return reading{h, from, at, at, at + h.length, h.entries, readOnce}, ok
}

const tableRow = 16 // bytes

// linesOf are the lines of entries, and their table.
func linesOf(records []*record) (lines, table []byte) {
	lines = make([]byte, 0, 120*len(records))
	rows := make([][tableRow]byte, len(records))
	for i, r := range records {
		binary.BigEndian.PutUint64(rows[i][:], xxhash.Sum64String(r.place))
		binary.BigEndian.PutUint64(rows[i][8:], uint64(len(lines)))
		lines = appendEntry(lines, r)
	}
	slices.SortFunc(rows, func(a, b [tableRow]byte) int { return bytes.Compare(a[:], b[:]) })
	for i := range rows {
		table = append(table, rows[i][:]...)
	}
	return lines, table
}

// find reads the line of one place ahead. It is false for one that was read, and too where the table is damaged, of which
// nothing is believed: a line has a digest.
func (r *reading) find(place string) (record, bool) {
	row := make([]byte, tableRow)
	at := func(i int) (hash, offset uint64) {
		if short, err := readAll(r.from, row, r.end+tableRow*int64(i)); err != nil || short {
			return 0, math.MaxUint64
		}
		return binary.BigEndian.Uint64(row), binary.BigEndian.Uint64(row[8:])
	}
	want := xxhash.Sum64String(place)
	i := sort.Search(r.entries, func(i int) bool { hash, _ := at(i); return hash >= want })
	for ; i < r.entries; i++ {
		hash, offset := at(i)
		if hash != want || offset >= uint64(r.length) {
			break
		}
		text := make([]byte, min(mostHead, r.length-int64(offset)))
		if short, err := readAll(r.from, text, r.first+int64(offset)); err != nil || short {
			break
		}
		line := text[:bytes.IndexByte(text, '\n')+1]
		if e, ok := parseEntry(line); ok && e.place == place && r.first+int64(offset) >= r.at {
			return e, true
		}
	}
	return record{}, false
}

// next gives some entries. It is false if they are damaged.
func (r *reading) next() (some []record, ok bool) {
	text := make([]byte, min(r.most, r.end-r.at))
	if short, err := readAll(r.from, text, r.at); err != nil || short {
		return nil, false
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	for line := range bytes.Lines(text) {
		e, ok := parseEntry(line)
		if !ok {
			return nil, false
		}
		some = append(some, e)
	}
	r.at += int64(len(text))
	r.left -= len(some)
	return some, len(some) > 0 && (r.at < r.end) == (r.left > 0)
}

// goesWith reports whether a snapshot is of the journal that is open, at a place that
// it has. The lines of its entries begin there in the file.
func (d *directory) goesWith(h *snapshot, from io.ReaderAt, first int64) bool {
	j := &d.journal
	if boot := d.s.main.Boot(); boot == "" || h.boot != boot || j.file == nil || h.inode != j.inode || h.offset > j.offset {
		return false
	}
	return d.sealAt(h.offset) == h.seal && (h.offset < j.offset || d.untouched(h, from, first+h.length+tableRow*int64(h.entries)))
}

// sealAt is the last word of the journal before an offset, or empty.
func (d *directory) sealAt(offset int64) string {
	word := make([]byte, sealSize)
	if offset < sealSize {
		return ""
	}
	if short, err := readAll(d.journal.file, word, offset-sealSize); err != nil || short {
		return ""
	}
	return string(word[:sealSize-1])
}

// folders has a line for each folder of a backend, when it was changed: a bucket came or went, or
// somebody has put an older copy over it. Of the root it gives the number of links, which
// most file systems count folders with.
func (d *directory) folders() (text []byte, links uint64) {
	f := d.s.main
	list, _ := f.ReadDir(".") // nothing is believed then
	for _, b := range list {
		if info, err := f.Lstat(b.Name); err == nil && info.Mode.IsDir() && validBackend(b.Name) {
			text = fmt.Appendf(text, "%s %d\n", b.Name, info.Changed.UnixNano())
		}
	}
	root, _ := f.Lstat(".")
	return text, root.Links
}

// untouched reports whether the folders are as their lines say, which begin there in the file.
// Where they are many it looks at some, other ones in each opening, so that it costs as much.
func (d *directory) untouched(h *snapshot, from io.ReaderAt, at int64) bool {
	const most = 1 << 10 // bytes of lines
	text := make([]byte, min(h.folders, most))
	if h.folders <= most {
		short, err := readAll(from, text, at)
		now, _ := d.folders()
		return err == nil && !short && bytes.Equal(text, now)
	}
	begin := min(max(0, d.chance%(h.folders+most)-most), h.folders-most) // the first and last ones as often as others
	if root, err := d.s.main.Lstat("."); err != nil || root.Links != h.links {
		return false
	}
	if short, err := readAll(from, text, at+begin); err != nil || short {
		return false
	}
	if begin > 0 {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	for line := range bytes.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) {
		name, _, _ := strings.Cut(string(line), " ")
		info, err := d.s.main.Lstat(name)
		if err != nil || fmt.Sprintf("%s %d\n", name, info.Changed.UnixNano()) != string(line) {
			return false
		}
	}
	return true
}

// peek takes the totals from the end of the journal for an index, whose entries are read
// when there is a change. It is false where more must be known at once: entries to
// evict, or what size.txt does not agree with. The caller has the lock.
func (d *directory) peek() bool {
	t := d.journal.tail
	if t.bytes < 0 || t.disk < 0 || t.bytes != d.s.main.readSize() {
		return false
	}
	f, err := d.s.main.Open(indexFile)
	if err != nil {
		return false
	}
	defer f.Close()
	h, at, ok := headOf(f)
	if !ok || !d.goesWith(&h, f, at) {
		return false
	}
	was := d.idx.totals
	d.idx.totals, d.idx.unread = t, true
	if d.follow(); t.disk > d.s.capacity() {
		d.idx.totals, d.idx.unread = was, false
		return false
	}
	d.text = t.bytes
	d.tookFrom(&h)
	return true
}

// load takes the index from the snapshot, but for the entries whose turn is late, and
// from the journal what came after it, as far as that was open. It needs no lock.
func (d *directory) load() bool {
	f, err := d.s.main.Open(indexFile)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	r, ok := readingOf(f, info.Size)
	x := newIndex(d.s.policy())
	x.totals, x.rest, x.gone = r.totals, r.entries > 0, map[string]bool{}
	if err == nil && ok && info.Regular() && d.goesWith(&r.snapshot, f, r.first) {
		end := d.journal.offset
		d.journal.offset = r.offset
		err = d.journal.read(x, end)
		d.journal.offset = end
	} else {
		err = errors.Join(errStale, err)
	}
	if err != nil {
		_ = f.Close() // it was only read
		return false
	}
	x.own, x.others, x.seq = d.idx.own, d.idx.others, max(x.seq, d.idx.seq)
	d.forgetRest()
	d.idx, d.text, d.rest, d.restFile = x, unread, r, f
	d.tookFrom(&r.snapshot)
	return true
}

// tookFrom notes which snapshot is there.
func (d *directory) tookFrom(h *snapshot) {
	d.saved, d.savedAt, d.savedOf = h.inode, h.offset, h.entries
}

// readOn reads some more entries of the index. It is false if they are damaged.
func (d *directory) readOn() bool {
	some, ok := d.rest.next()
	for _, r := range some {
		d.idx.feed(r)
	}
	if ok && d.rest.left == 0 {
		d.forgetRest()
		ok = d.idx.fed()
	}
	if !ok {
		d.fresh = false
	}
	return ok
}

// readRest reads all entries of the index.
func (d *directory) readRest() {
	for d.idx.rest && d.readOn() {
	}
}

func (d *directory) forgetRest() {
	if d.restFile != nil {
		_ = d.restFile.Close() // it was only read
		d.restFile = nil
	}
}

// whole is errMore if the rest of the index must be read first.
func (d *directory) whole() error {
	if !d.idx.rest {
		return nil
	}
	d.wanted = true
	return errMore
}

// save writes a snapshot. It costs as much as the index is large, and is made after a
// listing and for each new journal, which takes thousands of changes to come; not under
// the lock of the directory. Where others have begun a journal since, or are ahead in this one,
// theirs is the index.
func (d *directory) save() {
	j := &d.journal
	if !d.fresh || d.idx.unread || j.file == nil || d.s.main.Boot() == "" {
		return
	}
	if d.readRest(); !d.fresh {
		return // and the next change lists
	}
	if info, err := d.s.main.Lstat(journalFile); err != nil || info.Inode != j.inode || d.outrun() {
		return
	}
	folders, links := d.folders()
	h := snapshot{boot: d.s.main.Boot(), inode: j.inode, offset: j.offset, entries: len(d.idx.entries), order: d.idx.policy, totals: d.idx.totals}
	d.tookFrom(&h) // also if it fails, so that not each change tries
	d.noted = 0
	h.seal, h.folders, h.links = d.sealAt(h.offset), int64(len(folders)), links
	records := d.idx.lines()
	lines, table := linesOf(records)
	for _, r := range records {
		if !r.known {
			h.unknown++
		}
	}
	h.length = int64(len(lines))
	if err := rewrite(d.s.main, indexFile, []byte(h.String()), lines, table, folders); err != nil {
		d.s.logOnce("write the index", err)
	}
}

// outrun reports whether others have written a snapshot since, at a later place.
func (d *directory) outrun() bool {
	f, err := d.s.main.Open(indexFile)
	if err != nil {
		return false
	}
	defer f.Close()
	h, _, ok := headOf(f)
	if !ok || h.boot != d.s.main.Boot() || h.inode != d.journal.inode || h.offset <= d.journal.offset || d.sealAt(h.offset) != h.seal {
		return false
	}
	d.tookFrom(&h)
	return true
}

// saveLast writes a snapshot for the next Open if that would have much of the journal to
// read, for the size of the index, or many uses to look up.
func (d *directory) saveLast() {
	const behind, line = 8, 120 // bytes of a line, about
	used := d.s.policy() != FIFO && d.isMuch(d.noted)
	if used && d.idx.unread {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if d.alter(ctx, d.whole) != nil {
			return // and the next eviction looks them up
		}
	}
	length := int64(line * len(d.idx.entries))
	if d.idx.rest {
		length = d.rest.length
	}
	if behind*(d.journal.offset-d.savedAt) > length || d.saved != d.journal.inode || used {
		d.save()
	}
}
