package hostlock

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Directory is the lock of a whole directory. It has a folder of its own, with one
// small file for each holder that was passed over, of the last ones. A Directory is used by one
// goroutine at a time.
type Directory struct {
	fs     vfs.FS
	folder string
	period time.Duration

	file       vfs.File // while held
	generation int
	inode      uint64 // of its file, when it was taken
	beaten     time.Time
	since      time.Time
	longest    atomic.Int64

	behind *queued // the last that stopped waiting; nil = there is none
}

// NewDirectory gives the lock in a folder, which must exist. A holder that does not
// beat for a period, its own or that of the waiter if that is longer, is passed over.
func NewDirectory(fsys vfs.FS, folder string, period time.Duration) *Directory {
	return &Directory{fs: fsys, folder: folder, period: period}
}

func (d *Directory) name(generation int) string {
	return d.folder + "/" + strconv.Itoa(generation)
}

// Lock waits until the lock is held or the context ends. Those that wait have it in the
// order in which they came, and are woken when it is their turn. Now and then they look
// whether the holder lives.
func (d *Directory) Lock(ctx context.Context) error {
	var seen []byte // what the holder wrote last
	var since time.Time
	var q *queued
	defer func() { d.leave(q) }()
	for {
		f, text, err := d.try()
		if d.file != nil || err != nil {
			return err
		}
		if now := time.Now(); seen == nil || !bytes.Equal(text, seen) {
			seen, since = append(text[:0:0], text...), now
		} else if now.Sub(since) > max(d.period, periodIn(text)) {
			if err := errors.Join(f.Close(), d.pass()); err != nil {
				return err
			}
			seen = nil
			continue
		}
		if q != nil && q.generation != d.generation {
			d.leave(q)
			q = nil
		}
		var turn chan error
		pause := max(time.Millisecond, min(d.period/8, time.Second/4))
		switch {
		case q != nil:
			turn, err = q.turn, f.Close()
		case d.behind.waits():
			pause, err = min(pause, 5*time.Millisecond), f.Close()
		default:
			q = queue(f, d.generation)
			turn = q.turn
		}
		if err != nil {
			return err
		}
		select {
		case err := <-turn:
			d.file, d.generation, q = q.file, q.generation, nil
			if held, err := d.taken(err); held || err != nil {
				return err
			}
		case <-time.After(pause):
		case <-ctx.Done():
			return guard.Ended(ctx)
		}
	}
}

// leave stops waiting. While the system still has such a waiter there is no second one:
// each takes a thread. Who comes then looks again and again.
func (d *Directory) leave(q *queued) {
	if q != nil {
		close(q.left)
		d.behind = q
	}
}

// queued is a place among those that wait for the lock of one generation. The system
// cannot be told to end such a wait: who leaves gives the lock back when it comes.
type queued struct {
	generation int
	file       vfs.File
	turn       chan error
	left       chan struct{}
	ended      chan struct{}
}

func queue(f vfs.File, generation int) *queued {
	q := &queued{generation, f, make(chan error), make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(q.ended)
		err := f.Lock()
		select {
		case q.turn <- err:
		case <-q.left:
			_ = f.Close() // closing ends the lock, also where it gives an error
		}
	}()
	return q
}

func (q *queued) waits() bool {
	if q == nil {
		return false
	}
	select {
	case <-q.ended:
		return false
	default:
		return true
	}
}

