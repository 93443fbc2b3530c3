package blobstore

import (
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// snapshot is the first line of the file that has an index as it was at one place of the
// journal, so that an Open need not list the directory: whoever has read it goes on in
// the journal from there. A line for each entry follows, as in the journal. It is a hint,
// believed only where all of this line is so: it was written since the machine was
// started, for a power loss takes entries away; the journal is the same file with the
// same bytes before that place; and, where nothing follows there, no folder of a backend
// was changed since, for somebody may have copied or removed entries by hand.
type snapshot struct {
	boot    string // of vfs.FS
	inode   uint64 // of the journal
	offset  int64
	seal    string // the last word before that offset
	folders uint64 // digest of the times at which the folders of the backends were changed
	entries int
	totals
	digest uint64 // of the lines
}

const (
	mostSnapshot = 1 << 30 // bytes, of several million entries
	mostHead     = 512
)

func (h *snapshot) String() string {
	return sealed(fmt.Sprintf("index %s %d %d %s %016x %d %d %d %d %016x ", h.boot, h.inode, h.offset, h.seal, h.folders,
		h.entries, h.seq, h.bytes, h.disk, h.digest))
}

// parseSnapshot reads the first line of a text.
func parseSnapshot(text string) (h snapshot, lines string, whole bool) {
	line, _, ok := strings.Cut(text[:min(len(text), mostHead)], "\n")
	if !ok {
		return h, "", false
	}
	_, err := fmt.Sscanf(line, "index %s %d %d %s %x %d %d %d %d %x ", &h.boot, &h.inode, &h.offset, &h.seal, &h.folders,
		&h.entries, &h.seq, &h.bytes, &h.disk, &h.digest)
	return h, text[len(line)+1:], err == nil && h.String() == line+"\n"
}

// parseEntries makes the index that a snapshot describes.
func (h *snapshot) parseEntries(policy Policy, lines string) (*index, bool) {
	x := newIndex(policy)
	if xxhash.Sum64String(lines) != h.digest || h.entries < 0 || h.entries > len(lines) {
		return x, false
	}
	x.entries = make(map[string]*record, h.entries)
	for line := range strings.Lines(lines) {
		c, ok := parseChange(strings.TrimSuffix(line, "\n"))
		if !ok || !c.added {
			return x, false
		}
		x.add(c.record)
	}
	x.seq = h.seq
	return x, len(x.entries) == h.entries && x.totals == h.totals
}

// goesWith reports whether a snapshot is of the journal that is open, at a place that
// it has.
func (d *directory) goesWith(h *snapshot) bool {
	j := &d.journal
	if boot := d.s.main.Boot(); boot == "" || h.boot != boot || j.file == nil || h.inode != j.inode || h.offset > j.offset {
		return false
	}
	return d.sealAt(h.offset) == h.seal && (h.offset < j.offset || h.folders == d.folders())
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

// folders is a digest of the times at which the folders of backends were changed: a
// bucket came or went.
func (d *directory) folders() uint64 {
	list, err := d.s.main.ReadDir(".")
	if err != nil {
		return 0
	}
	var text []byte
	for _, b := range list {
		if info, err := d.s.main.Lstat(b.Name); err == nil && info.Mode.IsDir() && validBackend(b.Name) {
			text = fmt.Appendf(text, "%s %d\n", b.Name, info.ModTime.UnixNano())
		}
	}
	return xxhash.Sum64(text)
}

// peek takes the totals from the end of the journal for an index, whose entries are read
// when there is a change. It is false where more must be known at once: entries to
// evict, uses to take over, or what size.txt does not agree with. The caller has the lock.
func (d *directory) peek() bool {
	t := d.journal.tail
	if t.bytes < 0 || t.disk < 0 || t.bytes != d.readSize() {
		return false
	}
	f, err := d.s.main.Open(indexFile)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, mostHead)
	n, _ := f.ReadAt(head, 0) // short, at worst
	h, _, ok := parseSnapshot(string(head[:n]))
	if !ok || !d.goesWith(&h) {
		return false
	}
	was := d.idx.totals
	d.idx.totals, d.idx.unread = t, true
	if d.follow(); d.s.policy() != FIFO || t.disk > d.s.capacity() {
		d.idx.totals, d.idx.unread = was, false
		return false
	}
	d.text = t.bytes
	d.saved, d.savedAt = h.inode, h.offset
	return true
}

// load takes the index from the snapshot, and from the journal what came after it, as
// far as that was open. It needs no lock.
func (d *directory) load() bool {
	text, err := vfs.ReadFile(d.s.main, indexFile, mostSnapshot)
	if err != nil {
		return false
	}
	h, lines, ok := parseSnapshot(string(text))
	if !ok || !d.goesWith(&h) {
		return false
	}
	x, ok := h.parseEntries(d.s.policy(), lines)
	if !ok {
		return false
	}
	end := d.journal.offset
	d.journal.offset = h.offset
	if err := d.journal.read(x, end); err != nil {
		d.journal.offset = end
		return false
	}
	x.own, x.others, x.seq = d.idx.own, d.idx.others, max(x.seq, d.idx.seq)
	d.idx, d.text = x, unread
	d.saved, d.savedAt = h.inode, h.offset
	d.s.forgetSynced()
	return true
}

// save writes a snapshot. It costs as much as the index is large, and is made after a
// listing and for each new journal, which takes thousands of changes to come; not under
// the lock of the directory.
func (d *directory) save() {
	j := &d.journal
	h := snapshot{boot: d.s.main.Boot(), inode: j.inode, offset: j.offset, entries: len(d.idx.entries), totals: d.idx.totals}
	if !d.fresh || d.idx.unread || j.file == nil || h.boot == "" {
		return
	}
	d.saved, d.savedAt = h.inode, h.offset // also if it fails, so that not each change tries
	h.seal, h.folders = d.sealAt(h.offset), d.folders()
	lines := make([]byte, 0, 100*h.entries)
	for _, r := range d.idx.entries {
		lines = appendAdded(lines, r)
	}
	h.digest = xxhash.Sum64(lines)
	if err := rewrite(d.s.main, indexFile, []byte(h.String()), lines); err != nil {
		d.s.logOnce("write the index", err)
	}
}

// saveLast writes a snapshot for the next Open if that would have much of the journal to
// read, for the size of the index.
func (d *directory) saveLast() {
	const behind, line = 8, 100 // bytes of a line, about
	if behind*(d.journal.offset-d.savedAt) > int64(line*len(d.idx.entries)) || d.saved != d.journal.inode {
		d.save()
	}
}
