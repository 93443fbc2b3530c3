package blobstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Enter must be called before a blob is given to a driver, and the function leave
// after the driver has returned (SPEC P11). If the process ends in between, no
// process gives the blob to a driver again. For drivers that cannot abort
// (Config.Aborts) Enter marks nothing, and only looks whether the blob was refused.
//
// A Miss that is not zero means that the blob must not be used. Reason quarantined:
// the blob has ended a process or was refused, or has left the store since it was read.
// Reason busy: another process has been in its driver with this blob for longer than
// Config.Lease. The error is fault.ErrClosed or the context's. leave is never nil.
func (s *Store) Enter(ctx context.Context, backend string, b Blob) (leave func(), miss Miss, err error) {
	nothing := func() {}
	if err := s.begin("store: enter"); err != nil {
		return nothing, Miss{}, err
	}
	defer s.leave()
	if s.off {
		return nothing, Miss{}, nil
	}
	if s.cfg.ReadOnly || !s.cfg.Aborts(backend) {
		if s.isRefusedNow(b.digest) { // it may lie where no process can move it
			s.stats.reason(fault.Quarantined)
			return nothing, Miss{Reason: fault.Quarantined}, nil
		}
		return nothing, Miss{}, nil
	}
	name := hex.EncodeToString(b.digest[:])
	mark, verdict, err := s.marks.Enter(ctx, name, note(s.layer(b.layer), b.Place))
	switch {
	case ctx.Err() != nil && mark == nil:
		return nothing, Miss{}, ctx.Err()
	case err != nil: // the request goes on without a mark
		s.degraded("mark", err)
		return nothing, Miss{}, nil
	case verdict == hostlock.Busy:
		s.stats.reason(fault.Busy)
		return nothing, Miss{Reason: fault.Busy}, nil
	case verdict == hostlock.Crashed:
		s.stats.reason(fault.Quarantined)
		if s.banish(ctx, b, fault.Quarantined) {
			if err := s.marks.Forget(name); err != nil {
				s.logOnce("mark", err)
			}
		}
		return nothing, Miss{Reason: fault.Quarantined}, nil
	}
	s.hold()
	leave = sync.OnceFunc(func() {
		if err := mark.Leave(); err != nil {
			s.logOnce("mark", err)
		}
		s.drop()
	})
	if err := s.commitIn(markDir, false, markDir+"/"+name, markDir+"/"); err != nil { // else a machine that hangs boots into the same blob
		s.degraded("sync a mark", err)
	}
	if s.isRefusedNow(b.digest) || !s.resides(b, name) {
		leave()
		s.stats.reason(fault.Quarantined)
		return nothing, Miss{Reason: fault.Quarantined}, nil
	}
	return leave, Miss{}, nil
}

// resides reports whether an entry that was read is still in its bucket and not
// hidden.
func (s *Store) resides(b Blob, digest string) bool {
	if b.layer > 0 {
		return !s.isHidden(s.layer(b.layer), b.Place)
	}
	return s.main.carries(path.Dir(b.Place), digest)
}

// Refuse says that a driver did not take a blob. Its entry is set aside, so that no
// process finds it again (SPEC P11). The error is fault.ErrClosed.
func (s *Store) Refuse(ctx context.Context, b Blob) error {
	if err := s.begin("store: refuse"); err != nil {
		return err
	}
	defer s.leave()
	s.stats.reason(fault.DriverRefused)
	s.banish(ctx, b, fault.DriverRefused)
	return nil
}

// banish sets a sound entry aside, unless another entry has its place by now, and keeps
// its copies from drivers. Where the driver can abort this survives a loss of power: kept
// tells whether it does, or need not.
func (s *Store) banish(ctx context.Context, b Blob, reason fault.Reason) (kept bool) {
	if s.off || b.Place == "" {
		return false
	}
	s.refuse(b.digest)
	if b.layer > 0 {
		s.hide(s.layer(b.layer), b.Place)
	}
	if s.cfg.ReadOnly {
		return false
	}
	err := s.alterRefused(ctx, b.digest, func() error {
		if b.layer > 0 {
			return nil
		}
		return s.banishLocked(b, reason)
	})
	if err != nil {
		s.logOnce("set aside", err)
	}
	if !s.cfg.Aborts(backendOf(b.Place)) {
		return err == nil
	}
	names := []string{refusedFile, leaseDir + "/"}
	if b.layer > 0 {
		names = append(names, markDir+"/")
	} else {
		names = append(names, quarantineDir+"/", path.Dir(b.Place)+"/", backendOf(b.Place)+"/")
	}
	e := s.commitIn(leaseDir, true, names...)
	if e != nil {
		s.degraded("sync what was set aside", e)
	}
	return err == nil && e == nil
}

