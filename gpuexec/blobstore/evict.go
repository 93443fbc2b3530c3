package blobstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
)

// move takes an entry from its place to another folder. Where the folder cannot be moved,
// as in a lower layer of an overlay, its files are; those that cannot, as on a full disk,
// are removed. stuck tells why nothing of that is possible. The other error is one of the
// change.
func (d *directory) move(place, to string) (stuck, err error) {
	if err := d.known(place); err != nil {
		return nil, err
	}
	if err := d.change(); err != nil {
		return nil, err
	}
	stuck = d.s.main.Rename(place, to)
	switch {
	case stuck == nil && !d.meant(to+"/"+kernelFile, markIn(to), nil):
		d.putBack(place, to)
		return nil, errPassedOver
	case stuck == nil:
		d.dropped(place)
		return nil, nil
	}
	return d.moveFiles(place, to, stuck)
}

// moveFiles is move where the folder cannot be moved, which stuck tells.
func (d *directory) moveFiles(place, to string, stuck error) (_, err error) {
	f, mark := d.s.main, markIn(to)
	if _, there := f.files(place); !there { // the bucket may be a file by now, which is not ours
		d.forget(place)
		return nil, nil
	}
	keyMark := mark
	if d.lock == nil { // it is of the same entry as a kernel.bin that is there later than now
		keyMark = f.stampOfFile(place + "/" + keyFile).String()
	}
	made := f.Mkdir(to)
	for _, file := range [...]struct{ name, mark string }{{kernelFile, mark}, {keyFile, keyMark}} {
		from, moved := place+"/"+file.name, to+"/"+file.name
		err := made
		if err == nil {
			err = f.Rename(from, moved)
		}
		if !d.meant(moved, file.mark, err) {
			if err == nil && f.Link(moved, from) == nil { // see putBack
				d.sync(place + "/")
				d.trash = append(d.trash, to)
			}
			return nil, errPassedOver
		}
		if err != nil && (made != nil || !isGone(err)) {
			if err = d.removeOwn(place, file.name, file.mark); err == errPassedOver {
				d.trash = append(d.trash, to) // what is there was meant
				return nil, err
			}
		}
		if err != nil && !isGone(err) {
			d.lessen(place)
			return stuck, nil
		}
		if d.lock == nil { // the name of that folder does not say which key.bin was meant
			made = errInPlace
		}
	}
	if f.Remove(place) != nil { // an empty folder is no entry
		if _, _, err := d.tidySlot(place, sync.OnceValue(d.s.fileTime)); err != nil {
			return nil, err
		}
		_ = f.Remove(place) // stays if others have put something there
	}
	_ = f.Remove(to) // stays if it is not empty
	d.dropped(place)
	return nil, nil
}

// lessen writes the account of an entry of which a file is gone, and the other cannot be removed.
func (d *directory) lessen(place string) {
	r := d.idx.entries[place]
	found, _ := d.s.main.files(place)
	if left := sized(place, found); r != nil && left.bytes != r.bytes {
		now := *r
		now.bytes, now.disk, now.stamp = left.bytes, left.disk, left.stamp
		d.idx.add(now)
		d.journal.added(now)
	}
}

// pass leaves an entry that cannot be evicted out of the victims.
func (d *directory) pass(place string) {
	if r := d.idx.entries[place]; r != nil {
		d.idx.pass(r)
		d.stuck = true
	}
}

var errInPlace = errors.New("the file is removed in its place")

// removeOwn removes a file of an entry in two steps. The first gives it another name in its
// folder, a short one, for which a full disk has room: where this process stood still before
// it and was overtaken, the file is a newcomer's, which gets it back; should this process be
// killed in between, from tidySlot. A file that cannot have another name is removed at
// once, in the folder that was there before a look at the lock or the stamp: that of a newcomer is
// another.
func (d *directory) removeOwn(place, name, mark string) error {
	f, name, gone := d.s.main, place+"/"+name, place+"/"+gonePrefix+mark
	err := f.Rename(name, gone)
	switch {
	case !d.meant(gone, mark, err):
		if err == nil && f.Rename(gone, name) == nil {
			d.sync(place + "/")
		}
		return errPassedOver
	case isGone(err):
		return err
	case err == nil:
		return f.Remove(gone)
	}
	meant := false
	err = f.RemoveIf(name, func() bool { meant = d.meant(name, mark, nil); return meant })
	if err == nil && !meant {
		return errPassedOver
	}
	return err
}

// meant reports whether a file that has a name now, unless err says that it has not, is the one
// that was to be taken: no other process has the lock, or where there is none, the mark is its stamp.
func (d *directory) meant(name, mark string, err error) bool {
	if d.lock != nil {
		return d.lock.Held()
	}
	return err != nil || d.s.main.stampOfFile(name).String() == mark
}

