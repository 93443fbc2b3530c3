package blobstore

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
)

// drop moves an entry to another folder, where no reader finds it.
func (d *directory) drop(place, to string) error {
	if err := d.known(place); err != nil {
		return err
	}
	if err := d.change(); err != nil {
		return err
	}
	switch err := d.s.main.Rename(place, to); {
	case err == nil:
		if err := d.meant(place, to); err != nil {
			return err
		}
	case !isGone(err):
		return err
	}
	d.dropped(place)
	return nil
}

// meant takes a move back if this process stood still before it and lost the lock:
// another entry may have had the place by then (SPEC P8).
func (d *directory) meant(place, to string) error {
	if d.lock == nil || d.lock.Held() {
		return nil
	}
	_ = d.s.main.Mkdir(path.Dir(place)) // which is gone if it was the last entry there
	if err := d.s.main.Rename(to, place); err != nil {
		d.s.logOnce("put back", err) // a newcomer has the place already
	}
	return errPassedOver
}

// known is errMore if the index is to read of an entry first.
func (d *directory) known(place string) error {
	if d.idx.entries[place] != nil {
		return nil
	}
	return d.whole()
}

// dropped writes the account of an entry that is gone.
func (d *directory) dropped(place string) {
	d.idx.remove(place)
	d.journal.removed(place)
	_ = d.s.main.Remove(place[:strings.LastIndexByte(place, '/')]) // stays if it is not empty
}

// A change moves no more entries, and on a slow disk goes on no longer, before others
// have the lock.
const (
	mostMoved = 100
	mostHeld  = 5 * time.Millisecond
)

// shrink evicts until the bytes are within capacity. It never evicts the place keep,
// and only entries of the backend only if that is not empty. An entry that cannot be
// removed is passed over, and more victims follow in its place (SPEC P5). errMore says
// that it has not come to an end.
func (d *directory) shrink(capacity int64, keep, only string) error {
	if d.idx.disk <= capacity {
		return nil
	}
	other := d.rest.merit != (d.s.policy() == Cost) // its lines are in another order
	if other && d.idx.rest {
		d.saved = 0 // the next reader finds them in this one
	}
	if other || only != "" || d.rest.unknown > 0 {
		if err := d.whole(); err != nil {
			return err
		}
	}
	if err := d.others(); err != nil {
		return err
	}
	begin := time.Now() // not the store's clock
	for moved := 0; d.idx.disk > capacity; {
		if len(d.idx.unknown()) > 0 || !d.idx.arranged(only) || d.idx.starved() {
			d.choosing, d.only = true, only
			if d.lock != nil && d.fresh {
				return errMore // after that was done without the lock
			}
			d.learn()
		}
		if d.lock != nil && (moved >= mostMoved || moved > 0 && time.Since(begin) > mostHeld) {
			return errMore
		}
		victims := d.idx.surplus(capacity, keep, mostMoved/5)
		if len(victims) == 0 && !d.idx.starved() {
			d.idx.retry() // with the next change
			break
		}
		for _, r := range victims {
			moved++
			d.beat()
			gone, err := d.evict(r.place)
			if err != nil {
				return err
			}
			if !gone {
				d.idx.pass(r)
				continue
			}
			d.s.stats.evictions.Add(1)
			d.events = append(d.events, Event{Kind: "evicted", Backend: backendOf(r.place), Place: r.place, Bytes: r.bytes})
		}
	}
	return nil
}

// thin evicts the oldest entry of a bucket.
func (d *directory) thin(bucket string, slots []slot) error {
	var oldest record
	for _, slot := range slots {
		files, _ := d.s.main.files(bucket + "/" + slot.name)
		r := sized(bucket+"/"+slot.name, files)
		if d.s.main.meta(&r); slot.ours && (oldest.place == "" || r.created < oldest.created) {
			oldest = r
		}
	}
	if oldest.place == "" {
		return nil
	}
	gone, err := d.evict(oldest.place)
	if gone {
		d.s.stats.evictions.Add(1)
		d.events = append(d.events, Event{Kind: "evicted", Backend: backendOf(bucket), Place: oldest.place, Bytes: oldest.bytes})
	}
	return err
}

// give evicts that many bytes for a store that found the disk full (SPEC P5). It
// reports whether anything went. It gives no more than half of what is there: the cause
// may be another than the entries.
func (d *directory) give(ctx context.Context, bytes int64) bool {
	before := d.s.stats.evictions.Load()
	most := int64(-1)
	err := d.alter(ctx, func() error {
		if most < 0 {
			most = d.idx.disk - bytes
		}
		if most < bytes {
			return nil
		}
		return d.shrink(most, "", "")
	})
	return err == nil && d.s.stats.evictions.Load() > before
}

// evict moves an entry to the trash, or removes its files where it is. gone is false
// if neither is possible. The error is one of the change.
func (d *directory) evict(place string) (gone bool, err error) {
	if err := d.known(place); err != nil {
		return false, err
	}
	if err := d.change(); err != nil {
		return false, err
	}
	to := tmpDir + "/" + hostlock.Unique()
	cause := d.s.main.Rename(place, to)
	if cause == nil {
		if err := d.meant(place, to); err != nil {
			return false, err
		}
		d.trash = append(d.trash, to)
	} else if !isGone(cause) {
		for _, name := range []string{kernelFile, keyFile} {
			if err := d.s.main.Remove(place + "/" + name); err != nil && !isGone(err) {
				d.s.degraded("evict", cause)
				return false, nil
			}
		}
		_ = d.s.main.Remove(place) // an empty folder is no entry
	}
	d.dropped(place)
	return true, nil
}

// setAside moves a bad entry to quarantine/.
func (d *directory) setAside(place string, miss Miss) error {
	name := fmt.Sprintf("%016x-%s-%s-%s", uint64(time.Now().UnixNano()), miss.Reason, strings.ReplaceAll(place, "/", "-"), hostlock.Unique())
	if err := d.drop(place, quarantineDir+"/"+name); err != nil {
		return err
	}
	d.s.stats.setAside.Add(1)
	d.events = append(d.events, Event{Kind: "quarantined", Backend: backendOf(place), Place: place, Reason: miss.Reason})
	d.quarantined = true
	return nil
}

// boundQuarantine removes the oldest entries that were set aside. It needs no lock.
func (s *Store) boundQuarantine() {
	list, err := s.main.ReadDir(quarantineDir)
	if err != nil {
		s.logOnce("bound quarantine", err)
	}
	var disk int64
	kept := 0
	for i := len(list) - 1; i >= 0; i-- { // names begin with their time: the newest is last
		name := quarantineDir + "/" + list[i].Name
		files, _ := s.main.files(name)
		disk += sized(name, files).disk
		if kept++; kept > setAsideMax || disk > s.capacity()/10 {
			_ = s.main.RemoveAll(name) // the next time removes what is left
		}
	}
}