// banishLocked sets a sound entry aside. It is part of a change.
func (s *Store) banishLocked(b Blob, reason fault.Reason) error {
	if digest, err := s.main.digestAt(b.Place); err != nil || digest != b.digest {
		return nil
	}
	stuck, err := s.dir.setAside(b.Place, Miss{Reason: reason})
	if stuck != nil { // nobody is given it all the same
		s.degraded("set aside", stuck)
		if err := s.main.Chmod(b.Place+"/"+kernelFile, 0o600|refusedBit); err != nil {
			s.logOnce("mark what was refused", err) // Enter looks at the list
		}
	}
	return err
}

// refusedBit in the mode of a kernel.bin says that the list of what was refused may have it:
// whoever reads the file sees that without a further call of the system. No store makes a file
// with it; one that somebody else has made so costs a look at the list.
const refusedBit = 0o100

// hiddenName gives the name of the mark that hides an entry of a base. It names size
// and time of the files, so that a mark does not hide their successors.
func hiddenName(l folder, place string) (string, error) {
	text := place
	for _, name := range []string{keyFile, kernelFile} {
		info, err := l.Lstat(place + "/" + name)
		if err != nil {
			info, err = l.Lstat(place)
		}
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf("\x00%d\x00%d", info.Size, info.ModTime.UnixNano())
	}
	return markDir + "/" + hiddenPrefix + nameOf(l.Root(), text), nil
}

const hiddenPrefix = "hidden-"

// hide marks an entry of a base as bad. The mark lies in the writable directory
// (SPEC P14).
func (s *Store) hide(l folder, place string) {
	name, err := hiddenName(l, place)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.mu.hidden[name] = true // so that it is hidden even if no mark can be written
	s.mu.Unlock()
	if s.cfg.ReadOnly {
		return
	}
	if err := vfs.WriteNew(s.main, name, false, []byte(note(l, place))); err != nil && !isTaken(err) {
		s.logOnce("hide", err)
		return
	}
	s.stats.setAside.Add(1)
	s.tell(Event{Kind: "quarantined", Backend: backendOf(place), Place: place})
}

func (s *Store) isHidden(l folder, place string) bool {
	name, err := hiddenName(l, place)
	if err != nil {
		return true
	}
	s.mu.Lock()
	known := s.mu.hidden[name]
	s.mu.Unlock()
	if known {
		return true
	}
	_, err = s.main.Lstat(name)
	return err == nil
}

// sweepMark removes a mark whose entry is gone: one that hides an entry of a base,
// or one that a driver left when it died.
func (s *Store) sweepMark(mark string) {
	sweep := s.sweepCrashed
	if strings.HasPrefix(mark, hiddenPrefix) {
		sweep = s.sweepHidden
	}
	swept, err := sweep(mark)
	if err != nil && !isGone(err) && !isForeign(err) {
		s.logOnce("sweep", err)
	}
	if swept {
		s.tell(Event{Kind: "swept", Place: markDir + "/" + mark})
	}
}

// sweepHidden removes a mark unless the entry that it hides is still there.
func (s *Store) sweepHidden(mark string) (bool, error) {
	name := markDir + "/" + mark
	text, err := vfs.ReadFile(s.main, name, mostPath)
	if err != nil {
		return false, err
	}
	base, place, ok := s.noted(string(text))
	defer base.noLonger()
	if !ok {
		return false, nil
	}
	if now, err := hiddenName(base, place); now == name || err != nil && !isGone(err) {
		return false, nil
	}
	if err := s.main.Remove(name); err != nil && !isGone(err) {
		return false, err
	}
	s.mu.Lock()
	delete(s.mu.hidden, name)
	s.mu.Unlock()
	return true, nil
}

// sweepCrashed removes a mark unless a process is in its driver with that blob, or
// an entry with that digest still exists. Equal digests mean equal keys, and thus
// one bucket. Copies of what is gone are refused from then on.
func (s *Store) sweepCrashed(mark string) (bool, error) {
	return s.marks.Sweep(mark, func(note string) bool {
		l, place, ok := s.noted(note)
		defer l.noLonger()
		if !ok {
			return true
		}
		bucket := path.Dir(place)
		for _, l := range append([]folder{s.main, l}, s.bases...) {
			if l.carries(bucket, mark) {
				return true
			}
		}
		return false
	}, func() error { return s.refuseAll(mark) })
}

// refuseAll keeps all copies of the blob of a mark from drivers, for good.
func (s *Store) refuseAll(mark string) error {
	digest, ok := digestOf(mark)
	if !ok { // no store made it
		return nil
	}
	s.refuse(digest)
	ctx, cancel := context.WithTimeout(s.base, patience)
	defer cancel()
	if err := s.alterRefused(ctx, digest, func() error { return nil }); err != nil {
		return err
	}
	return s.commitIn(leaseDir, false, refusedFile, leaseDir+"/")
}

