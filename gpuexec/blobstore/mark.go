package blobstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Enter must be called before a blob is given to a driver, and the function leave
// after the driver has returned (SPEC P11). If the process ends in between, no
// process gives the blob to a driver again. Enter does nothing for drivers that
// cannot abort (Config.Aborts).
//
// A Miss that is not zero means that the blob must not be used. Reason quarantined:
// the blob has ended a process, or has left the store since it was read, and with
// it the mark that would tell. Reason busy: another process has been in its driver
// with this blob for longer than Config.Lease. The error is fault.ErrClosed or the
// context's. leave is never nil.
func (s *Store) Enter(ctx context.Context, backend string, b Blob) (leave func(), miss Miss, err error) {
	nothing := func() {}
	if err := s.begin("store: enter"); err != nil {
		return nothing, Miss{}, err
	}
	defer s.leave()
	if s.off || s.cfg.ReadOnly || !s.cfg.Aborts(backend) {
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
	if !s.resides(b, name) {
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

// banish sets a sound entry aside, unless another entry has its place by now. Where
// the driver can abort this survives a loss of power.
func (s *Store) banish(ctx context.Context, b Blob, reason fault.Reason) bool {
	if !s.banishNow(ctx, b, reason) {
		return false
	}
	if !s.cfg.Aborts(backendOf(b.Place)) || s.cfg.ReadOnly {
		return true
	}
	names := []string{markDir + "/"}
	if b.layer == 0 {
		names = []string{quarantineDir + "/", path.Dir(b.Place) + "/", backendOf(b.Place) + "/"}
	}
	err := s.commit(true, names...)
	if err != nil {
		s.degraded("sync what was set aside", err)
	}
	return err == nil
}

func (s *Store) banishNow(ctx context.Context, b Blob, reason fault.Reason) bool {
	if b.layer > 0 {
		return s.hide(s.layer(b.layer), b.Place)
	}
	if s.off || s.cfg.ReadOnly || b.Place == "" {
		return false
	}
	err := s.dir.alter(ctx, func() error {
		if file, v := s.readKernel(s.main, b.Place); v.kind != sound || frame.DigestOf(file) != b.digest {
			return nil
		}
		stuck, err := s.dir.setAside(b.Place, Miss{Reason: reason})
		return errors.Join(err, stuck)
	})
	if err != nil {
		s.logOnce("set aside", err)
	}
	return err == nil
}

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
func (s *Store) hide(l folder, place string) bool {
	name, err := hiddenName(l, place)
	if err != nil {
		return false
	}
	s.mu.Lock()
	s.mu.hidden[name] = true // so that it is hidden even if no mark can be written
	s.mu.Unlock()
	if s.cfg.ReadOnly {
		return true
	}
	if err := vfs.WriteNew(s.main, name, false, []byte(note(l, place))); err != nil && !isTaken(err) {
		s.logOnce("hide", err)
		return false
	}
	s.stats.setAside.Add(1)
	s.tell(Event{Kind: "quarantined", Backend: backendOf(place), Place: place})
	return true
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
// one bucket.
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
	})
}

// note is the text of a mark: the path of its entry. A path in the directory itself
// is relative, since other processes may reach the directory by another path.
func note(l folder, place string) string {
	if l.base {
		place = l.Root() + "/" + place
	}
	return place + "\n"
}

// noted gives the place that a note names. ok is false for a note that says nothing,
// and for one about a base that is missing now and may come back. noLonger must follow.
func (s *Store) noted(text string) (l folder, place string, ok bool) {
	text, whole := strings.CutSuffix(text, "\n")
	parts := strings.Split(text, "/")
	place = strings.Join(parts[max(0, len(parts)-3):], "/")
	if !whole || !isPlace(place) {
		return folder{}, "", false
	}
	if text == place {
		return s.main, place, true
	}
	l = folder{FS: s.cfg.fs(strings.TrimSuffix(text, "/"+place)), base: true}
	_, err := l.Lstat(".")
	return l, place, err == nil
}

func (l folder) noLonger() {
	if l.base {
		_ = l.Close() // it was only looked at
	}
}

// mostPath is above the length of any entry's path, in bytes.
const mostPath = 64 << 10
