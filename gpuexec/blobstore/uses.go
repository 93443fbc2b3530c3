package blobstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Each writer has one file of uses: a line "open" or "closed" with the latest number in
// it, and for each entry a line with count, number of the last use, creation time and
// place, in the order of places. A use is in one file. A writer that evicts takes over the files of those that
// ended. What cannot be read is left out.
const (
	usesOpen   = "open"
	usesClosed = "closed"
	usesTaken  = "-taken" // ends the name of a file while its uses move to another
	mostUses   = 64 << 20 // bytes of a file
	flushEvery = time.Minute
	stale      = time.Hour // age at which temporary files and files of dead writers are removed
)

// ownUses is the name of this writer's file.
func (s *Store) ownUses() string { return usesDir + "/" + s.writer }

// used notes a hit. It does not wait for writers.
func (s *Store) used(b Blob) {
	if b.layer > 0 || s.cfg.ReadOnly {
		return
	}
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.seq = after(s.mu.seq, now)
	u := s.mu.uses[b.Place]
	created := b.Created.UnixNano()
	if u.created != created {
		u = use{created: created}
	}
	u.count++
	u.last = s.mu.seq
	s.mu.uses[b.Place] = u
	s.mu.flushed = false
}

// raise makes later uses count as later than a number of the sequence.
func (s *Store) raise(seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.seq = max(s.mu.seq, seq)
}

// Reuse must be called before a blob that was read earlier is used again. A Miss
// that is not zero means that the blob must not be used: its signer was revoked or
// has another key by now (SPEC P15), or a driver has refused it (SPEC P11). Otherwise
// one use is counted, as by a Get.
func (s *Store) Reuse(b Blob) Miss {
	flaw := s.trust.Still(b.Signer, b.verified)
	if s.isRefused(b.digest) {
		flaw = frame.Flaw{Reason: fault.Quarantined}
	}
	if flaw.None() && !s.off {
		s.used(b)
	}
	return Miss(flaw)
}

// takeUses moves the uses that readers noted to the index. It is part of a change.
func (s *Store) takeUses(x *index) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.note(s.mu.uses)
	s.dir.noted += len(s.mu.uses)
	clear(s.mu.uses)
}

// latestUse is the latest number in the files of uses, as far as their first lines tell.
// Where killed writers have left many files they are taken over.
func (d *directory) latestUse() (latest int64) {
	s := d.s
	list, _ := s.main.ReadDir(usesDir) // hints
	if len(list) > 2*mostUsesFiles {
		d.loadUses()
		return d.idx.seq
	}
	for _, entry := range list {
		name := usesDir + "/" + entry.Name
		f, err := s.main.Open(name)
		if err != nil {
			continue
		}
		head := make([]byte, 32)
		n, _ := f.ReadAt(head, 0) // short, at worst
		_ = f.Close()             // it was only read
		line, _, _ := strings.Cut(string(head[:n]), "\n")
		_, word, _ := strings.Cut(line, " ")
		number, err := strconv.ParseInt(word, 10, 64)
		if err != nil { // of an older version, whose first line has no number
			text, _ := vfs.ReadFile(s.main, name, mostUses)
			number = parseUses(string(text)).latest()
		}
		if number <= mostRead {
			latest = max(latest, number)
		}
	}
	return latest
}

// renew has the uses of those that go next looked up again, once a minute. A change that
// has done so does not again, however far the clock jumps meanwhile.
func (d *directory) renew() {
	if now := d.s.cfg.Now(); !d.usesNew && now.Sub(d.usesRead).Abs() >= flushEvery {
		d.beginRound(now)
	}
}

func (d *directory) beginRound(now time.Time) {
	d.usesRead, d.usesNew, d.usesAll, d.looked = now, true, false, 0
	d.round++
}

// unsure lists those of which other writers may have noted uses in this round.
func (d *directory) unsure(victims []*record) []*record {
	if d.usesAll || d.s.policy() == FIFO {
		return nil
	}
	return slices.DeleteFunc(victims, func(r *record) bool { return r.looked == d.round })
}

