package blobstore

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// journal is a file of the changes to a directory. By reading on in it, a process
// learns what the others changed without listing the directory before each store.
// It is a hint: a reader that finds it replaced, torn or without an end lists the
// directory, and an Open does so without a snapshot that goes with it. It is read and
// written under the directory lock.
// The writer that makes it too long begins another, whose first line names the old one
// by inode and length, so that its readers go on in the new one.
//
// A change is a line "b", a line for each entry added or removed, and a line "e" with
// the totals after it, the digest of the lines, and that of what stands before in this
// line. A journal that ends in another way is that of a writer which died in between,
// or of another version, which takes no change of this one for one of its own.
type journal struct {
	fs     vfs.FS
	file   vfs.File
	inode  uint64
	offset int64  // this process has read or written the bytes before it
	tail   totals // as the journal told when it was opened
	begun  bool
	lines  []byte
}

const mostJournal = 1 << 20 // bytes; a longer journal is followed by a fresh one

// journalStart begins the first line of a fresh journal. A name that no other journal
// has follows, and the end of a change.
func journalStart(inode uint64, length int64) string {
	return fmt.Sprintf("after %d %d ", inode, length)
}

// journalEnd is the last line of a change.
func journalEnd(lines []byte, t totals) string {
	return sealed(fmt.Sprintf("e %016x %016x %016x %016x ", uint64(t.seq), uint64(t.bytes), uint64(t.disk), xxhash.Sum64(lines)))
}

// sealed ends a line with a digest of it. That is xxHash64 and tells damage, not
// forgery: a directory that another user can write is not opened (SPEC P13).
func sealed(line string) string { return fmt.Sprintf("%s%016x\n", line, xxhash.Sum64String(line)) }

var endSize = int64(len(journalEnd(nil, totals{})))

// parseEnd reads the last line of a change.
func parseEnd(line string) (t totals, lines uint64, ok bool) {
	if int64(len(line)) != endSize || !strings.HasPrefix(line, "e ") || sealed(line[:endSize-sealSize]) != line {
		return t, 0, false
	}
	var numbers [4]uint64
	for i := range numbers {
		var err error
		numbers[i], err = strconv.ParseUint(line[2+sealSize*i:][:sealSize-1], 16, 64)
		if err != nil {
			return t, 0, false
		}
	}
	t = totals{int64(numbers[0]), int64(numbers[1]), int64(numbers[2])}
	return t, numbers[3], t.seq <= mostRead
}

const sealSize = 17

// errStale says that the directory must be listed again.
var errStale = errors.New("the journal does not continue what was read of it")

// follow applies to an index the changes that other processes have written since.
// After errStale the caller must list the directory and call reset.
func (j *journal) follow(x *index) error {
	info, err := j.fs.Lstat(journalFile)
	switch {
	case isGone(err) || j.file == nil:
		return errStale
	case err != nil:
		return err
	case info.Inode != j.inode:
		if info, err = j.next(x, info); err != nil {
			return err
		}
	}
	return j.read(x, info.Size)
}

// next reads the journal to its end and goes on with the one at its name, which must
// be the one after it.
func (j *journal) next(x *index, info vfs.Info) (vfs.Info, error) {
	old, err := j.file.Stat()
	if err == nil {
		err = j.read(x, old.Size)
	}
	if err != nil {
		return info, err
	}
	start := journalStart(j.inode, j.offset)
	j.close()
	if err := j.open(info); err != nil {
		return info, errors.Join(errStale, err)
	}
	text := make([]byte, len(start))
	if short, err := readAll(j.file, text, 0); err != nil || short || string(text) != start {
		return info, errors.Join(errStale, err)
	}
	j.offset = int64(len(start)+len(hostlock.Unique())+1) + endSize
	return info, nil
}

// read applies the changes up to an offset.
func (j *journal) read(x *index, end int64) error {
	if end == j.offset {
		return nil
	}
	if end < j.offset || end > 2*mostJournal { // which reset replaces
		return errStale
	}
	text := make([]byte, end-j.offset)
	if _, err := j.file.ReadAt(text, j.offset); err != nil && err != io.EOF {
		return err
	}
	changes, err := parseJournal(string(text))
	if err != nil || x.unread {
		return errors.Join(errStale, err)
	}
	for _, c := range changes {
		x.follow(c)
	}
	if x.rest { // the index does not know all that was removed
		t, ok := endOf(string(text))
		if !ok || t.bytes < 0 || t.disk < 0 {
			return errStale
		}
		x.bytes, x.disk = t.bytes, t.disk
	}
	j.offset = end
	return nil
}

type change struct {
	added bool
	record
}

// parseJournal reads whole changes.
func parseJournal(text string) ([]change, error) {
	var changes []change
	inside, begin, at := false, 0, 0 // begin = where the lines of this change begin
	for line := range strings.Lines(text) {
		start := at
		at += len(line)
		switch {
		case !inside && line == "b\n":
			inside, begin = true, at
		case inside && line[0] == 'e':
			_, digest, ok := parseEnd(line)
			if !ok || digest != xxhash.Sum64String(text[begin:start]) {
				return nil, errStale
			}
			inside = false
		default:
			c, ok := parseChange(strings.TrimSuffix(line, "\n"))
			if !inside || !ok {
				return nil, errStale
			}
			changes = append(changes, c)
		}
	}
	if inside {
		return nil, errStale
	}
	return changes, nil
}

