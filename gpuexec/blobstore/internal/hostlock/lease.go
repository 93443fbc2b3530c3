package hostlock

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Leases are rights to build, one for each name. A lease is a folder of numbered
// beacons, of which the highest counts. Leases are safe for concurrent use.
type Leases struct {
	FS      vfs.FS
	Folder  string        // must exist
	Staging string        // folder for files that have no name yet; must exist
	Period  time.Duration // a holder that does not beat for so long is replaced; others go by the period of the holder
	Most    time.Duration // how long a holder beats: then its work hangs, and it is replaced. 0 = there is no bound
	Lock    bool          // the file system has advisory locks
}

// Lease is a right that is held. End it with Release.
type Lease struct {
	leases *Leases
	name   string
	token  int
	beacon *beacon
}

// Acquire waits for the lease of a name. It calls settled each time a holder has
// ended; if settled reports true the lease is not needed any more, and Acquire gives
// nil without an error. The error is the context's or the file system's.
func (l *Leases) Acquire(ctx context.Context, name string, settled func() bool) (*Lease, error) {
	const most = 25 * time.Millisecond
	pause := time.Millisecond
	gone := 0
	var w watch
	var hears *ear
	defer func() { hears.close() }()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		token, free, err := l.survey(name, &w)
		if err != nil {
			return nil, err
		}
		if w.ended && settled() {
			return nil, nil
		}
		if free {
			lease, err := l.take(name, token)
			switch {
			case errors.Is(err, fs.ErrExist): // another process was faster
			case errors.Is(err, fs.ErrNotExist) && gone < 16: // the folder was removed again, or Staging is missing
				gone++
			case err == nil && !lease.alone(token):
				// Others have had the lease since the survey, and one may have it. Who looks
				// at the same time gives up too, so each waits for another while.
				if err := errors.Join(lease.Release(), sleep(ctx, rand.N(pause))); err != nil {
					return nil, err
				}
			default:
				return lease, err
			}
			continue
		}
		if pause == most && !hears.of(token) { // the wait is not a short one
			hears.close()
			if hears = l.listen(name, token); hears != nil {
				continue // it may have ended a moment ago
			}
		}
		if err := hears.wait(ctx, l.Period, pause); err != nil {
			return nil, err
		}
		pause = min(pause*3/2, most)
	}
}

// ear hears the end of one holder, where the system tells it.
type ear struct {
	token int
	bell  vfs.Bell
	rung  chan struct{}
}

// ears bounds those of this process: a user has some hundred at most. Who gets none looks
// forty times a second.
var ears = make(chan struct{}, 4)

func (l *Leases) listen(name string, token int) *ear {
	select {
	case ears <- struct{}{}:
	default:
		return nil
	}
	bell, err := l.FS.Notify(l.Folder + "/" + name + "/" + strconv.Itoa(token))
	if err != nil {
		<-ears
		return nil
	}
	e := &ear{token, bell, make(chan struct{})}
	go func() {
		_ = bell.Wait() // whatever ends it, the waiter looks
		close(e.rung)
	}()
	return e
}

func (e *ear) of(token int) bool {
	if e == nil || e.token != token {
		return false
	}
	select {
	case <-e.rung: // for something else: the holder is there
		return false
	default:
		return true
	}
}

