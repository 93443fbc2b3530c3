package blobstore

import (
	"encoding/hex"
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
// directory, and so does every Open. It is read and written under the directory lock.
// The writer that makes it too long begins another, whose first line names the old one
// by inode and length, so that its readers go on in the new one.
//
// A change is a line "b", a line for each entry added or removed, and a line "e" with
// the digest of these lines. A journal that ends in another way is that of a writer
// which died in between, or of a version without digests.
type journal struct {
	fs     vfs.FS
	file   vfs.File
	inode  uint64
	offset int64 // this process has read or written the bytes before it
	begun  bool
	lines  []byte
}

const mostJournal = 1 << 20 // bytes; a longer journal is followed by a fresh one

// journalStart is the text of a fresh journal.
func journalStart(inode uint64, length int64) string {
	return fmt.Sprintf("after %d %d\n", inode, length) + journalEnd(nil)
}

// journalEnd is the last line of a change. Its digest, xxHash64, tells damage and not
// forgery: a directory that another user can write is not opened (SPEC P13).
func journalEnd(lines []byte) string { return fmt.Sprintf("e %016x\n", xxhash.Sum64(lines)) }

var endSize = int64(len(journalEnd(nil)))

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
	j.offset = int64(len(start))
	return info, nil
}

// read applies the changes up to an offset.
func (j *journal) read(x *index, end int64) error {
	if end == j.offset {
		return nil
	}
	if end < j.offset {
		return errStale
	}
	text := make([]byte, end-j.offset)
	if _, err := j.file.ReadAt(text, j.offset); err != nil && err != io.EOF {
		return err
	}
	changes, err := parseJournal(string(text))
	if err != nil {
		return err
	}
	for _, c := range changes {
		if c.added {
			x.add(c.record)
		} else {
			x.remove(c.place)
		}
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
		case inside && strings.HasPrefix(line, "e ") && line == journalEnd([]byte(text[begin:start])):
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
	words := strings.Split(line, " ")
	switch {
	case len(words) == 2 && words[0] == "-" && isPlace(words[1]):
		return change{record: record{place: words[1]}}, true
	case len(words) == 6 && words[0] == "+" && isPlace(words[5]):
		var numbers [4]int64
		for i := range numbers {
			n, err := strconv.ParseInt(words[i+1], 10, 64)
			if err != nil {
				return change{}, false
			}
			numbers[i] = n
		}
		return change{added: true, record: record{place: words[5], known: true,
			bytes: numbers[0], disk: numbers[1], created: numbers[2], cost: time.Duration(numbers[3])}}, numbers[0] >= 0 && numbers[1] >= 0
	}
	return change{}, false
}

// isPlace reports whether a text is backend/bucket/slot.
func isPlace(text string) bool {
	parts := strings.Split(text, "/")
	return len(parts) == 3 && validBackend(parts[0]) && isNumber(parts[1]) && isNumber(parts[2])
}

// reset goes on with the present journal, or begins a fresh one if that is damaged or
// too long. Every other process lists the directory after a fresh one. With force it
// begins a fresh one in any case.
func (j *journal) reset(force bool) error {
	j.close()
	if !force {
		info, err := j.fs.Lstat(journalFile)
		if err == nil && info.Regular() && info.Size <= 2*mostJournal && info.Size >= endSize && j.open(info) == nil {
			return nil
		}
	}
	return j.start(0, 0)
}

// start begins a fresh journal, after the one of an inode and length if there is one
// whose readers may go on.
func (j *journal) start(inode uint64, length int64) error {
	j.close()
	temporary := tmpDir + "/" + hostlock.Unique()
	if err := vfs.WriteNew(j.fs, temporary, false, []byte(journalStart(inode, length))); err != nil {
		return err
	}
	if err := replace(j.fs, temporary, journalFile); err != nil {
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
	if err != nil || !endsWhole(string(tail)) {
		return errors.Join(errStale, file.Close())
	}
	j.file, j.inode, j.offset = file, info.Inode, info.Size
	return nil
}

// endsWhole reports whether a journal ends with the end of a change. The caller has
// listed the directory, so the digest itself does not matter.
func endsWhole(tail string) bool {
	n := len(tail) - int(endSize)
	if n < 0 || n > 0 && tail[n-1] != '\n' {
		return false
	}
	digest, whole := strings.CutSuffix(strings.TrimPrefix(tail[n:], "e "), "\n")
	_, err := hex.DecodeString(digest)
	return whole && err == nil && len(digest) == 16
}

// begin writes that a change begins. It must be called before the first file is moved.
func (j *journal) begin() error {
	if j.begun {
		return nil
	}
	j.begun = true
	return j.append([]byte("b\n"))
}

func (j *journal) added(r record) {
	j.lines = fmt.Appendf(j.lines, "+ %d %d %d %d %s\n", r.bytes, r.disk, r.created, int64(r.cost), r.place)
}

func (j *journal) removed(place string) { j.lines = fmt.Appendf(j.lines, "- %s\n", place) }

// end writes the lines of the change and its end.
func (j *journal) end() error {
	if !j.begun {
		return nil
	}
	lines := append(j.lines, journalEnd(j.lines)...)
	j.begun, j.lines = false, lines[:0]
	if err := j.append(lines); err != nil || j.offset <= mostJournal {
		return err
	}
	return j.start(j.inode, j.offset)
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
