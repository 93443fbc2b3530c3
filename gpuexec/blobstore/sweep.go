package blobstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/guard"
)

// startTimers starts the hourly sweep and the writing of uses each minute. Both go on
// until stopTimers is called.
func (s *Store) startTimers() {
	var mu sync.Mutex
	var stops [2]func() bool
	ended := false
	var arm func(i int, every time.Duration, do func())
	arm = func(i int, every time.Duration, do func()) {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		stops[i] = s.cfg.After(every, func() {
			defer arm(i, every, do) // also where user code ends this goroutine
			if s.begin("store: timer") == nil {
				defer s.leave()
				guard.Call(do, func(err error) { s.degraded("timer", err) })
			}
		})
	}
	s.stopTimers = func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		for _, stop := range stops {
			if stop != nil {
				stop()
			}
		}
	}
	arm(0, stale, s.maybeSweep)
	arm(1, flushEvery, func() { s.flushUses(false) })
}

// maybeSweep sweeps once an hour by the store's clock.
func (s *Store) maybeSweep() {
	now := s.cfg.Now() // not under the lock: it is user code
	s.mu.Lock()
	since := now.Sub(s.mu.swept)
	s.mu.Unlock()
	if since >= stale || since < 0 { // or the clock was set back
		s.sweep()
	}
}

// sweepSoon has the next store sweep: a change without an end may be that of a process which was killed,
// and what it had moved is known to be meant only until somebody else is passed over.
func (s *Store) sweepSoon() {
	s.mu.Lock()
	s.mu.swept = time.Time{}
	s.mu.Unlock()
}

// sweep removes temporary files of dead owners, and those without one that are older
// than an hour, by the clock of the file system. What a living process writes stays,
// whatever the clocks say (SPEC P9).
func (s *Store) sweep() {
	now := s.cfg.Now()
	s.mu.Lock()
	s.mu.swept = now
	trash := s.mu.trash
	s.mu.trash = nil
	s.mu.Unlock()
	s.discard(trash)
	s.recount()
	living, known := s.living()
	if !known {
		return
	}
	list, err := s.main.ReadDir(tmpDir)
	if err != nil {
		s.logOnce("sweep", err)
		return
	}
	stays := map[string]bool{} // of these processes and owners
	clock := sync.OnceValue(s.fileTime)
	for _, entry := range list {
		name := tmpDir + "/" + entry.Name
		if !s.left(living, hostlock.Process(entry.Name), name, clock) || hostlock.Own(entry.Name) {
			continue
		}
		err := s.giveBack(name)
		if err == nil {
			err = s.main.RemoveAll(name)
		}
		if err != nil {
			s.logOnce("sweep", err)
			stays[hostlock.Process(entry.Name)] = true
			continue
		}
		s.tell(Event{Kind: "swept", Place: name})
	}
	uses, _ := s.main.ReadDir(usesDir) // where it fails they go by age
	for _, entry := range uses {       // whoever takes them over must see that the owner is dead
		stays[entry.Name] = true
	}
	for name, lives := range living {
		if process := hostlock.Process(name); !lives && name != process && !stays[process] && !stays[name] {
			_ = s.owners.Forget(name) // the next sweep tries again
		}
	}
	for _, dir := range sweptByShares {
		list, err := s.main.ReadDir(dir)
		if err != nil {
			s.logOnce("sweep", err)
			continue
		}
		names := make([]string, len(list))
		first := rand.IntN(max(1, len(list)))
		for i := range list {
			names[i] = list[(first+i)%len(list)].Name
		}
		s.mu.Lock()
		s.mu.unswept[dir] = names
		s.mu.Unlock()
	}
	s.sweepShare(sweptAtOnce)
}