// putBack takes a move back, since this process stood still before it and was overtaken:
// another entry may have had the place by then, and that was acknowledged (SPEC P8, P10). If
// a newcomer has the place now, the entry gets another slot of its bucket. It gives the place,
// or nothing where the entry stays: then a sweep after the end of this process tries again.
func (d *directory) putBack(place, from string) string {
	f, bucket := d.s.main, path.Dir(place)
	for again := 0; ; again++ {
		if f.Mkdir(backendOf(place)) == nil { // somebody has removed it
			d.sync("./")
		}
		_ = f.Mkdir(bucket) // which is gone if it was the last entry there
		err := f.Rename(from, place)
		if err == nil {
			d.sync(bucket+"/", backendOf(place)+"/", tmpDir+"/", quarantineDir+"/")
			return place
		}
		slots, e := f.slots(bucket)
		if again == 16 || e != nil && !isGone(e) || !isTaken(err) && !isGone(err) && !errors.Is(err, syscall.ENOTEMPTY) {
			d.s.logOnce("put back", err)
			return ""
		}
		place = bucket + "/" + strconv.FormatUint(lowestFree(slots), 10)
	}
}

// sync makes durable what was put back, whatever the durability here: its writer may
// have acknowledged it with another. It does so when the change has ended, without the lock,
// and before what lies in the trash goes.
func (d *directory) sync(names ...string) { d.unsynced = append(d.unsynced, names...) }

// known is errMore if the index is to read of an entry first.
func (d *directory) known(place string) error {
	if d.recall(place) {
		return nil
	}
	return d.whole()
}

// recall looks a place up in what is not read of the index. It reports whether it is known.
func (d *directory) recall(place string) bool {
	if d.idx.entries[place] != nil || d.idx.rest && d.idx.gone[place] {
		return true
	}
	if !d.idx.rest {
		return false
	}
	r, ok := d.rest.find(place)
	if ok {
		d.idx.early(r)
	}
	return ok
}

// dropped writes the account of an entry that is gone.
func (d *directory) dropped(place string) {
	d.forget(place)
	_ = d.s.main.Remove(place[:strings.LastIndexByte(place, '/')]) // stays if it is not empty
}

func (d *directory) forget(place string) {
	d.idx.remove(place)
	d.journal.removed(place)
}

// A change moves no more entries, and on a slow disk goes on no longer, before others
// have the lock.
const mostMoved = 100

var mostHeld = 5 * time.Millisecond // tests that count operations have it longer

const retryEvery = time.Minute

// shrink evicts until the bytes are within capacity. It never evicts the place keep,
// and only entries of the backend only if that is not empty. An entry that cannot be
// removed is passed over for a minute, and more victims follow in its place (SPEC P5).
// errMore says that it has not come to an end.
func (d *directory) shrink(capacity int64, keep, only string) error {
	if d.idx.disk <= capacity {
		return nil
	}
	other := d.rest.order != d.s.policy() // its lines are in another order
	if other && d.idx.rest {
		d.saved = 0 // the next reader finds them in this one
	}
	if other || only != "" || d.rest.unknown > 0 {
		if err := d.whole(); err != nil {
			return err
		}
	}
	d.renew()
	d.retry()
	begin := time.Now() // not the store's clock
	for moved := 0; d.idx.disk > capacity; {
		if !d.chosen(capacity, keep, only) {
			d.choosing, d.upTo, d.keep, d.only = true, capacity, keep, only
			if d.lock != nil && d.fresh {
				return errMore // after that was done without the lock
			}
			if d.learn(); d.idx.starved() {
				return errPassedOver // the index is damaged: the change begins with a listing
			}
		}
		victims := d.idx.surplus(capacity, keep, mostMoved/5)
		if len(victims) == 0 {
			break
		}
		for _, r := range victims {
			if d.lock != nil && (moved >= mostMoved || moved > 0 && time.Since(begin) > mostHeld) {
				return errMore
			}
			moved++
			gone, err := d.evict(r.place)
			if err != nil {
				return err
			}
			if !gone {
				d.pass(r.place)
				continue
			}
			d.s.stats.evictions.Add(1)
			d.events = append(d.events, Event{Kind: "evicted", Backend: backendOf(r.place), Place: r.place, Bytes: r.bytes})
		}
	}
	return nil
}

// chosen reports whether all is known that the choice of the next victims needs.
func (d *directory) chosen(capacity int64, keep, only string) bool {
	x := d.idx
	return len(x.unknown()) == 0 && x.arranged(only) && !x.starved() && len(d.unsure(x.surplus(capacity, keep, mostMoved/5))) == 0
}

// retry brings entries that were passed over back, once a minute: each try is several calls
// of the system. It does so once in a change, however far the clock jumps meanwhile.
func (d *directory) retry() {
	if now := d.s.cfg.Now(); !d.retried && now.Sub(d.retriedAt).Abs() >= retryEvery {
		if d.retried, d.retriedAt = true, now; d.stuck {
			d.stuck = false
			d.idx.retry()
		}
	}
}