// refusals are the digests of blobs that no driver is given again: one refused the blob,
// or ended its process with it. They outlast the entries, since a copy may lie in a base
// or come from an archive (SPEC P11). The file has a digest a line, in hexadecimal, the
// newest last. What is no such line is left out.
type refusals struct {
	known atomic.Pointer[map[[32]byte]bool] // all of them; the map does not change; nil = none
	mu    struct {
		sync.Mutex
		seen outline           // of the file: folder is its stamp, key its size
		file map[[32]byte]bool // what it had
		own  map[[32]byte]bool // those that it may lack
	}
	half *half // of the file, between two turns of a change; nil = there is none
}

const (
	refusedLine = 2*32 + 1
	mostRefused = 4096 // lines; then the older half goes
)

// isRefused reports whether no driver is given a blob, as far as this process knows.
func (s *Store) isRefused(digest [32]byte) bool {
	return s.refusals.has(digest)
}

// isRefusedIn does so for what a layer has: a base has its own list, too.
func (s *Store) isRefusedIn(layer int, digest [32]byte) bool {
	if layer == 0 {
		return s.isRefused(digest)
	}
	r := &s.ofBases[layer-1]
	if err := r.read(s.bases[layer-1].FS); err != nil {
		s.logOnce("read what was refused", err)
	}
	return r.has(digest) || s.isRefusedNow(digest)
}

func (r *refusals) has(digest [32]byte) bool {
	known := r.known.Load()
	return known != nil && (*known)[digest]
}

// isRefusedNow looks at what other processes have written since.
func (s *Store) isRefusedNow(digest [32]byte) bool {
	s.readRefused()
	return s.isRefused(digest)
}

// readRefused reads the file if it has changed. One that cannot be read says what it said.
func (s *Store) readRefused() {
	if err := s.refusals.read(s.main.FS); err != nil {
		s.logOnce("read what was refused", err)
	}
}

func (r *refusals) read(fsys vfs.FS) error {
	info, err := fsys.Lstat(refusedFile)
	now := outline{folder: stampOf(info), files: files{key: info.Size}}
	r.mu.Lock()
	defer r.mu.Unlock()
	if (err == nil || isGone(err)) && now == r.mu.seen {
		return nil
	}
	var text []byte
	if err == nil && info.Regular() { // what is no file has none
		text, err = vfs.ReadFile(fsys, refusedFile, 2*mostRefused*refusedLine)
	}
	if err != nil && !isGone(err) {
		return err
	}
	r.mu.seen, r.mu.file = now, map[[32]byte]bool{}
	for line := range bytes.Lines(text) {
		if digest, ok := digestOf(string(bytes.TrimSuffix(line, []byte("\n")))); ok {
			r.mu.file[digest] = true
		}
	}
	r.mergeLocked()
	return nil
}

func (r *refusals) mergeLocked() {
	all := maps.Clone(r.mu.file)
	if all == nil {
		all = map[[32]byte]bool{}
	}
	maps.Copy(all, r.mu.own)
	r.known.Store(&all)
}

// digestOf reads a digest in hexadecimal.
func digestOf(text string) (digest [32]byte, ok bool) {
	raw, err := hex.DecodeString(text)
	copy(digest[:], raw)
	return digest, err == nil && len(raw) == len(digest)
}

// refuse remembers that no driver is given a blob again, in memory whatever happens.
func (s *Store) refuse(digest [32]byte) {
	r := &s.refusals
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.own == nil {
		r.mu.own = map[[32]byte]bool{}
	}
	r.mu.own[digest] = true
	r.mergeLocked()
}

// alterRefused writes it, too, in a change that goes on with more, whether or not it was written.
func (s *Store) alterRefused(ctx context.Context, digest [32]byte, more func() error) error {
	var unwritten error
	err := s.dir.alter(ctx, func() error {
		if unwritten = s.writeRefused(digest); unwritten == errMore {
			return errMore
		}
		return more()
	})
	return errors.Join(err, unwritten)
}

// writeRefused does so. It is part of a change, which may have more to do, and not durable
// before a commit.
func (s *Store) writeRefused(digest [32]byte) error {
	r := &s.refusals
	for range 4 { // without a lock another process may write in the same place
		s.readRefused()
		r.mu.Lock()
		written := r.mu.file[digest]
		if written {
			delete(r.mu.own, digest)
		}
		r.mu.Unlock()
		if written {
			return nil
		}
		if err := s.addRefused(hex.EncodeToString(digest[:]) + "\n"); err != nil && err != errPassedOver {
			return err
		}
	}
	return errors.New(refusedFile + " does not keep what is written")
}