// recount lists the directory where a process has ended that was passed over: what it published or
// put back late may be in no account.
func (s *Store) recount() {
	d := &s.dir
	if d.lock == nil {
		return
	}
	settled, any := d.lock.Ended()
	if !any {
		return
	}
	told := false
	err := d.await()
	if err == nil {
		err = d.distrust(s.base)
	}
	if err == nil {
		err = d.alter(s.base, func() error {
			if _, still := d.lock.Ended(); still && !told { // else others have done so
				if err := d.restart(true); err != nil {
					return err
				}
				settled() // whatever follows: all list now
			}
			told = true
			return d.shrink(d.bound(), "", "")
		})
	}
	if err != nil {
		s.logOnce("recount", err) // the next sweep tries again
	}
}

// await has the lock once, and waits no longer than a request does for a process that stands still
// with it.
func (d *directory) await() error {
	ctx, cancel := context.WithTimeout(d.s.base, patience)
	defer cancel()
	if err := d.hold(ctx); err != nil {
		return err
	}
	defer d.unhold()
	defer d.leave()
	return d.lock.Lock(ctx)
}

// giveBack looks whether a process was killed before it gave back what it had taken of others:
// see supersede, replaceRefused and move.
func (s *Store) giveBack(name string) error {
	var back func() error
	switch {
	case strings.HasSuffix(name, refusedSuffix):
		back = func() error { return s.takeRefused(name) }
	case strings.HasSuffix(name, settingsSuffix):
		back = func() error { return s.dir.takeSettings(name) }
	case strings.Contains(name, away):
		back = func() error { return s.dir.takeBack(name) }
	default:
		return nil
	}
	ctx, cancel := context.WithTimeout(s.base, patience)
	defer cancel()
	return s.dir.alter(ctx, back)
}

// own shows other processes that this one lives.
func (d *directory) own() error {
	if d.lock == nil || d.owner != nil && d.owner.There() {
		return nil
	}
	d.disown() // of a directory that was removed
	owner, err := d.s.owners.Enter(d.s.writer)
	if err == nil {
		d.owner = owner
	}
	return err
}

func (d *directory) disown() {
	if d.owner == nil {
		return
	}
	if err := d.owner.Leave(); err != nil {
		d.s.logOnce("leave", err) // a sweep removes the file
	}
	d.owner = nil
}

// living tells of other processes whether they live. known is false if that cannot be
// told now, so that none may be taken for dead.
func (s *Store) living() (living map[string]bool, known bool) {
	if s.cfg.Shared {
		return nil, true
	}
	living, err := s.owners.Living()
	if err != nil && !isGone(err) {
		s.logOnce("sweep", err)
		return nil, false
	}
	return living, true
}

// left reports whether a file is of an owner that is dead, or has none and is old by the
// clock that its time is of.
func (s *Store) left(living map[string]bool, owner, name string, clock func() time.Time) bool {
	if lives, known := living[owner]; known {
		return !lives
	}
	info, err := s.main.Lstat(name)
	return err == nil && clock().Sub(info.ModTime) >= stale
}

// fileTime is the time by the clock that files have theirs from. With Config.Shared that may be
// another machine's: it is the time of a file just written, or where none can be made the last
// change of tmp/, which is no later.
func (s *Store) fileTime() time.Time {
	if !s.cfg.Shared {
		return s.cfg.Now()
	}
	name := tmpDir + "/" + hostlock.Unique()
	if !s.cfg.ReadOnly {
		if f, err := s.main.Create(name); err == nil {
			_, _ = f.WriteAt([]byte{0}, 0) // on a full disk it has the time when it was made
			info, err := f.Stat()
			_ = f.Close()           // it was for its time
			_ = s.main.Remove(name) // the next sweep removes what is left
			if err == nil {
				return info.ModTime
			}
		}
	}
	info, _ := s.main.Lstat(tmpDir) // after an error nothing is old
	return info.ModTime
}

// Temporary files are swept all at once (SPEC P9), leases and marks by shares: those of
// killed processes, and marks that hide entries of a base, may be many. A sweep lists
// their names, from a random one on since the process may end soon, and looks at the
// first few. Every claim that ends looks at two more, and leaves nothing itself.
var sweptByShares = []string{keyDir, markDir}

const (
	sweptAtOnce  = 32
	sweptByClaim = 2
)