// lookUp puts entries in order, and looks the uses of the next victims up, until those are sure.
// Where that has come to cost as much as to read all uses it does that instead: so neither
// how many uses there are matters, nor how many victims.
func (d *directory) lookUp() {
	each, all := d.s.costOfUses()
	later, loaded := 0, false
	for {
		d.idx.arrange(d.only)
		for d.idx.starved() && d.readOn() {
		}
		unsure := d.unsure(d.idx.surplus(d.upTo, d.keep, mostMoved/5))
		if len(unsure) == 0 {
			break
		}
		for _, r := range unsure {
			if d.looked += each; d.looked > all {
				d.loadUses()
				loaded = true
				break
			}
			if d.idx.lookedUp(r, d.s.usesOf(r.place), d.round); d.idx.usedSince(r) {
				later++
			}
		}
	}
	if loaded {
		for _, r := range d.idx.entries {
			if d.idx.usedSince(r) {
				later++
			}
		}
	}
	if d.isMuch(later) {
		d.saved = 0 // so that the next process does not do this again
	}
}

// isMuch reports whether so many uses that the index does not have make it worth writing.
func (d *directory) isMuch(uses int) bool {
	const few, share = 128, 8
	return uses > few && uses > d.savedOf/share
}

// costOfUses is about what it costs to look up the uses of one entry, and to read all, in KiB.
func (s *Store) costOfUses() (each, all int64) {
	const inFile = 16
	list, _ := s.main.ReadDir(usesDir) // hints
	for _, entry := range list {
		if info, err := s.main.Lstat(usesDir + "/" + entry.Name); err == nil {
			each += inFile
			all += info.Size >> 10
		}
	}
	return each, all
}

// told is errMore, once a minute, if the uses of other writers are to be read first.
func (d *directory) told() error {
	if d.usesAll && (d.usesNew || d.s.cfg.Now().Sub(d.usesRead).Abs() < flushEvery) {
		return nil
	}
	if d.stale = true; d.lock != nil && d.fresh {
		return errMore
	}
	d.loadUses()
	return nil
}

// loadUses reads the files of other writers, and takes over those of writers that ended.
// It needs no lock: who renames a file takes it over.
func (d *directory) loadUses() {
	d.beginRound(d.s.cfg.Now())
	d.stale, d.usesAll = false, true
	live, ended, names, err := d.s.readUses(d.idx, true)
	if err != nil {
		d.s.logOnce("read uses", err) // victims are chosen by what is known
		return
	}
	d.checkUses()
	d.idx.setUses(d.idx.own, live)
	if len(names) == 0 {
		return
	}
	d.idx.merge(ended, d.idx.own)
	if err := d.writeUses(usesOpen, ended); err != nil {
		d.s.logOnce("write uses", err) // when this process has ended another takes them over
		return
	}
	d.idx.setUses(ended, live)
	for _, name := range names {
		_ = d.s.main.Remove(name) // a file that stays is read again, and its uses count twice
	}
}

// readUses gives the uses of other writers, apart for those that go on and those that
// ended. With take it takes the files of the latter, and gives the names that they have
// then.
func (s *Store) readUses(x *index, take bool) (live, ended uses, names []string, err error) {
	live, ended = uses{}, uses{}
	list, err := s.main.ReadDir(usesDir)
	own := s.ownUses()
	living, known := s.living()
	clock := sync.OnceValue(s.fileTime)
	for _, entry := range list {
		name, owner := usesDir+"/"+entry.Name, entry.Name
		if name == own {
			continue
		}
		text, err := vfs.ReadFile(s.main, name, mostUses)
		if err != nil {
			continue
		}
		taken := strings.HasSuffix(name, usesTaken)
		if taken {
			owner = hostlock.Process(owner)
		}
		if (taken || !strings.HasPrefix(string(text), usesClosed)) && !(known && s.left(living, owner, name, clock)) {
			x.merge(live, parseUses(string(text)))
			continue
		}
		if take {
			mine := usesDir + "/" + hostlock.Unique() + usesTaken
			if s.main.Rename(name, mine) != nil {
				continue // another process was faster
			}
			names = append(names, mine)
		}
		x.merge(ended, parseUses(string(text)))
	}
	return live, ended, names, err
}

func parseUses(text string) uses {
	all := uses{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) != 4 || !isPlace(words[3]) {
			continue
		}
		var numbers [3]int64
		ok := true
		for i := range numbers {
			n, err := strconv.ParseInt(words[i], 10, 64)
			ok = ok && err == nil
			numbers[i] = n
		}
		if ok && numbers[0] > 0 && numbers[1] <= mostRead {
			all[words[3]] = use{count: numbers[0], last: numbers[1], created: numbers[2]}
		}
	}
	return all
}