// wait sleeps until the holder is to be looked at: without an ear after the pause.
func (e *ear) wait(ctx context.Context, period, pause time.Duration) error {
	if e == nil {
		return sleep(ctx, pause)
	}
	select {
	case <-e.rung:
		return nil
	case <-time.After(max(pause, min(period/8, time.Second/4))):
		return nil
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

func (e *ear) close() {
	if e != nil {
		_ = e.bell.Close() // which ends Wait
		<-e.rung
		<-ears
	}
}

// watch is what one waiter has seen of one name.
type watch struct {
	looked bool
	token  int
	beats  uint64
	since  time.Time
	ended  bool // the holder seen before has ended
}

// survey gives the number of the last holder. free reports that it has ended or does
// not beat any more.
func (l *Leases) survey(name string, w *watch) (token int, free bool, err error) {
	folder := l.Folder + "/" + name
	token, err = highest(l.FS, folder)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return 0, false, err
	}
	var s sight
	if token > 0 {
		if s, err = look(l.FS, folder+"/"+strconv.Itoa(token), l.Lock); err != nil {
			return 0, false, err
		}
	}
	now := time.Now()
	w.ended = w.looked && token != w.token
	if !w.looked || w.token != token || w.beats != s.beats {
		w.token, w.beats, w.since = token, s.beats, now
	}
	free = !s.there || s.released || s.orphaned || now.Sub(w.since) > cmp.Or(s.period, l.Period)
	w.ended = w.ended || free && w.looked
	w.looked = true
	return token, free, nil
}

// take takes the lease after the holder of a number; 0 = there was none.
func (l *Leases) take(name string, after int) (*Lease, error) {
	folder := l.Folder + "/" + name
	token := after + 1
	if after == 0 {
		token = first()
	}
	make := func() (*beacon, error) {
		return light(l.FS, l.Staging, folder+"/"+strconv.Itoa(token), "", l.Period, l.Lock)
	}
	b, err := make()
	if errors.Is(err, fs.ErrNotExist) {
		if err := l.FS.Mkdir(folder); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		b, err = make()
	}
	if err != nil {
		return nil, err
	}
	b.bound(l.Most)
	return &Lease{l, name, token, b}, nil
}

// first is the number of the first holder in a folder. The end of a lease removes the
// folder, so numbers go by time: a holder that stood still does not find its own number
// with another one (on a system of 32 bits, within twelve days), and of several that
// take a lease in one millisecond one succeeds.
func first() int { return max(1, int(time.Now().UnixMilli()&(math.MaxInt>>1))) }

// alone reports that nobody else has taken the lease after the holder of a number.
func (l *Lease) alone(after int) bool {
	folder := l.leases.Folder + "/" + l.name
	list, err := l.leases.FS.ReadDir(folder)
	if err != nil {
		return false
	}
	for _, entry := range list {
		if n, err := strconv.Atoi(entry.Name); err == nil && n > after && n != l.token {
			return false
		}
	}
	if after > 0 {
		_ = l.leases.FS.Remove(folder + "/" + strconv.Itoa(after)) // only the highest counts
	}
	return true
}

// Token grows with every holder of the name, as clocks do.
func (l *Lease) Token() int { return l.token }

// Held reports whether this holder has not been passed over.
func (l *Lease) Held() bool {
	most, err := highest(l.leases.FS, l.leases.Folder+"/"+l.name)
	return err == nil && most == l.token
}

// Release ends the lease. Others see that at once, and nothing is left of it. It may be
// called again.
func (l *Lease) Release() error {
	folder := l.leases.Folder + "/" + l.name
	err := l.beacon.extinguish(func(f vfs.File) error {
		_, err := f.WriteAt([]byte{1}, releasedAt)
		if info, e := f.Stat(); e == nil && info.Links > 0 { // else it was passed over
			_ = l.leases.FS.Remove(folder + "/" + strconv.Itoa(l.token)) // what stays is swept
		}
		return err
	})
	_ = l.leases.FS.Remove(folder) // not empty = in use
	return err
}

// Sweep removes the folder of a name whose holder is dead, or that has no holder and was
// last changed before a time. Without locks a holder is dead that has not beaten since then, nor in the
// period of it before. The tokens of the name begin again then.
func (l *Leases) Sweep(name string, before time.Time) {
	folder := l.Folder + "/" + name
	info, err := l.FS.Lstat(folder)
	if err != nil || !info.Mode.IsDir() {
		return
	}
	young := info.ModTime.After(before)
	token, err := highest(l.FS, folder)
	if err != nil {
		return
	}
	if token > 0 {
		beacon := folder + "/" + strconv.Itoa(token)
		s, err := look(l.FS, beacon, l.Lock)
		dead := s.orphaned && !s.released
		if info, e := l.FS.Lstat(beacon); e == nil && !l.Lock {
			dead = info.ModTime.Before(before.Add(-s.period))
		}
		if err != nil || s.there && !dead && (young || !s.released) || !s.there && young {
			return
		}
		_ = l.FS.Remove(beacon)
	} else if young {
		return
	}
	_ = l.FS.Remove(folder) // not empty = in use again
}
