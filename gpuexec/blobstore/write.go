package blobstore

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Put stores the blob of a key. cost is the time that compiling it took. requires
// lists the instruction sets without which the blob must not run (SPEC K7); nothing
// given means that this is not known, and stands for all that are present, while an
// empty list ([]string{}...) means that it runs everywhere.
//
// If the key has a sound entry that fits, that entry stays and Put succeeds (SPEC
// P8); Stats.Stores counts the entries that were written. After success there is an
// entry, as durable as Config.Durability says.
//
// A blob that is not stored is fault.ErrRefused with a reason: disabled, too_large
// (nothing was evicted for it), degraded, which is fault.ErrIO too, quarantined, if a
// driver refused the very same entry before, or the reason for which this store would
// not load the blob, if the key has such an entry already.
// Other errors are fault.ErrInvalid, fault.ErrClosed and the context's.
func (s *Store) Put(ctx context.Context, backend, key string, payload []byte, cost time.Duration, requires ...string) error {
	return s.put(ctx, backend, key, func(int) []byte { return payload }, cost, requires)
}

// put is Put of a payload that depends on where it begins in its file.
func (s *Store) put(ctx context.Context, backend, key string, payload func(begins int) []byte, cost time.Duration, requires []string) error {
	const op = "store: put"
	if err := s.enter(op, backend, key); err != nil {
		return err
	}
	defer s.leave()
	if cost < 0 {
		return fault.Invalidf(op, "a cost of %v: want 0 or more", cost)
	}
	present, off := s.isOff(backend)
	if s.sealed && !off {
		return s.unwritable(op, backend, key)
	}
	if off || s.cfg.ReadOnly {
		s.stats.reason(fault.Disabled)
		return refused(op, backend, key, Miss{Reason: fault.Disabled}, errors.New("the store is off or has no identity for this backend"))
	}
	if requires == nil {
		requires = present.ISA // not known: all that are present, which is safe and shares least
	}
	requires = slices.Compact(slices.Sorted(slices.Values(requires)))
	e := frame.Entry{Created: s.cfg.Now(), Cost: cost, Identity: present, Requires: requires}
	e.Payload = payload(e.HeadBytes())
	file, err := frame.Encode(frame.ID{Backend: backend, Key: key}, e, (*frame.Signer)(s.cfg.Signer))
	if err != nil {
		return err
	}
	w := writing{s: s, backend: backend, key: key, entry: e, file: file, present: present, useless: s.useless(&e)}
	if err := w.run(ctx, op); err != nil || !s.cfg.late {
		return err
	}
	return w.handOver(ctx, op)
}

// unwritable refuses what would write to a directory that could be opened for reading only.
func (s *Store) unwritable(op, backend, key string) error {
	s.stats.reason(fault.Degraded)
	return refused(op, backend, key, Miss{Reason: fault.Degraded}, fmt.Errorf("%w: the directory cannot be written", fault.ErrIO))
}

// useless says why this store would not load an entry of its own.
func (s *Store) useless(e *frame.Entry) Miss {
	var id string
	var public ed25519.PublicKey
	if signer := s.cfg.Signer; signer != nil {
		id, public = signer.ID, signer.Key.Public().(ed25519.PublicKey)
	}
	if flaw := s.trust.Still(id, public); !flaw.None() {
		return Miss(flaw)
	}
	if misfits := e.Misfits(e.Identity); len(misfits) > 0 {
		return Miss(frame.Misfit(misfits[0]))
	}
	return Miss{}
}

// writing is one entry on its way to the disk.
type writing struct {
	s            *Store
	backend, key string
	entry        frame.Entry
	file         frame.File
	sealed       bool           // the file has its digest
	many         bool           // more follow, and the last one evicts
	present      frame.Identity // an entry that fits it makes this one superfluous
	useless      Miss           // why this store would not load the entry; zero = it would
	temporary    string
	version      version // what was staged
	near         *finding
	around       []outline // of the bucket, before that was found
	searched     int       // how often
	place        string    // once it is published
	outgrown     bool      // another process has lowered the capacity below its size
	found        *Blob     // the entry that makes this one superfluous
}

