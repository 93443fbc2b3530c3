package blobstore

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
)

// What a process was about to take away when it was killed has a name that says whether it had
// the directory lock: by the number of its turn, or where there are no locks by the stamp of the
// entry that was meant. What was not meant goes back (SPEC P8, P10).

// away separates, in the name of what an evictor moves to tmp/, that mark and the place it had.
const away = "+"

// away names a folder of tmp/ for what is moved there from a place.
func (d *directory) away(place string) string {
	mark := ""
	if d.lock != nil {
		mark = strconv.Itoa(d.lock.Generation())
	} else if r := d.idx.entries[place]; r != nil {
		mark = r.stamp.String()
	} else {
		found, _ := d.s.main.files(place)
		mark = found.stamp.String()
	}
	return strings.Join([]string{tmpDir + "/" + hostlock.Unique(), mark, strings.ReplaceAll(place, "/", away)}, away)
}

func (s stamp) String() string { return fmt.Sprintf("%d.%d", s.inode, s.time) }

// takeBack puts back what a process that was killed has moved to that folder of tmp/, unless it
// was meant. It is part of a change.
func (d *directory) takeBack(name string) error {
	f := d.s.main
	words := strings.Split(path.Base(name), away)
	place := strings.Join(words[min(2, len(words)):], "/")
	found, there := f.files(name)
	if len(words) != 5 || !isPlace(place) || !there || d.hadTurn(words[1], found.stamp) {
		return d.shrink(d.bound(), "", "") // after what was put back in a turn before
	}
	if err := d.change(); err != nil {
		return err
	}
	now, there := f.files(place)
	for _, file := range []string{kernelFile, keyFile} {
		if there && (now.key < 0) != (now.kernel < 0) && f.Link(name+"/"+file, place+"/"+file) == nil {
			d.sync(place + "/")
			d.restored(place)
			_ = f.RemoveAll(name) // else the sweep does
			return d.shrink(d.bound(), place, "")
		}
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

// hadTurn reports whether the process of a mark had the lock until it was killed, or had moved
// what it meant.
func (d *directory) hadTurn(mark string, found stamp) bool {
	if d.lock == nil {
		return mark == found.String()
	}
	n, err := strconv.Atoi(mark)
	return err != nil || n >= d.lock.Generation()
}

// restored enters what was put back into the accounts.
func (d *directory) restored(place string) {
	found, _ := d.s.main.files(place)
	r := sized(place, found)
	d.idx.seq = after(d.idx.seq, d.s.cfg.Now())
	r.seq = d.idx.seq
	d.idx.add(r)
	d.journal.added(r)
}

const gonePrefix = "gone"

// goneName is what a file is called in its folder before it is removed: see removeOwn.
func (d *directory) goneName() string {
	if d.lock == nil {
		return gonePrefix
	}
	return gonePrefix + strconv.Itoa(d.lock.Generation())
}

// tidy frees what killed processes have left of entries and buckets, as far as a listing has
// seen it, and puts back what they did not mean to take. It is part of a change.
func (d *directory) tidy() error {
	for n := 0; len(d.hollow) > 0 && n < mostMoved; n++ { // the next changes do the rest
		name := d.hollow[0]
		if strings.Count(name, "/") == 2 {
			if _, err := d.tidySlot(name); err != nil {
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

// tidySlot does so for what has a place. whole says that it is an entry again.
func (d *directory) tidySlot(place string) (whole bool, err error) {
	f := d.s.main
	list, _ := f.ReadDir(place) // of what is gone there is nothing to do
	for _, entry := range list {
		turn, ours := strings.CutPrefix(entry.Name, gonePrefix)
		gone := place + "/" + entry.Name
		if !ours || !entry.Mode.IsRegular() || d.lock == nil && !d.aged(gone) {
			continue
		}
		missing := keyFile
		found, there := f.files(place)
		if found.kernel < 0 {
			missing = kernelFile
		}
		if !there || found.key >= 0 && found.kernel >= 0 || d.lock == nil || turn == "" || d.hadTurn(turn, stamp{}) {
			_ = f.Remove(gone) // the next listing tries again
			continue
		}
		if err := d.change(); err != nil {
			return false, err
		}
		if f.Rename(gone, place+"/"+missing) == nil {
			whole = true
			d.sync(place + "/")
			d.restored(place)
		}
	}
	return whole, nil
}

// aged reports whether a file has had its name for so long that nobody is about to remove it.
func (d *directory) aged(name string) bool {
	info, err := d.s.main.Lstat(name)
	return err == nil && d.s.fileTime().Sub(info.Changed) >= stale
}