// sweepShare looks at the next names of each folder, at no more than most of them.
func (s *Store) sweepShare(most int) {
	clock := sync.OnceValue(s.fileTime)
	for _, dir := range sweptByShares {
		s.mu.Lock()
		left := s.mu.unswept[dir]
		share := left[:min(most, len(left))]
		s.mu.unswept[dir] = left[len(share):]
		s.mu.Unlock()
		for _, name := range share {
			if dir == keyDir {
				s.leases.Sweep(name, clock().Add(-stale))
			} else {
				s.sweepMark(name)
			}
		}
	}
}

// What a process was about to take away when it was killed has a name that says whether it had
// the directory lock: by its turn, or where there are no locks by the stamp of the
// entry that was meant. What was not meant goes back (SPEC P8, P10).

// away separates, in the name of what an evictor moves to tmp/, that mark and the place it had.
const away = "+"

// away names a folder of tmp/ for what is moved there from a place.
func (d *directory) away(place string) string {
	mark := ""
	if d.lock != nil {
		mark = d.lock.Turn()
	} else if r := d.idx.entries[place]; r != nil {
		mark = r.stamp.String()
	} else {
		found, _ := d.s.main.files(place)
		mark = found.stamp.String()
	}
	return strings.Join([]string{tmpDir + "/" + hostlock.Unique(), mark, strings.ReplaceAll(place, "/", away)}, away)
}

// markIn gives the mark in such a name.
func markIn(folder string) string { return strings.Split(path.Base(folder), away)[1] }

func (s stamp) String() string { return fmt.Sprintf("%d.%d", s.inode, s.time) }

// takeBack puts back what a process that was killed has moved to that folder of tmp/, unless it
// was meant, or there is no room for it. It is part of a change.
func (d *directory) takeBack(name string) error {
	place, found := d.takenFrom(name)
	if place == "" {
		return d.shrink(d.bound(), "", "") // after what was put back in a turn before
	}
	if sized(place, found).disk > d.bound() {
		if now, _ := d.s.main.files(place); now.kernel < 0 { // what is left of it goes, and its account
			if _, err := d.evict(place); err != nil {
				return err
			}
		}
		return d.shrink(d.bound(), "", "")
	}
	switch whole, err := d.complete(place, name); {
	case err != nil:
		return err
	case whole:
		return d.shrink(d.bound(), place, "")
	}
	if found.key < 0 || found.kernel < 0 {
		return d.shrink(d.bound(), "", "")
	}
	if place = d.putBack(place, name); place == "" {
		return errors.New("what another process has moved away cannot be put back")
	}
	d.restored(place)
	return d.shrink(d.bound(), place, "")
}

// takenFrom gives the place that a folder of tmp/ was taken from, or nothing where it was meant.
func (d *directory) takenFrom(name string) (place string, found files) {
	words := strings.Split(path.Base(name), away)
	place = strings.Join(words[min(2, len(words)):], "/")
	found, there := d.s.main.files(name)
	if len(words) != 5 || !isPlace(place) || !there || d.hadTurn(words[1], found.stamp) {
		return "", found
	}
	return place, found
}

// complete gives a place the one file back that it lacks, where that lies in a folder of tmp/. It
// begins a change in any case.
func (d *directory) complete(place, name string) (whole bool, err error) {
	if err := d.change(); err != nil {
		return false, err
	}
	f := d.s.main
	now, there := f.files(place)
	if there {
		d.sync(place + "/") // also what others have just given back
	}
	for _, file := range []string{kernelFile, keyFile} {
		if there && (now.key < 0) != (now.kernel < 0) && f.Link(name+"/"+file, place+"/"+file) == nil {
			d.restored(place)
			d.trash = append(d.trash, name)
			return true, nil
		}
	}
	return false, nil
}