func (w *writing) run(ctx context.Context, op string) error {
	s := w.s
	s.stats.pending.Add(1)
	defer s.stats.pending.Add(-1)
	if !s.allows(ctx, w.record().disk) {
		return w.tooLarge(op)
	}
	w.search()
	f := w.near
	if f.hit {
		w.found = &f.blob
		if err := w.confirm(); err != nil {
			s.logOnce("sync", err)
			return w.failed(op, err)
		}
		return nil
	}
	if w.repeats(f) {
		return w.repeated(op)
	}
	err := s.writes.allow(s.cfg.Now())
	if err == nil {
		if err = w.write(ctx); err == nil && w.found != nil {
			err = w.confirm()
		}
		if err == nil {
			s.writes.succeeded()
			s.maybeSweep()
			if w.place == "" && w.found == nil { // others have stored such a one since the first look
				return w.repeated(op)
			}
			return nil
		}
		if err == errTooLarge {
			return w.tooLarge(op)
		}
		if err == errRefused {
			s.stats.reason(fault.Quarantined)
			return refused(op, w.backend, w.key, Miss{Reason: fault.Quarantined}, err)
		}
		if ctx.Err() == nil {
			s.writes.failed(s.cfg.Now())
			s.logOnce("write", err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return w.failed(op, err)
}

func (w *writing) repeated(op string) error {
	w.s.stats.reason(w.useless.Reason)
	return refused(op, w.backend, w.key, w.useless, errors.New("the key has an entry that this store would not load either"))
}

func (w *writing) tooLarge(op string) error {
	w.s.stats.reason(fault.TooLarge)
	return refused(op, w.backend, w.key, Miss{Reason: fault.TooLarge}, fmt.Errorf("%w: %d bytes: at most %d are stored", fault.ErrTooLarge, w.record().disk, w.s.largest()))
}

// search looks for an entry that makes this one superfluous. That may mean to read a
// large one, so it is done without the lock: under the lock the outlines are compared.
func (w *writing) search() {
	w.searched++
	w.around, _ = w.s.main.outlines(w.backend + "/" + w.s.Bucket(w.key)) // a bucket that cannot be listed is searched again
	w.near = w.s.find(w.backend, w.key, w.present)
	if w.near.hit && w.s.isRefusedNow(w.near.blob.digest) { // and could not be moved
		w.near = w.s.find(w.backend, w.key, w.present)
	}
}

func (w *writing) failed(op string, err error) error {
	w.s.stats.reason(fault.Degraded)
	return refused(op, w.backend, w.key, Miss{Reason: fault.Degraded}, fmt.Errorf("%w: %w", fault.ErrIO, err))
}

// repeats reports whether the entry would be a second one that this store does not
// load, of the same key, identity and needs: each start would add one.
func (w *writing) repeats(f *finding) bool {
	same := func(requires []string) bool { return slices.Equal(requires, w.entry.Requires) }
	return !w.useless.None() && slices.ContainsFunc(f.kin, same)
}

func (w *writing) size() int64 { return int64(len(w.key)) + w.file.Size() }

func (w *writing) record() record {
	r := sized("", files{key: int64(len(w.key)), kernel: w.file.Size(), stamp: w.version.stamp})
	r.known, r.created, r.cost = true, w.entry.Created.UnixNano(), w.entry.Cost
	return r
}

func (w *writing) write(ctx context.Context) error {
	s := w.s
	if s.writes.broken() { // the directory may be another one, or gone
		if err := s.dir.prepare(ctx); err != nil {
			return err
		}
	}
	err := w.attempt(ctx)
	for again := range 8 { // others that find the disk full take what was given
		if w.place != "" || !noSpace(err) || !s.dir.give(ctx, w.record().disk<<min(again, 2)) {
			break
		}
		err = w.attempt(ctx)
	}
	if err != nil || w.place == "" {
		return err
	}
	s.stats.stores.Add(1)
	s.tell(Event{Kind: "stored", Backend: w.backend, Place: w.place, Bytes: w.size()})
	return w.settle(w.version)
}

func (w *writing) attempt(ctx context.Context) error {
	w.temporary = tmpDir + "/" + hostlock.Unique()
	err := w.stage()
	if err == nil && (w.sealed && w.s.isRefusedNow(w.version.digest) || w.s.isRefused(w.version.digest)) {
		err = errRefused
	}
	if err == nil {
		err = w.publish(ctx)
	}
	if err == nil && w.outgrown {
		err = errTooLarge
	}
	if err != nil || w.place == "" {
		_ = w.s.main.RemoveAll(w.temporary) // the next sweep removes what is left
	}
	return err
}

var (
	errRefused  = errors.New("a driver refused this blob, or ended its process with it")
	errTooLarge = errors.New("the entry is larger than the capacity")
)

// noSpace reports that a disk or a quota is full.
func noSpace(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// stage writes both files into a folder of their own.
func (w *writing) stage() error {
	s, fsys := w.s, w.s.main.FS
	if err := fsys.Mkdir(w.temporary); err != nil {
		return err
	}
	if err := vfs.WriteNew(fsys, w.temporary+"/"+keyFile, false, []byte(w.key)); err != nil {
		return err
	}
	if err := w.stageKernel(fsys); err != nil {
		return err
	}
	names := []string{w.temporary + "/" + keyFile, w.temporary + "/" + kernelFile}
	switch s.cfg.Durability {
	case None:
		return nil
	case Full:
		names = append(names, w.temporary+"/")
	}
	return s.commit(false, names...)
}

// stageKernel writes the payload while its digest is computed.
func (w *writing) stageKernel(fsys vfs.FS) error {
	f, err := fsys.Create(w.temporary + "/" + kernelFile)
	if err != nil {
		return err
	}
	seal := w.seal()
	offset := int64(len(w.file.Head))
	for _, part := range [][]byte{w.file.Payload, w.file.Tail} {
		if err == nil && len(part) > 0 {
			_, err = f.WriteAt(part, offset)
		}
		offset += int64(len(part))
	}
	seal.Wait()
	if err == nil {
		_, err = f.WriteAt(w.file.Head, 0)
	}
	if err == nil {
		var info vfs.Info
		info, err = f.Stat()
		w.version = version{frame.DigestOf(w.file.Head), stampOf(info)}
	}
	return errors.Join(err, f.Close())
}

// seal computes the digest. For a large payload it does so while the caller writes.
func (w *writing) seal() *sync.WaitGroup {
	const large = 256 << 10
	var wg sync.WaitGroup
	id := frame.ID{Backend: w.backend, Key: w.key}
	switch {
	case w.sealed:
	case len(w.file.Payload) < large:
		w.file.Seal(id)
	default:
		wg.Go(func() { w.file.Seal(id) })
	}
	return &wg
}

// publish moves the folder into the lowest free slot of its bucket, unless the key
// has an entry that fits by now.
func (w *writing) publish(ctx context.Context) error {
	d := &w.s.dir
	err := d.alter(ctx, func() error {
		if w.place == "" {
			if err := w.publishLocked(); err != nil || w.place == "" {
				return err
			}
		}
		return w.evict()
	})
	if err != nil && w.place != "" { // it is stored: what is too much now goes, whoever still waits (SPEC P7)
		return d.alter(context.WithoutCancel(ctx), w.evict)
	}
	return err
}

// evict makes room for the entry that was stored.
func (w *writing) evict() error {
	d := &w.s.dir
	bound := d.bound()
	over := d.idx.disk - bound
	if d.owes = w.many && over > 0 && over < bound/8; d.owes {
		return nil
	}
	return d.shrink(bound, w.place, "")
}

// handOver gives the directory the capacity and the policy that waited for this entry, and evicts
// by them.
func (w *writing) handOver(ctx context.Context, op string) error {
	s, d, keep := w.s, &w.s.dir, w.place
	if w.found != nil {
		keep = w.found.Place
	}
	told := false
	err := d.alter(context.WithoutCancel(ctx), func() error {
		if !told {
			d.waits = false
			err := d.settle()
			if d.waits = err != nil; d.waits {
				return err
			}
			told = true
		}
		return d.shrink(d.bound(), keep, "")
	})
	switch {
	case err != nil && !told:
		return w.failed(op, err)
	case err != nil:
		s.degraded("evict", err) // the next open does it
	}
	return nil
}

func (w *writing) publishLocked() error {
	s, d := w.s, &w.s.dir
	bucket := w.backend + "/" + s.Bucket(w.key)
	if now, err := s.main.outlines(bucket); err != nil || !slices.Equal(now, w.around) {
		if w.searched < 4 {
			d.look = w.search
			return errMore
		}
		w.search() // others change the bucket all the time
	}
	f := w.near
	if f.hit {
		w.found = &f.blob
	}
	if f.hit || w.repeats(f) {
		return nil
	}
	if w.outgrown = w.record().disk > s.largest(); w.outgrown {
		return nil
	}
	if d.room(false) < 0 {
		return errFull
	}
	bad := f.bad
	for _, place := range f.barred {
		bad = append(bad, flawed{place: place, miss: Miss{Reason: fault.Degraded}})
	}
	for _, b := range bad {
		if b.layer > 0 {
			continue
		}
		stuck, err := d.setAside(b.place, b.miss)
		if err != nil {
			return err
		}
		if stuck != nil { // it keeps its slot
			s.degraded("set aside", stuck)
		}
	}
	r := w.record()
	for again := 0; ; again++ {
		err := w.occupy(bucket, &r)
		switch {
		case err == nil:
			w.place = r.place
			if d.lock == nil {
				return w.yield(bucket)
			}
			return nil
		case again < 16 && (isTaken(err) || errors.Is(err, syscall.ENOTEMPTY) || isGone(err)):
			// no lock: another process took the slot or removed the empty bucket
		default:
			return err
		}
	}
}

// occupy moves the folder into the lowest slot of the bucket that is free now.
func (w *writing) occupy(bucket string, r *record) error {
	for _, name := range []string{w.backend, bucket} {
		if err := w.makeFolder(name); err != nil {
			return err
		}
	}
	slots, err := w.s.main.slots(bucket)
	if err == nil && len(slots) >= mostSlots {
		if err = w.s.dir.thin(bucket, slots); err == nil {
			slots, err = w.s.main.slots(bucket)
		}
	}
	if err != nil {
		return err
	}
	r.place = bucket + "/" + strconv.FormatUint(lowestFree(slots), 10)
	w.s.dir.recall(r.place) // the account of what a process has taken that was killed
	return w.s.dir.take(w.temporary, *r)
}

// mostSlots bounds the entries of one bucket, so that keys that were chosen to have one
// hash do not make every look at it long.
const mostSlots = 64

// makeFolder makes a folder if it is missing. A file in its place is moved to quarantine/,
// since nothing could be stored below it: over another file, for a folder that
// others have made there since cannot be moved over one.
func (w *writing) makeFolder(name string) error {
	fsys := w.s.main.FS
	err := fsys.Mkdir(name)
	for again := 0; isTaken(err) && again < 4; again++ {
		info, e := fsys.Lstat(name)
		if e != nil || info.Mode.IsDir() {
			return e
		}
		aside := asideName(fault.Format, name)
		if e = vfs.WriteNew(fsys, aside, false); e == nil {
			e = fsys.Rename(name, aside)
		}
		if e == nil {
			w.s.dir.aside++
			err = fsys.Mkdir(name)
			continue
		}
		_ = fsys.Remove(aside) // it is empty
		if !errors.Is(e, syscall.ENOTDIR) {
			return e
		}
	}
	return err
}

// yield takes the entry back if another process has stored the same key at the same
// time, which happens without a lock. The entry in the lowest slot stays.
func (w *writing) yield(bucket string) error {
	s := w.s
	slots, err := s.main.slots(bucket)
	if isGone(err) { // evicted already
		return nil
	}
	if err != nil {
		return err
	}
	for _, slot := range slots {
		place := bucket + "/" + slot.name
		if place == w.place {
			return nil
		}
		f := &finding{}
		if e, v := s.read(s.main, place, w.key); slot.ours && v.kind == sound && !s.isRefused(e.Digest) {
			s.judge(f, 0, place, e, v.miss, w.present)
		}
		if f.hit {
			gone, err := s.dir.evict(w.place)
			if gone {
				w.place, w.found = "", &f.blob
			}
			return err
		}
	}
	return nil
}