// usesOf gives the uses of one place that are in files of other writers. It costs as much
// whatever the number of entries, but for its logarithm.
func (s *Store) usesOf(place string) uses {
	all := uses{}
	list, _ := s.main.ReadDir(usesDir) // hints
	for _, entry := range list {
		name := usesDir + "/" + entry.Name
		if name == s.ownUses() {
			continue
		}
		f, err := s.main.Open(name)
		if err != nil {
			continue
		}
		if info, err := f.Stat(); err == nil && info.Regular() && info.Size <= mostUses {
			if u, ok := parseUses(string(linesNear(f, info.Size, place)))[place]; ok {
				all.add(place, u)
			}
		}
		_ = f.Close() // it was only read
	}
	return all
}

// linesNear gives some lines of a file of uses, with that of a place among them if the
// file has one. It is empty where the file cannot be read.
func linesNear(f io.ReaderAt, size int64, place string) []byte {
	const near, twoLines = 4 << 10, 512 // bytes
	begin, end := int64(0), size
	for end-begin > near {
		middle := begin + (end-begin)/2
		text := make([]byte, twoLines)
		n, _ := f.ReadAt(text, middle) // short, at worst
		first, rest, _ := bytes.Cut(text[:n], []byte("\n"))
		line, _, whole := bytes.Cut(rest, []byte("\n"))
		words := bytes.Fields(line)
		if !whole || len(words) != 4 {
			return nil
		}
		if at := middle + int64(len(first)) + 1; string(words[3]) <= place {
			begin = at
		} else {
			end = at
		}
	}
	text := make([]byte, end-begin)
	n, _ := f.ReadAt(text, begin) // short, at worst
	return text[:n]
}

// checkUses forgets the uses of this writer if another one has taken over its file,
// which had not been written for an hour. It is part of a change.
func (d *directory) checkUses() {
	if _, err := d.s.main.Lstat(d.s.ownUses()); d.usesWritten && isGone(err) {
		d.idx.setUses(uses{}, d.idx.others)
	}
}

// writeUses writes this writer's file, for entries that exist. Entries that are not in
// the index may have been stored by another process since.
func (d *directory) writeUses(state string, own uses) error {
	if len(own) > d.rest.left/16 {
		d.readRest() // which takes less than to look at each
	}
	var text []byte
	for _, place := range slices.Sorted(maps.Keys(own)) {
		if _, known := d.idx.entries[place]; !known {
			if _, err := d.s.main.Lstat(place); isGone(err) {
				delete(own, place)
				continue
			}
		}
		u := own[place]
		text = fmt.Appendf(text, "%d %d %d %s\n", u.count, u.last, u.created, place)
	}
	err := rewrite(d.s.main, d.s.ownUses(), fmt.Appendf(nil, "%s %d\n", state, own.latest()), text)
	d.usesWritten = d.usesWritten || err == nil
	return err
}

// Whoever closes takes over the files of writers that ended while they are small, so that
// it costs little. Where there are too many of them, each of some size, it does so too.
const (
	mostUsesFiles = 32
	smallUses     = 64 << 10 // bytes of all files
)

func (s *Store) boundUses() {
	list, err := s.main.ReadDir(usesDir)
	if err != nil {
		s.logOnce("take over uses", err) // the next Close tries again
	}
	var size int64
	for _, entry := range list[:min(len(list), mostUsesFiles)] {
		info, _ := s.main.Lstat(usesDir + "/" + entry.Name) // of one that went the size is 0
		size += info.Size
	}
	if (len(list) > mostUsesFiles || size <= smallUses) && s.dir.hold(context.Background()) == nil { // that context does not end
		defer s.dir.unhold()
		s.dir.loadUses()
	}
}

// flushUses writes this writer's uses if there are new ones. last marks the file as
// that of a writer that ended.
func (s *Store) flushUses(last bool) {
	if s.writes.broken() || s.setFlushed(true) && !last {
		return
	}
	d := &s.dir
	if d.hold(context.Background()) != nil { // never: that context does not end
		return
	}
	defer d.unhold()
	s.raise(d.journal.latest()) // this writer may change nothing itself
	d.checkUses()
	s.takeUses(d.idx)
	if s.policy() == FIFO && len(d.idx.own) == 0 && !d.usesWritten {
		return
	}
	state := usesOpen
	if last {
		state = usesClosed
	}
	if err := d.writeUses(state, d.idx.own); err != nil {
		s.setFlushed(false) // the next minute tries again
		s.logOnce("write uses", err)
	}
}

// setFlushed says whether uses are written, and reports whether they were.
func (s *Store) setFlushed(are bool) (were bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	were, s.mu.flushed = s.mu.flushed, are
	return were
}
