package blobstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// directory is the writable directory of a store. Its fields are used in a change
// only, by one goroutine at a time.
//
// INVARIANT: bytes in use are within capacity whenever a change has ended, on a
// file system with locks, unless entries cannot be removed (TestCapacityHolds,
// TestEvictionPassesOver).
type directory struct {
	s  *Store
	mu turnstile // held during a change

	lock    *hostlock.Directory // nil on a shared file system
	owner   *hostlock.Owner     // nil before the first change, and without locks
	journal journal
	idx     *index
	fresh   bool   // idx is what the disk held when the journal was read last
	opened  bool   // idx was read once
	saved   uint64 // inode of the journal that the present snapshot goes with; 0 = another should be made
	savedAt int64  // how far in it
	savedOf int    // how many entries it has
	chance  int64  // which folders are looked at
	noted   int    // uses since this process has saved one
	text    int64  // what size.txt says
	look    func() // at the index, to be called after the change
	aftermath

	rest     reading  // what idx has not read
	restFile vfs.File // nil = there is none
	wanted   bool     // it is to be read

	hollow []string // names of what the last listing found without all its files or slots

	stuck     bool // entries that cannot be evicted were passed over
	retried   bool // they were brought back in this change
	retriedAt time.Time

	choosing bool   // victims are to be chosen, and idx does not know all about the next ones
	only     string // of that backend, if not empty
	keep     string // but for that place
	upTo     int64  // bytes of all entries that may stay

	owes bool // an import is to evict more
	late late

	waits     bool     // the directory is told what this process was given by the first Put that succeeds
	settled   bool     // it was told
	unwritten bool     // that could not be written
	said      settings // what the directory said last
	saidIn    stamp    // of their file
	blind     bool     // what it says now could not be read
	draft     *draft   // of what it is to say; nil = there is none
	owed      []string // files of tmp/ with what others gave that may not be there

	stale       bool      // the uses of other writers are to be read
	round       int       // of looking at them, one a minute
	usesRead    time.Time // when it began
	usesNew     bool      // no change has ended since
	usesAll     bool      // all were read in it
	looked      int64     // what those have cost that were looked up in it, in KiB
	usesWritten bool      // this writer has a file
}

// turnstile is a mutex whose waiters leave when their context ends, since the holder
// may be waiting for another process.
type turnstile chan struct{} // capacity 1: the holder

func (t turnstile) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

func (t turnstile) unlock() { <-t }

// hold begins a use of the fields, and unhold ends it. The log is user code, which may ask
// the store: it is told of what was met meanwhile when the fields are free.
func (d *directory) hold(ctx context.Context) error {
	if err := d.mu.lock(ctx); err != nil {
		return err
	}
	d.s.mu.Lock()
	d.s.mu.held = true
	d.s.mu.Unlock()
	return nil
}

func (d *directory) unhold() {
	d.s.mu.Lock()
	untold := d.s.mu.untold
	d.s.mu.held, d.s.mu.untold = false, nil
	d.s.mu.Unlock()
	d.mu.unlock()
	for _, tell := range untold {
		tell()
	}
}

const (
	unknownSize = -1
	unread      = -2
	setAsideMax = 32 // entries kept in quarantine/
)

// prepare makes the missing folders of the layout and reads the directory. A store
// does so when it opens, and before it writes again after a failed write.
func (d *directory) prepare(ctx context.Context) error {
	fsys := d.s.main.FS
	if err := checkOwner(fsys, fsys.Root(), true); err != nil {
		return err
	}
	if err := d.mayBecome(); err != nil {
		return err
	}
	if err := d.markStore(); err != nil {
		return err
	}
	for _, name := range ownDirs {
		if err := d.makeOwn(name); err != nil {
			return err
		}
	}
	if err := d.withoutLocks(); err != nil {
		return err
	}
	if err := d.distrust(ctx); err != nil {
		return err
	}
	over := false
	err := d.alter(ctx, func() error {
		if d.lock != nil && d.s.main.isShared() { // since a moment ago: see withoutLocks
			return d.mixed()
		}
		err := d.settle()
		over = err == nil && d.idx.disk > d.bound()
		return err
	})
	if err == nil && over {
		d.s.sweep() // first, since the accounts may have what a process has taken that was killed
		err = d.alter(ctx, func() error { return d.shrink(d.bound(), "", "") })
	}
	if err != nil || d.s.policy() == FIFO {
		return err
	}
	if err := d.hold(ctx); err != nil {
		return err
	}
	defer d.unhold()
	d.idx.seq = max(d.idx.seq, d.latestUse()) // the uses themselves are read when a victim is chosen
	d.s.raise(d.idx.seq)
	return nil
}

