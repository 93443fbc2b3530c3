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

// Leases are rights to build, one for each name. A lease is a folder of numbered beacons.
// Who has made one while no other lived there is the holder. Leases are safe for
// concurrent use.
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
		if err := l.survey(name, &w); err != nil {
			return nil, err
		}
		if w.ended && settled() {
			return nil, nil
		}
		if w.holder == 0 {
			lease, err := l.take(name, w.past)
			switch {
			case errors.Is(err, fs.ErrExist): // another process was faster
			case errors.Is(err, fs.ErrNotExist) && gone < 16: // the folder was removed again, or Staging is missing
				gone++
			case err == nil && !lease.alone(&w):
				// Others have come since the survey, and one may have the lease. Who looks
				// at the same time gives up too, so each waits for another while.
				if err := errors.Join(lease.Release(), sleep(ctx, rand.N(pause))); err != nil {
					return nil, err
				}
			default:
				return lease, err
			}
			continue
		}
		if pause == most && !hears.of(w.holder) { // the wait is not a short one
			hears.close()
			if hears = l.listen(name, w.holder); hears != nil {
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
	holder int   // the highest that lives; 0 = nobody does
	past   []int // those above it that do not, the highest first
	seen   map[int]seen
	ended  bool // the holder seen before has ended
}

// seen is when a beacon was first seen with its beats.
type seen struct {
	beats uint64
	since time.Time
}

// survey looks who holds the lease. One that lives below others counts too: they may have
// looked late, and give up. It looks at all of them, since several that stand still, or
// were killed without locks, are known as such in one period only when all are watched.
func (l *Leases) survey(name string, w *watch) error {
	tokens, err := numbers(l.FS, l.Folder+"/"+name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	before, known := w.holder, w.seen
	w.holder, w.past, w.seen = 0, nil, make(map[int]seen)
	for _, token := range tokens {
		state, at, err := l.judge(name, token, known)
		if err != nil {
			return err
		}
		w.seen[token] = at
		switch {
		case w.holder > 0: // it is looked at so that it is known when the holder ends
		case state == living:
			w.holder = token
		default:
			w.past = append(w.past, token)
		}
	}
	w.ended = w.looked && (w.holder == 0 || w.holder != before)
	w.looked = true
	return nil
}

// state is what one beacon says.
type state uint8

const (
	ended state = iota // its holder has released it
	left               // its holder was killed, or stands still
	living
)

func (l *Leases) judge(name string, token int, known map[int]seen) (state, seen, error) {
	s, err := look(l.FS, l.Folder+"/"+name+"/"+strconv.Itoa(token), l.Lock)
	at, ok := known[token]
	if !ok || at.beats != s.beats {
		at = seen{s.beats, time.Now()}
	}
	switch {
	case !s.there || s.released:
		return ended, at, err
	case s.orphaned || time.Since(at.since) > cmp.Or(s.period, l.Period):
		return left, at, err
	}
	return living, at, err
}

// take takes the lease after those that do not live, the highest first.
func (l *Leases) take(name string, past []int) (*Lease, error) {
	folder := l.Folder + "/" + name
	token := first()
	if len(past) > 0 {
		token = past[0] + 1
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

// alone reports whether nobody else lives there. Of two that take the lease, each looks
// after it has made its beacon, so one at least sees the other.
func (l *Lease) alone(w *watch) bool {
	folder := l.leases.Folder + "/" + l.name
	tokens, err := numbers(l.leases.FS, folder)
	var past []string
	for _, token := range tokens {
		if token == l.token {
			continue
		}
		state, _, e := l.leases.judge(l.name, token, w.seen)
		if state == living || e != nil {
			return false
		}
		if state == left { // what has ended goes by itself, and its number may be another's by now
			past = append(past, folder+"/"+strconv.Itoa(token))
		}
	}
	for _, name := range past {
		_ = l.leases.FS.Remove(name) // who stood still learns of it
	}
	return err == nil
}

// Token grows with every holder of the name, as clocks do.
func (l *Lease) Token() int { return l.token }

// Held reports whether this holder has not been passed over: who did has removed its file.
func (l *Lease) Held() bool {
	b := l.beacon
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.file == nil {
		return false
	}
	info, err := b.mu.file.Stat()
	return err == nil && info.Links > 0
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
