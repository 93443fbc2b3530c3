package blobstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Claim is the right to build a key on this host (SPEC P8), to be ended by Save
// or Release. Its methods may be called from any goroutine, by one at a time.
type Claim struct {
	s            *Store
	backend, key string
	lease        *hostlock.Lease // nil: the host could not be asked, so others may build too
	once         sync.Once
}

// Save stores what was built, as Put does, and ends the claim.
func (c *Claim) Save(ctx context.Context, payload []byte, cost time.Duration, requires ...string) error {
	defer c.Release()
	return c.s.Put(ctx, c.backend, c.key, payload, cost, requires...)
}

// Release ends the claim: another process may build. Ending it twice is harmless.
func (c *Claim) Release() {
	c.s.mu.Lock()
	_, mine := c.s.mu.claims[c]
	delete(c.s.mu.claims, c)
	c.s.mu.Unlock()
	c.release()
	if mine && c.s.begin("store: release") == nil {
		c.s.sweepShare(sweptByClaim)
		c.s.leave()
	}
}

func (c *Claim) release() {
	c.once.Do(func() {
		if c.lease == nil {
			return
		}
		if err := c.lease.Release(); err != nil {
			c.s.logOnce("release", err) // others go past it after the lease time
		}
	})
}

// Obtain gives the blob of a key, or the claim to build it: while another
// process of the host builds it, Obtain waits, within the context. The claim is
// nil with a blob, and where the store writes nothing.
func (s *Store) Obtain(ctx context.Context, backend, key string) (Blob, *Claim, Miss, error) {
	b, miss, err := s.Get(ctx, backend, key)
	if err != nil || miss.None() || miss.Reason == fault.Disabled {
		return b, nil, miss, err
	}
	next, c, err := s.Succeed(ctx, backend, key, Blob{})
	if err != nil {
		return Blob{}, nil, Miss{}, err
	}
	if next != nil {
		return *next, nil, Miss{}, nil
	}
	return Blob{}, c, miss, nil
}

// Succeed is Obtain after the blob that a key had was set aside: old is not given
// again, should it still be there.
func (s *Store) Succeed(ctx context.Context, backend, key string, old Blob) (*Blob, *Claim, error) {
	if s.off || s.cfg.ReadOnly {
		return nil, nil, nil
	}
	var found *Blob
	settled := func() bool {
		b, miss, err := s.get(ctx, backend, key, true)
		if err == nil && miss.None() && b.digest != old.digest {
			found = &b
		}
		return found != nil || err != nil
	}
	c, err := s.claim(ctx, backend, key, settled)
	switch {
	case err != nil:
		return nil, nil, err
	case c != nil && c.lease != nil && found == nil && settled() && found != nil: // it was stored before the claim was ours
		c.Release()
		c = nil
	}
	return found, c, nil
}

// claim waits for the right to build a key, within the context. settled is asked
// whenever a builder ended; if it says true, nobody need build and the Claim is nil.
func (s *Store) claim(ctx context.Context, backend, key string, settled func() bool) (*Claim, error) {
	if err := s.enter("store: claim", backend, key); err != nil {
		return nil, err
	}
	s.leave() // waiting may take as long as a build; Close ends it by the context
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.base, cancel)()
	c := &Claim{s: s, backend: backend, key: key}
	if s.writes.broken() {
		return c, nil
	}
	lease, err := s.leases.Acquire(ctx, nameOf(backend, key), settled)
	switch {
	case s.base.Err() != nil:
		if lease != nil {
			_ = lease.Release() // gone past after the lease time
		}
		return nil, &fault.Error{Op: "store: claim", Err: fault.ErrClosed}
	case ctx.Err() != nil && lease == nil && err != nil:
		return nil, ctx.Err()
	case err != nil: // build without asking the host rather than not at all
		s.degraded("claim", err)
		return c, nil
	case lease == nil:
		return nil, nil
	}
	c.lease = lease
	s.mu.Lock()
	closed := s.mu.claims == nil || s.closed.Load()
	if !closed {
		s.mu.claims[c] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		c.release()
		return nil, &fault.Error{Op: "store: claim", Err: fault.ErrClosed}
	}
	return c, nil
}

// nameOf is a name for a key that fits every file system.
func nameOf(backend, key string) string {
	sum := sha256.Sum256([]byte(backend + "\x00" + key))
	return hex.EncodeToString(sum[:16])
}

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