// mayBecome refuses a directory that is no store and has files where a store removes or
// replaces them. They are of somebody else, whatever their names: see markStore.
func (d *directory) mayBecome() error {
	f := d.s.main
	if f.isStore() {
		return nil
	}
	for _, name := range []string{tmpDir, usesDir, quarantineDir, ownerDir, keyDir} {
		list, _ := f.ReadDir(name)         // missing, or its making fails
		if len(list) > 0 && !f.isStore() { // else another process has made one since
			return &fault.Error{Op: "store: open", Key: d.s.cfg.Dir,
				Err: fmt.Errorf("%w: this is no store yet, and its folder %s has files, which a store would remove: use another directory", fault.ErrRefused, name)}
		}
	}
	for _, name := range []string{sizeFile, indexFile, journalFile, settingsFile, refusedFile, lateFile} {
		_, err := f.Lstat(name)
		if err == nil && (name != sizeFile || f.readSize() == unknownSize) && !f.isStore() {
			return &fault.Error{Op: "store: open", Key: d.s.cfg.Dir,
				Err: fmt.Errorf("%w: this is no store yet, and has a %s, which a store would replace: use another directory", fault.ErrRefused, name)}
		}
	}
	return nil
}

// markStore makes the file that tells a store before there is anything else of one. It
// syncs the name where that may be new: a loss of power must not take it and leave files
// in tmp/, since nobody could say then whose these are.
func (d *directory) markStore() error {
	s := d.s
	_, err := s.main.Lstat(tmpDir)
	first := isGone(err) || !s.main.isStore() // else who made tmp/ has synced
	for _, name := range []string{leaseDir, lockDir} {
		if err := d.makeOwn(name); err != nil {
			return err
		}
	}
	if !first {
		return nil
	}
	f, err := s.main.Update(lockDir + "/0") // what the first holder of the lock writes
	if err == nil {
		err = f.Close()
	}
	return errors.Join(err, s.syncDir(lockDir), s.syncDir(leaseDir), s.syncDir("."))
}