func parseChange(line string) (change, bool) {
	kind, rest, _ := strings.Cut(line, " ")
	if kind == "-" && isPlace(rest) {
		return change{record: record{place: rest}}, true
	}
	var numbers [5]int64
	for i := range numbers {
		var word string
		var err error
		word, rest, _ = strings.Cut(rest, " ")
		if numbers[i], err = strconv.ParseInt(word, 10, 64); err != nil {
			return change{}, false
		}
	}
	r := record{place: rest, bytes: numbers[0], disk: numbers[1], created: numbers[2], cost: time.Duration(numbers[3]), seq: numbers[4]}
	r.known = r.cost != notKnown
	return change{true, r}, kind == "+" && isPlace(rest) && r.bytes >= 0 && r.disk >= 0 && r.seq <= mostRead
}

// isPlace reports whether a text is backend/bucket/slot.
func isPlace(text string) bool {
	backend, rest, _ := strings.Cut(text, "/")
	bucket, slot, _ := strings.Cut(rest, "/")
	return validBackend(backend) && isNumber(bucket) && isNumber(slot)
}

// reset goes on with the present journal, or begins a fresh one if that is damaged or
// too long. Every other process lists the directory after a fresh one. With force it
// begins a fresh one in any case, whose numbers go on from seq.
func (j *journal) reset(force bool, seq int64) error {
	j.close()
	if !force {
		info, err := j.fs.Lstat(journalFile)
		if err == nil && info.Regular() && info.Size <= 2*mostJournal && info.Size >= endSize && j.open(info) == nil {
			return nil
		}
	}
	return j.start(0, 0, totals{seq, unknownSize, unknownSize})
}

// start begins a fresh journal, after the one of an inode and length if there is one
// whose readers may go on.
func (j *journal) start(inode uint64, length int64, t totals) error {
	j.close()
	first := journalStart(inode, length) + hostlock.Unique() + "\n"
	if err := rewrite(j.fs, journalFile, []byte(first+journalEnd([]byte(first), t))); err != nil {
		return err
	}
	info, err := j.fs.Lstat(journalFile)
	if err != nil {
		return err
	}
	return j.open(info)
}

// open goes on at the end of a journal; errStale if it has none.
func (j *journal) open(info vfs.Info) error {
	file, err := j.fs.Update(journalFile)
	if err != nil {
		return err
	}
	tail := make([]byte, min(info.Size, endSize+1))
	_, err = file.ReadAt(tail, info.Size-int64(len(tail)))
	t, ok := endOf(string(tail))
	if err != nil || !ok {
		return errors.Join(errStale, file.Close())
	}
	j.file, j.inode, j.offset, j.tail = file, info.Inode, info.Size, t
	return nil
}

// endOf gives the totals at the end of a journal, of which these are the last bytes.
func endOf(tail string) (totals, bool) {
	n := len(tail) - int(endSize)
	if n < 0 || n > 0 && tail[n-1] != '\n' {
		return totals{}, false
	}
	t, _, ok := parseEnd(tail[n:])
	return t, ok
}

// latest is the latest number in the journal, 0 if it cannot be told. It needs no lock.
func (j *journal) latest() int64 {
	f, err := j.fs.Open(journalFile)
	if err != nil {
		return 0
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size < endSize {
		return 0
	}
	tail := make([]byte, endSize)
	if short, err := readAll(f, tail, info.Size-endSize); err != nil || short {
		return 0
	}
	t, _ := endOf(string(tail))
	return t.seq
}

// begin writes that a change begins. It must be called before the first file is moved.
func (j *journal) begin() error {
	if j.begun {
		return nil
	}
	j.begun = true
	return j.append([]byte("b\n"))
}

func (j *journal) added(r record) { j.lines = appendAdded(j.lines, &r) }

// notKnown stands for the cost of an entry of which only the sizes are known.
const notKnown = -1

func appendAdded(lines []byte, r *record) []byte {
	cost := max(0, int64(r.cost))
	if !r.known {
		cost = notKnown
	}
	lines = append(lines, '+')
	for _, n := range [...]int64{r.bytes, r.disk, r.created, cost, r.seq} {
		lines = strconv.AppendInt(append(lines, ' '), n, 10)
	}
	return append(append(append(lines, ' '), r.place...), '\n')
}

func (j *journal) removed(place string) { j.lines = fmt.Appendf(j.lines, "- %s\n", place) }

// end writes the lines of the change and its end, with the totals after it.
func (j *journal) end(t totals) error {
	if !j.begun {
		return nil
	}
	lines := append(j.lines, journalEnd(j.lines, t)...)
	j.begun, j.lines = false, lines[:0]
	if err := j.append(lines); err != nil || j.offset <= mostJournal {
		return err
	}
	return j.start(j.inode, j.offset, t)
}

func (j *journal) append(lines []byte) error {
	if j.file == nil {
		return errStale
	}
	n, err := j.file.WriteAt(lines, j.offset)
	j.offset += int64(n)
	return err
}

func (j *journal) close() {
	if j.file != nil {
		_ = j.file.Close() // its content was written, or was given up
		j.file = nil
	}
	j.begun, j.lines, j.offset = false, j.lines[:0], 0
}

// rewrite makes a file of the parts in one step, whatever has its name.
func rewrite(fsys vfs.FS, name string, parts ...[]byte) error {
	temporary := tmpDir + "/" + hostlock.Unique()
	err := vfs.WriteNew(fsys, temporary, false, parts...)
	if err == nil {
		err = replace(fsys, temporary, name)
	}
	if err != nil {
		_ = fsys.Remove(temporary) // the next sweep removes what is left
	}
	return err
}

// replace renames a file over a name, and removes a folder that has the name.
func replace(fsys vfs.FS, from, to string) error {
	err := fsys.Rename(from, to)
	if err == nil {
		return nil
	}
	if info, e := fsys.Lstat(to); e != nil || !info.Mode.IsDir() {
		return err
	}
	if err := fsys.RemoveAll(to); err != nil {
		return err
	}
	return fsys.Rename(from, to)
}
