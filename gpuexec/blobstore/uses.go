package blobstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Uses are kept in one file a writer: a line "open" or "closed", then lines of
// count, last use, creation time and place. A use is in one file: a writer's holds
// its own and those of ended writers, whose files it took over. They are hints:
// lines that cannot be read are left out.
const (
	usesOpen   = "open\n"
	usesClosed = "closed\n"
	mostUses   = 64 << 20 // bytes of a file
	flushEvery = time.Minute
	stale      = time.Hour // after which temporary files and files of dead writers go
)

// used notes a hit. It waits for no writer.
func (s *Store) used(b Blob) {
	if b.layer > 0 || s.cfg.ReadOnly {
		return
	}
	now := s.cfg.Now().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.mu.uses[b.Place]
	created := b.Created.UnixNano()
	if u.created != created {
		u = use{created: created}
	}
	u.count++
	u.last = max(u.last, now)
	s.mu.uses[b.Place] = u
	s.mu.flushed = false
}

// Reuse must be called before a blob that was read earlier is used again. A Miss
// that is not zero means that the blob must not be used: its signer was revoked or
// has another key by now (SPEC P15). Otherwise one use is counted, as by a Get.
func (s *Store) Reuse(b Blob) Miss {
	flaw := s.trust.Still(b.Signer, b.verified)
	if flaw.None() && !s.off {
		s.used(b)
	}
	return Miss(flaw)
}

// takeUses moves what readers noted to the index. Part of a change.
func (s *Store) takeUses(x *index) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.own.addAll(s.mu.uses)
	clear(s.mu.uses)
}

// loadUses reads what other writers wrote, at most once a minute, and takes over
// the files of those that ended. Part of a change.
func (d *directory) loadUses() error {
	now := d.s.cfg.Now()
	if d.s.cfg.Policy == FIFO || now.Sub(d.usesRead).Abs() < flushEvery {
		return nil
	}
	d.usesRead = now
	live, ended, names, err := d.s.readUses()
	if err != nil {
		return err
	}
	d.checkUses()
	d.idx.others = live
	if len(names) == 0 {
		return nil
	}
	ended.addAll(d.idx.own)
	if err := d.writeUses(usesOpen, ended); err != nil {
		return err
	}
	d.idx.own = ended
	for _, name := range names {
		_ = d.s.main.Remove(name) // read twice, it counts twice
	}
	return nil
}

// readUses gives what other writers wrote: those that go on, and those that ended,
// with the names of their files.
func (s *Store) readUses() (live, ended uses, names []string, err error) {
	live, ended = uses{}, uses{}
	list, err := s.main.ReadDir(usesDir)
	own := usesDir + "/" + s.writer
	for _, entry := range list {
		name := usesDir + "/" + entry.Name
		info, err := s.main.Lstat(name)
		if err != nil || name == own {
			continue
		}
		text, err := vfs.ReadFile(s.main, name, mostUses)
		if err != nil {
			continue
		}
		if strings.HasPrefix(string(text), usesClosed) || s.cfg.Now().Sub(info.ModTime) > stale {
			ended.addAll(parseUses(string(text)))
			names = append(names, name)
		} else {
			live.addAll(parseUses(string(text)))
		}
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
		if ok && numbers[0] > 0 {
			all[words[3]] = use{count: numbers[0], last: numbers[1], created: numbers[2]}
		}
	}
	return all
}

// checkUses forgets what somebody took over, because nothing had been written for
// an hour. Part of a change.
func (d *directory) checkUses() {
	if _, err := d.s.main.Lstat(usesDir + "/" + d.s.writer); d.usesWritten && isGone(err) {
		d.idx.own = uses{}
	}
}

// writeUses writes this writer's file, for entries that are there; another process
// may have stored them since the index was brought up to date.
func (d *directory) writeUses(state string, own uses) error {
	text := []byte(state)
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
	temporary := tmpDir + "/" + hostlock.Unique()
	if err := vfs.WriteNew(d.s.main, temporary, false, text); err != nil {
		return err
	}
	err := d.s.main.Rename(temporary, usesDir+"/"+d.s.writer)
	d.usesWritten = d.usesWritten || err == nil
	return err
}

// flushUses writes uses if there are new ones, or that the writer ends.
func (s *Store) flushUses(last bool) {
	if s.cfg.Policy == FIFO {
		return
	}
	s.mu.Lock()
	nothing := s.mu.flushed && !last
	s.mu.flushed = true
	s.mu.Unlock()
	if nothing || s.writes.broken() {
		return
	}
	d := &s.dir
	if d.mu.lock(context.Background()) != nil { // never: that context does not end
		return
	}
	defer d.mu.unlock()
	d.checkUses()
	s.takeUses(d.idx)
	state := usesOpen
	if last {
		state = usesClosed
	}
	if err := d.writeUses(state, d.idx.own); err != nil {
		s.logOnce("write uses", err)
	}
}