func (d *directory) makeOwn(name string) error {
	fsys := d.s.main.FS
	if err := fsys.Mkdir(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if info, err := fsys.Lstat(name); err != nil || !info.Mode.IsDir() {
		return errors.Join(fmt.Errorf("%s is no folder: move it away", name), err)
	}
	return nil
}

// distrust makes the next change read the directory again.
func (d *directory) distrust(ctx context.Context) error {
	if err := d.hold(ctx); err != nil {
		return err
	}
	d.fresh = false
	d.unhold()
	return nil
}

// alter runs do as a change. It runs do again if the process stood still
// and lost the lock: nothing failed then, but what do has seen may have changed. It
// does so too as often as do has more to do than the lock may be held for. Listeners are
// told at the end: one that panics leaves nothing undone.
func (d *directory) alter(ctx context.Context, do func() error) error {
	var events []Event
	aside := 0
	for again := 0; ; {
		more, left, err := d.turn(ctx, do)
		left.settle(d.s)
		events = append(events, left.events...)
		goesOn := err == nil && more || errors.Is(err, errPassedOver) && again < 3
		if aside += left.aside; aside > setAsideMax || aside > 0 && !goesOn {
			d.s.boundQuarantine()
			aside = 0
		}
		switch {
		case goesOn && err != nil:
			again++
		case !goesOn:
			for _, e := range events {
				d.s.tell(e)
			}
			return err
		}
	}
}

// turn is one change. User code that panics, as a clock or a hash may, leaves it as a
// process does that is killed there: the next change lists the directory.
func (d *directory) turn(ctx context.Context, do func() error) (more bool, left aftermath, err error) {
	if err := d.hold(ctx); err != nil {
		return false, left, err
	}
	ended := false
	defer func() {
		if !ended {
			d.fresh, d.look = false, nil
			d.journal.close()
		}
		d.leave()
		d.unhold()
	}()
	var unowned error
	if d.owner == nil || !d.fresh { // as when there was no room for it
		unowned = d.own() // before anything is written that may be left
	}
	if err = d.enter(ctx); err == nil {
		if unowned != nil { // else that says it
			d.s.logOnce("own", unowned) // what it writes is swept by age
		}
		if err = d.tidy(); err == nil {
			err = do()
		}
		more = err == errMore
		if more {
			err = nil
		}
		if err != nil {
			d.fresh = false
		}
		d.usesNew, d.retried = d.usesNew && more, d.retried && more
		var e error
		if left, e = d.end(ctx); e == errMore {
			more = true
		} else {
			err = errors.Join(err, e)
		}
	}
	ended = true
	return more, left, err
}

// aftermath is what follows a turn when the locks are free; listeners, which may ask the
// store, are told of the events after the last turn.
type aftermath struct {
	unsynced   []string // what was put back: see sync
	trash      []string // folders to be removed
	events     []Event
	aside      int  // entries that were set aside
	remembered bool // settings were written
}

func (a aftermath) settle(s *Store) {
	var err error
	if len(a.unsynced) > 0 {
		err = s.commit(true, a.unsynced...)
	}
	if err != nil {
		s.degraded("sync what was put back", err) // what lies in the trash may be needed: the sweep sees to it
	} else {
		s.discard(a.trash)
	}
	if a.remembered && s.cfg.Durability != None {
		if err := s.commit(true, leaseDir+"/"); err != nil {
			s.logOnce("sync settings", err)
		}
	}
}

// enter takes the directory lock with an index that is up to date. Where the journal
// does not say what has changed it lists the directory, without the lock: the journal
// has what changes meanwhile.
func (d *directory) enter(ctx context.Context) error {
	if d.lock == nil {
		d.s.takeUses(d.idx)
		return d.list(ctx) // each time
	}
	hinted := !d.opened || d.idx.unread && d.fresh // the snapshot may be right
	loaded := false
	if d.idx.unread && d.fresh {
		loaded = d.load()
		d.fresh = loaded
	}
	for again := 0; ; again++ {
		d.learn()
		if err := d.lock.Lock(ctx); err != nil {
			return err
		}
		d.s.takeUses(d.idx)
		if d.fresh {
			read := d.journal.offset
			err := d.journal.follow(d.idx)
			if d.journal.offset != read || d.text == unread || d.blind { // a process that changed entries has written size.txt too
				d.text = d.s.main.readSize()
				d.follow()
			} else if d.saidIn != d.s.main.stampOf(settingsFile) {
				d.follow()
			}
			if err == nil && loaded && d.text != d.idx.bytes {
				err = errStale // size.txt is wrong, or the snapshot (SPEC P7)
			}
			if !errors.Is(err, errStale) {
				return err
			}
			hinted = !loaded
			d.s.sweepSoon()
		}
		if d.fresh = false; again == 3 { // others begin journals all the time
			return errors.Join(d.list(ctx), d.restart(false))
		}
		if err := d.journal.reset(false, d.idx.seq); err != nil {
			return errors.Join(d.lose(err), d.list(ctx))
		}
		if !d.opened && d.peek() {
			d.opened, d.fresh = true, true
			return nil
		}
		d.lock.Unlock()
		if loaded = hinted && d.load(); !loaded {
			if err := d.list(ctx); err != nil {
				return err
			}
		}
		d.opened, d.fresh, hinted = true, true, false
	}
}

// restart begins to write the journal for an index that is up to date.
func (d *directory) restart(force bool) error {
	err := d.journal.reset(force, d.idx.seq)
	if err != nil {
		return d.lose(err)
	}
	d.fresh = true
	return nil
}

// list reads the whole directory.
func (d *directory) list(ctx context.Context) error {
	x := newIndex(d.s.policy())
	x.seq = after(0, d.s.cfg.Now()) // a time after now counts as now
	d.hollow = nil
	from := d.s.main
	from.hollow = func(name string) { d.hollow = append(d.hollow, name) }
	err := from.scan(func(place string, f files) error {
		if f.key < 0 || f.kernel < 0 {
			from.hollow(place)
		}
		r := sized(place, f)
		r.seq = x.seq
		x.add(r)
		d.beat()
		return ctx.Err()
	}, d.s.skipped)
	if err != nil {
		return err
	}
	x.inherit(d.idx)
	x.seq = max(x.seq, d.journal.tail.seq)
	d.forgetRest()
	d.idx, d.text, d.opened = x, unread, true
	if d.lock == nil {
		d.text = d.s.main.readSize()
		d.follow()
	}
	return nil
}

// learn reads what was missing of the index, and what the choice of victims needs of the
// entries that a listing found, and puts entries in order.
func (d *directory) learn() {
	if d.wanted {
		d.readRest()
	}
	if d.stale {
		d.loadUses()
	}
	if d.choosing {
		for _, r := range d.idx.unknown() {
			d.s.main.meta(r)
			d.saved = 0
		}
		d.lookUp()
	}
	d.wanted, d.choosing = false, false
}

// lose goes on without a journal that cannot be written, as on a full disk: without
// the file every process lists the directory. A file that cannot be removed either
// is an error, since others would believe it.
func (d *directory) lose(cause error) error {
	d.fresh = false
	d.journal.close()
	if err := d.s.main.Remove(journalFile); err != nil && !isGone(err) {
		return cause
	}
	d.s.logOnce("journal", cause)
	return nil
}

func (d *directory) beat() {
	if d.lock != nil {
		d.lock.Beat()
	}
}

// end writes the accounts of the change and gives the locks back. A writer that lost
// the lock while it stood still lists the directory again, so that the accounts are
// right whatever it did late, and whoever still waits: others have these accounts, too.
func (d *directory) end(ctx context.Context) (left aftermath, err error) {
	err = d.finish()
	for again := 0; err == nil && d.lock != nil && !d.lock.Held() && again < 3; again++ {
		d.lock.Unlock()
		d.fresh = false
		if err = d.enter(context.WithoutCancel(ctx)); err != nil {
			break
		}
		if err = d.restart(true); err == nil {
			err = d.shrink(d.bound(), "", "")
			if e := d.finish(); e != nil {
				err = e
			}
		}
	}
	if err == nil && d.lock != nil && !d.lock.Held() { // once more: nobody may believe these accounts
		err = d.lose(errPassedOver)
	}
	d.leave()
	left, d.aftermath = d.aftermath, aftermath{}
	if err != nil && err != errMore {
		d.fresh = false
	}
	d.s.raise(d.idx.seq)
	if d.saved != d.journal.inode {
		d.save()
	}
	if look := d.look; look != nil && (err == nil || err == errMore) {
		look()
	}
	d.look = nil
	return left, err
}

func (d *directory) leave() {
	if d.lock != nil {
		d.lock.Unlock()
	}
}

// finish writes size.txt and what is late, and ends the change in the journal. All are
// hints: where they cannot be written the change stands (SPEC P5).
func (d *directory) finish() error {
	if d.text != d.idx.bytes {
		if err := d.writeSize(); err != nil {
			d.s.logOnce("write size", err) // and is tried again with the next change
		}
	}
	d.tellLate()
	if d.lock == nil {
		return nil
	}
	if err := d.journal.end(d.idx.totals); err != nil {
		return d.lose(err)
	}
	return nil
}

// errPassedOver makes alter run a change again.
var errPassedOver = errors.New("the directory lock was passed on while this process stood still")

// errMore makes alter go on with a change when others have had the lock.
var errMore = errors.New("the change has more to do")

// change must be called before files are moved.
func (d *directory) change() error {
	if d.lock == nil {
		return nil
	}
	if !d.lock.Held() {
		d.fresh = false
		return errPassedOver
	}
	if err := d.journal.begin(); err != nil {
		return d.lose(err)
	}
	return nil
}

// take moves a complete entry from tmp/ to its place.
func (d *directory) take(from string, r record) error {
	if err := d.change(); err != nil {
		return err
	}
	if err := d.s.main.Rename(from, r.place); err != nil {
		return err
	}
	d.idx.seq = after(d.idx.seq, d.s.cfg.Now())
	r.seq = d.idx.seq
	d.idx.add(r)
	d.journal.added(r)
	return nil
}

// readAll fills into from a file. short reports that the file ended before that.
func readAll(f io.ReaderAt, into []byte, offset int64) (short bool, err error) {
	n, err := f.ReadAt(into, offset)
	if err == io.EOF {
		err = nil
	}
	return n < len(into), err
}