// repay evicts what the stores of an import have left to its end, or to that of the store.
func (d *directory) repay(ctx context.Context) {
	if err := d.alter(ctx, func() error { return d.shrink(d.bound(), "", "") }); err != nil {
		d.s.degraded("evict", err) // the next open does it
		return
	}
	d.owes = false
}

// thin evicts the oldest entry of a bucket, by the sequence, that can be evicted.
func (d *directory) thin(bucket string, slots []slot) error {
	if err := d.whole(); err != nil {
		return err
	}
	d.retry()
	var all []record
	for _, slot := range slots {
		place := bucket + "/" + slot.name
		known := d.idx.entries[place]
		if !slot.ours || known != nil && known.stuck {
			continue
		}
		files, _ := d.s.main.files(place)
		r := sized(place, files)
		r.seq = d.idx.seq
		if known != nil {
			r = *known
		}
		if !r.known {
			d.s.main.meta(&r)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.created, b.created))
	})
	for _, r := range all {
		gone, err := d.evict(r.place)
		if gone {
			d.s.stats.evictions.Add(1)
			d.events = append(d.events, Event{Kind: "evicted", Backend: backendOf(bucket), Place: r.place, Bytes: r.bytes})
		}
		if gone || err != nil {
			return err
		}
		d.pass(r.place)
	}
	return nil
}

// give evicts that many bytes for a store that found the disk full (SPEC P5). It
// reports whether anything went. It gives no more than half of what is there: the cause
// may be another than the entries. It gives nothing for what would not be kept.
func (d *directory) give(ctx context.Context, bytes int64) bool {
	before := d.s.stats.evictions.Load()
	most := int64(-1)
	err := d.alter(ctx, func() error {
		if most < 0 {
			most = d.idx.disk - bytes
		}
		if most < bytes || d.room(false) < bytes {
			return nil
		}
		return d.shrink(most, "", "")
	})
	return err == nil && d.s.stats.evictions.Load() > before
}

// evict moves an entry to the trash. gone is false if that is not possible. The error is
// one of the change.
func (d *directory) evict(place string) (gone bool, err error) {
	to := d.away(place)
	stuck, err := d.move(place, to)
	if err != nil {
		return false, err
	}
	d.trash = append(d.trash, to)
	if stuck != nil {
		d.s.degraded("evict", stuck)
	}
	return stuck == nil, nil
}

// setAside moves a bad entry to quarantine/. stuck tells why that is not possible. The
// other error is one of the change; errMore says that the entry is whole again.
func (d *directory) setAside(place string, miss Miss) (stuck, err error) {
	if miss.Reason == fault.Truncated { // a file may have another name in its folder, or lie in tmp/
		if found, _ := d.s.main.files(place); found.key < 0 || found.kernel < 0 {
			switch whole, err := d.regain(place); {
			case err == errLent:
				return err, nil
			case whole || err != nil:
				return nil, cmp.Or(err, errMore) // and it is looked at again
			}
		}
	}
	// By way of tmp/, from where the sweep puts back what was not meant, should this process
	// stand still before the move, and be killed behind it.
	to := d.away(place)
	stuck, err = d.move(place, to)
	if stuck != nil {
		d.trash = append(d.trash, to) // what has gone of it
	}
	if err != nil || stuck != nil {
		return stuck, err
	}
	if d.s.main.Rename(to, asideName(miss.Reason, place)) != nil {
		d.trash = append(d.trash, to) // it is out of the way all the same
	}
	d.s.stats.setAside.Add(1)
	d.events = append(d.events, Event{Kind: "quarantined", Backend: backendOf(place), Place: place, Reason: miss.Reason})
	d.aside++
	return nil, nil
}

// asideName is a name in quarantine/ for what had another.
func asideName(why fault.Reason, had string) string {
	return fmt.Sprintf("%s/%016x-%s-%s-%s", quarantineDir, uint64(time.Now().UnixNano()), why, strings.ReplaceAll(had, "/", "-"), hostlock.Unique())
}

// boundQuarantine removes the oldest of what was set aside. It needs no lock.
func (s *Store) boundQuarantine() {
	list, err := s.main.ReadDir(quarantineDir)
	if err != nil {
		s.logOnce("bound quarantine", err)
	}
	disk, most := int64(0), s.capacity()/10
	kept := 0
	for i := len(list) - 1; i >= 0; i-- { // names begin with their time: the newest is last
		name := quarantineDir + "/" + list[i].Name
		if kept++; kept <= setAsideMax && disk <= most {
			found, entry := s.main.files(name)
			if !entry { // a file, of makeFolder
				if info, err := s.main.Lstat(name); err == nil && info.Regular() {
					found.kernel = info.Size
				}
			}
			disk += sized(name, found).disk
		}
		if kept > setAsideMax || disk > most {
			_ = s.main.RemoveAll(name) // the next time removes what is left
		}
	}
}