// try takes the newest generation. If another process has it, f is its file, and text says
// which generation it is and what the holder wrote last.
func (d *Directory) try() (f vfs.File, text []byte, err error) {
	for {
		d.generation, err = highest(d.fs, d.folder)
		if err != nil {
			return nil, nil, err
		}
		f, err = d.fs.Update(d.name(d.generation))
		if err != nil {
			if info, e := d.fs.Lstat(d.name(d.generation)); e != nil || info.Regular() {
				return nil, nil, err
			}
			if err := d.pass(); err != nil { // it is no file, so no process holds it
				return nil, nil, err
			}
			continue
		}
		locked, err := f.TryLock()
		if err == nil && !locked {
			break
		}
		d.file = f
		if held, err := d.taken(err); held || err != nil {
			return nil, nil, err
		}
	}
	text = make([]byte, 64)
	n, err := f.ReadAt(text, 0)
	if err != nil && err != io.EOF {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, strconv.AppendInt(text[:n:n], int64(d.generation), 10), nil
}

// taken begins to hold the lock of the file that was just locked. It is false if this
// process was passed over meanwhile.
func (d *Directory) taken(err error) (bool, error) {
	d.since = time.Now()
	if err == nil && d.Held() && d.first() {
		return true, d.beat()
	}
	d.Unlock()
	return false, err
}

// first looks further where nobody has had the lock of this generation: the file may be
// one that this process made again, when it had stood still since it looked for the
// newest and others had removed that. Else it removes generations of long ago. The lowest
// goes first, so that who had one of them finds its own gone, or the next one there.
func (d *Directory) first() bool {
	info, err := d.file.Stat()
	if d.inode = info.Inode; err != nil || info.Size > 0 {
		return err == nil
	}
	list, err := d.fs.ReadDir(d.folder)
	if err != nil {
		return false
	}
	var old []int
	for _, entry := range list {
		n, err := strconv.Atoi(entry.Name)
		if err == nil && n > d.generation && n < math.MaxInt {
			return false
		}
		if err == nil && n >= 0 && n < d.generation-kept && entry.Mode.IsRegular() {
			old = append(old, n)
		}
	}
	slices.Sort(old)
	for _, n := range old[:min(len(old), removedAtOnce)] {
		if d.fs.Remove(d.name(n)) != nil {
			break // the next generation tries again
		}
	}
	return true
}

const (
	kept          = 16 // generations: a process of an older version looks for the next one only
	removedAtOnce = 100
)

// pass passes the holder over: it makes the next generation.
func (d *Directory) pass() error {
	f, err := d.fs.Update(d.name(d.generation + 1))
	if err != nil {
		return err
	}
	return f.Close()
}

// Ended gives the holders that were passed over and have given the lock up, or ended, since, but for
// those that settled was called with. What they did last they may have told nobody. It may be called by any
// goroutine.
func (d *Directory) Ended() (settled func(), any bool) {
	newest, err := highest(d.fs, d.folder)
	list, e := d.fs.ReadDir(d.folder)
	bit, last := fs.FileMode(settledBit), d.name(newest)
	info, none := d.fs.Lstat(last)
	if none == nil {
		bit &^= info.Mode // nobody has noted it there: each file has it here, and it says nothing
	}
	var ended []string
	for _, entry := range list {
		n, no := strconv.Atoi(entry.Name)
		if err == nil && e == nil && no == nil && n >= 0 && n < newest && d.hasEnded(d.name(n), bit) {
			ended = append(ended, d.name(n))
		}
	}
	return func() {
		for _, name := range ended {
			_ = d.fs.Chmod(name, 0o600|settledBit) // one that is lost costs another look
		}
		if bit == 0 && info.Regular() {
			_ = d.fs.Chmod(last, 0o600) // somebody has given it to all
		}
	}, len(ended) > 0
}

func (d *Directory) hasEnded(name string, bit fs.FileMode) bool {
	f, err := d.fs.Open(name)
	if err != nil {
		return false
	}
	defer f.Close() // it was only looked at
	free, err := f.TryLock()
	info, e := f.Stat()
	return free && err == nil && e == nil && info.Regular() && info.Mode&bit == 0
}

// settledBit in the mode of the file of such a holder says that it need not be looked at again: a
// full disk has room for that. Where a file system keeps no modes it is looked at again.
const settledBit = 0o100

// Held reports whether this holder still has the lock. It may have been passed over
// while its process stood still: then the next generation is there, or its own is gone.
func (d *Directory) Held() bool {
	if d.file == nil {
		return false
	}
	if _, err := d.fs.Lstat(d.name(d.generation + 1)); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	info, err := d.file.Stat()
	return err == nil && info.Links > 0
}

// Turn names the present generation by its number and its file, since the numbers begin again where
// somebody has removed the folder.
func (d *Directory) Turn() string {
	return strconv.Itoa(d.generation) + turnMark + strconv.FormatUint(d.inode, 36)
}

// IsTurn reports whether a text is from Turn.
func IsTurn(text string) bool { return strings.Contains(text, turnMark) }

const turnMark = "-"

// Beat shows that the holder lives. Call it in the loop of long work; it writes only
// a few times in a period.
func (d *Directory) Beat() {
	if d.file != nil && time.Since(d.beaten) > d.period/3 {
		_ = d.beat() // if others do not see it they pass the holder over: see Held
	}
}

func (d *Directory) beat() error {
	d.beaten = time.Now()
	_, err := d.file.WriteAt(fmt.Appendf(nil, "%s %d\n", Unique(), d.period), 0)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return nil // a fresh file has no block yet: who makes room holds the lock without a sign of life
	}
	if err != nil {
		d.Unlock()
	}
	return err
}

// periodIn is the period that a holder has written; 0 = it wrote none, as older versions do.
func periodIn(text []byte) time.Duration {
	_, word, _ := bytes.Cut(text, []byte(" "))
	word, _, whole := bytes.Cut(word, []byte("\n"))
	n, err := strconv.ParseInt(string(word), 10, 64)
	if !whole || err != nil {
		return 0
	}
	return time.Duration(n)
}

// Unlock gives the lock back, if it is held.
func (d *Directory) Unlock() {
	if d.file != nil {
		_ = d.file.Close() // closing ends the lock, also where it gives an error
		d.file = nil
		d.longest.Store(max(d.longest.Load(), int64(time.Since(d.since))))
	}
}

// Longest is the longest time for which this process held the lock. It is safe for
// concurrent use.
func (d *Directory) Longest() time.Duration { return time.Duration(d.longest.Load()) }

// highest is the largest number among the names in a folder, 0 if there is none.
// The largest int does not count, since none follows it. The one before it is an
// error: what follows it would not count, and making that would never end.
func highest(fsys vfs.FS, folder string) (int, error) {
	list, err := numbers(fsys, folder)
	if len(list) == 0 {
		return 0, err
	}
	return list[0], err
}

// numbers gives all of them, the highest first.
func numbers(fsys vfs.FS, folder string) (list []int, err error) {
	entries, err := fsys.ReadDir(folder)
	for _, entry := range entries {
		if n, err := strconv.Atoi(entry.Name); err == nil && n > 0 && n < math.MaxInt {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b int) int { return cmp.Compare(b, a) })
	if len(list) > 0 && list[0] == math.MaxInt-1 {
		err = fmt.Errorf("%s/%d: no number can follow: move it away", folder, list[0])
	}
	return list, err
}

// sleep waits, within the context.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}