func (s *Store) addRefused(line string) error {
	f, err := s.main.Append(refusedFile)
	if err != nil {
		if info, e := s.main.Lstat(refusedFile); e == nil && !info.Regular() {
			return s.replaceRefused([]byte(line), info)
		}
		return err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.Size >= mostRefused*refusedLine:
		if err = s.halveRefused(info); err == errPassedOver || err == errMore {
			_ = f.Close() // nothing was written to it
			return err
		}
	default:
		if info.Size%refusedLine != 0 { // of a write that was cut off
			line = "\n" + line
		}
		_, err = f.WriteAt([]byte(line), info.Size)
	}
	return errors.Join(err, f.Close())
}

// half is a file of tmp/ that is to replace the list.
type half struct {
	name string
	of   vfs.Info // the list that it is the newer half of
	err  error    // why there is none
}

// halveRefused replaces the file by its newer half, unless others have written to it, or
// have replaced it, since it was looked at. The half is written and synced after this turn of the
// change, without the lock; the next turn puts it in place.
func (s *Store) halveRefused(seen vfs.Info) error {
	h := s.refusals.half
	if s.refusals.half = nil; h != nil && h.err != nil {
		return h.err
	}
	if h != nil && stampOf(h.of) == stampOf(seen) && h.of.Size == seen.Size {
		return s.swapRefused(h.name, seen)
	}
	if h != nil { // others have written to the list
		_ = s.main.Remove(h.name) // the next sweep removes what is left
	}
	s.dir.look = func() { s.refusals.half = s.writeHalf() }
	return errMore
}

func (s *Store) writeHalf() *half {
	h := &half{name: refusedName()}
	f, err := s.main.Open(refusedFile)
	if h.err = err; err != nil {
		return h
	}
	defer f.Close()
	text := make([]byte, mostRefused/2*refusedLine)
	if h.of, h.err = f.Stat(); h.err == nil {
		_, h.err = readAll(f, text, max(0, h.of.Size-int64(len(text))))
	}
	if h.err == nil {
		if h.err = s.stageRefused(h.name, text[bytes.IndexByte(text, '\n')+1:]); h.err != nil {
			_ = s.main.RemoveAll(h.name) // the next sweep removes what is left
		}
	}
	return h
}

// replaceRefused puts a file of that text in place of what was seen there.
func (s *Store) replaceRefused(text []byte, seen vfs.Info) error {
	name := refusedName()
	err := s.stageRefused(name, text)
	if err == nil {
		return s.swapRefused(name, seen)
	}
	_ = s.main.RemoveAll(name) // the next sweep removes what is left
	return err
}

func refusedName() string { return tmpDir + "/" + hostlock.Unique() + refusedSuffix }

func (s *Store) stageRefused(name string, text []byte) error {
	return vfs.WriteNew(s.main, name, true, text) // synced: what it had was on the disk
}

// swapRefused puts a file of tmp/ in place of what was seen there. Where others have put something
// there since, because this process stood still, the new file gets what they have noted. A
// process that is killed before leaves theirs in tmp/, where a sweep finds it.
func (s *Store) swapRefused(temporary string, seen vfs.Info) error {
	f := s.main
	err := f.Exchange(temporary, refusedFile)
	switch {
	case isGone(err):
		if err = f.Link(temporary, refusedFile); isTaken(err) {
			err = errPassedOver
		}
	case err != nil: // the last one counts
		err = replace(f, temporary, refusedFile)
	case f.stampOf(temporary) != stampOf(seen):
		if err = s.takeRefused(temporary); err != nil {
			return err // a sweep after the end of this process tries again
		}
	}
	_ = f.RemoveAll(temporary) // the next sweep removes what is left
	return err
}

// refusedSuffix ends the names of such files in tmp/.
const refusedSuffix = ".refused"

// takeRefused adds to the list what another list has that is newer than all that both have. It
// is part of a change.
func (s *Store) takeRefused(name string) error {
	text, err := vfs.ReadFile(s.main, name, 2*mostRefused*refusedLine)
	if err != nil {
		if isGone(err) || isForeign(err) {
			err = nil // it is no list
		}
		return err
	}
	s.readRefused()
	r, newer := &s.refusals, [][32]byte(nil)
	r.mu.Lock()
	for line := range bytes.Lines(text) {
		digest, ok := digestOf(string(bytes.TrimSuffix(line, []byte("\n"))))
		switch {
		case r.mu.file[digest]:
			newer = nil
		case ok:
			newer = append(newer, digest)
		}
	}
	r.mu.Unlock()
	for _, digest := range newer {
		s.refuse(digest)
	}
	for _, digest := range newer {
		if err := s.writeRefused(digest); err != nil {
			return err
		}
	}
	if len(newer) > 0 {
		s.dir.sync(refusedFile, leaseDir+"/")
	}
	return nil
}
