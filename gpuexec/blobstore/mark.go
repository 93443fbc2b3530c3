package blobstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"path"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Enter must be called before a blob is given to a driver, and the function it
// returns after the driver came back (SPEC P11). A Miss that is not zero means
// that the blob must not be given to the driver: it killed a process before and
// is set aside (quarantined), or another process has been inside with it for
// longer than the lease time (busy). One that has left the store since it was read
// counts as set aside: its mark goes with it, so nobody can tell. For drivers that
// do not abort it does nothing.
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
	case err != nil: // the request goes on, without protection
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
	leave = func() {
		if err := mark.Leave(); err != nil {
			s.logOnce("mark", err)
		}
	}
	if !s.resides(b, name) {
		leave()
		s.stats.reason(fault.Quarantined)
		return nothing, Miss{Reason: fault.Quarantined}, nil
	}
	return leave, Miss{}, nil
}

// resides reports whether an entry that was read is there still, wherever in its
// bucket, and not hidden.
func (s *Store) resides(b Blob, digest string) bool {
	if b.layer > 0 {
		return !s.isHidden(s.layer(b.layer), b.Place)
	}
	return s.main.carries(path.Dir(b.Place), digest)
}

// Refuse says that a driver did not take a blob: it is set aside (SPEC P11).
func (s *Store) Refuse(ctx context.Context, b Blob) error {
	if err := s.begin("store: refuse"); err != nil {
		return err
	}
	defer s.leave()
	s.stats.reason(fault.DriverRefused)
	s.banish(ctx, b, fault.DriverRefused)
	return nil
}

// banish sets a sound entry aside, if it is still the one that was read.
func (s *Store) banish(ctx context.Context, b Blob, reason fault.Reason) bool {
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
		return s.dir.setAside(b.Place, Miss{Reason: reason})
	})
	if err != nil {
		s.logOnce("set aside", err)
	}
	return err == nil
}

// hiddenName is the mark that hides an entry of a base: it holds for the very
// files that were found bad.
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

// hide notes in the writable directory that an entry of a base is bad (SPEC P14).
func (s *Store) hide(l folder, place string) bool {
	name, err := hiddenName(l, place)
	if err != nil {
		return false
	}
	s.mu.Lock()
	s.mu.hidden[name] = true // also where nothing can be written
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

// sweepMark takes away the mark of an entry that is not there any more: one that
// hides an entry of a base, or one of a driver that died with it.
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

// sweepHidden takes a mark away unless what it hides is there.
func (s *Store) sweepHidden(mark string) (bool, error) {
	name := markDir + "/" + mark
	text, err := vfs.ReadFile(s.main, name, mostPath)
	if err != nil {
		return false, err
	}
	base, place, ok := s.noted(string(text))
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

// sweepCrashed takes a mark away unless somebody is inside, or an entry with that
// digest is there still. The same digest means the same key, thus the same bucket.
func (s *Store) sweepCrashed(mark string) (bool, error) {
	return s.marks.Sweep(mark, func(note string) bool {
		l, place, ok := s.noted(note)
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

// note is what a mark says of the entry for which it was set. One in the directory
// itself has no root, for another process may have it under another path.
func note(l folder, place string) string {
	if l.base {
		place = l.Root() + "/" + place
	}
	return place + "\n"
}

// noted finds the entry of a note. ok = false where nobody can tell what it says,
// or its base is not there, which may come back with the entry.
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

// mostPath is the longest path of an entry, in bytes, with room to spare.
const mostPath = 64 << 10