// regain completes an entry that lacks a file before the next sweep does, for who would set the
// rest aside. errLent says that a living process may give it back.
func (d *directory) regain(place string) (whole bool, err error) {
	clock := sync.OnceValue(d.s.fileTime)
	whole, lent, err := d.tidySlot(place, clock)
	if whole || err != nil {
		return whole, err
	}
	list, _ := d.s.main.ReadDir(tmpDir) // what cannot be listed cannot be told from what is gone
	for _, entry := range list {
		name := tmpDir + "/" + entry.Name
		if !strings.HasSuffix(name, away+strings.ReplaceAll(place, "/", away)) {
			continue
		}
		if from, _ := d.takenFrom(name); from != place {
			continue
		}
		if living, known := d.s.living(); hostlock.Own(entry.Name) || !known || !d.s.left(living, hostlock.Process(entry.Name), name, clock) {
			lent = errLent
			continue
		}
		if whole, err := d.complete(place, name); whole || err != nil {
			return whole, err
		}
	}
	return false, lent
}

var errLent = errors.New("another process has taken a file of the entry and may give it back")

// hadTurn reports whether the process of a mark had the lock until it was killed, or had moved
// what it meant.
func (d *directory) hadTurn(mark string, found stamp) bool {
	if d.lock == nil {
		return mark == found.String()
	}
	return mark == d.lock.Turn() || !hostlock.IsTurn(mark)
}

// restored enters what was put back into the accounts.
func (d *directory) restored(place string) {
	found, _ := d.s.main.files(place)
	r := sized(place, found)
	d.idx.seq = after(d.idx.seq, d.s.cfg.Now())
	r.seq = d.idx.seq
	d.recall(place) // its old account
	d.idx.add(r)
	d.journal.added(r)
}

// gonePrefix and such a mark are the name that a file has in its folder before it is removed: see
// removeOwn.
const gonePrefix = "gone"

// tidy frees what killed processes have left of entries and buckets, as far as a listing has
// seen it, and puts back what they did not mean to take. It is part of a change.
func (d *directory) tidy() error {
	begin := time.Now() // not the store's clock
	clock := sync.OnceValue(d.s.fileTime)
	for n := 0; len(d.hollow) > 0 && n < mostMoved; n++ { // the next changes do the rest
		if n > 0 && d.lock != nil && time.Since(begin) > mostHeld {
			break
		}
		name := d.hollow[0]
		if strings.Count(name, "/") == 2 {
			if _, _, err := d.tidySlot(name, clock); err != nil {
				return err
			}
			_ = d.s.main.Remove(name) // stays if it is not empty, as all below
			name = path.Dir(name)
		}
		_ = d.s.main.Remove(name)
		d.hollow = d.hollow[1:]
	}
	return nil
}

// tidySlot does so for what has a place. whole says that it is an entry again, and errLent in lent
// that a living process may have it so.
func (d *directory) tidySlot(place string, clock func() time.Time) (whole bool, lent, err error) {
	f := d.s.main
	list, _ := f.ReadDir(place) // of what is gone there is nothing to do
	for _, entry := range list {
		mark, ours := strings.CutPrefix(entry.Name, gonePrefix)
		gone := place + "/" + entry.Name
		if !ours || !entry.Mode.IsRegular() {
			continue
		}
		meant := mark == "" || d.hadTurn(mark, f.stampOfFile(gone))
		if d.lock == nil && !d.aged(gone, clock) {
			if !meant {
				lent = errLent
			}
			continue
		}
		missing := keyFile
		found, there := f.files(place)
		if found.kernel < 0 {
			missing = kernelFile
		}
		if !there || found.key >= 0 && found.kernel >= 0 || meant {
			_ = f.Remove(gone) // the next listing tries again
			continue
		}
		if err := d.change(); err != nil {
			return false, nil, err
		}
		if f.Rename(gone, place+"/"+missing) != nil {
			lent = errLent
			continue
		}
		whole = true
		d.sync(place + "/")
		d.restored(place)
	}
	return whole, lent, nil
}

// aged reports whether a file has had its name for so long that nobody is about to remove it.
func (d *directory) aged(name string, clock func() time.Time) bool {
	info, err := d.s.main.Lstat(name)
	return err == nil && clock().Sub(info.Changed) >= stale
}
