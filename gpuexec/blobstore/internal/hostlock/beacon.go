package hostlock

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// Unique gives a name that no process has used before.
func Unique() string { return own + fmt.Sprintf("%08x", made.Add(1)) }

// Own reports whether a name is from Unique in this process.
func Own(name string) bool { return len(name) > len(own) && name[:len(own)] == own }

var (
	own  = process()
	made atomic.Uint32
)

func process() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return hex.EncodeToString(b[:])
}

// A beacon file holds a count that grows while its holder lives, a byte that says
// whether the holder has released it, the period of the holder in nanoseconds, a blank
// and a note. The period and the note do not change.
const (
	beaconSize = 9
	releasedAt = 8
)

// beacon is the holder's end of such a file.
type beacon struct {
	period time.Duration
	mu     struct {
		sync.Mutex
		file  vfs.File
		timer *time.Timer
		beats uint64
		until time.Time // no beat follows; zero = there is no bound
	}
}

// bound makes a beacon stop beating after a while, as if its holder stood still.
func (b *beacon) bound(most time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if most > 0 {
		b.mu.until = time.Now().Add(most)
	}
}

// light makes a beacon of a name; fs.ErrExist if there is one. The file is complete
// and locked before it gets its name.
func light(fsys vfs.FS, staging, name, note string, period time.Duration, lock bool) (*beacon, error) {
	temporary := staging + "/" + Unique()
	f, err := fsys.Create(temporary)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteAt(fmt.Appendf(make([]byte, beaconSize), "%d %s", period, note), 0)
	if err == nil && lock {
		_, err = f.TryLock()
	}
	if err == nil {
		err = fsys.Link(temporary, name)
	}
	if e := fsys.Remove(temporary); err == nil && e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = e
	}
	if err != nil {
		_, _ = f.WriteAt([]byte{1}, releasedAt) // it may have its name already
		return nil, errors.Join(err, f.Close())
	}
	b := &beacon{period: period}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.file = f
	b.mu.timer = time.AfterFunc(period/3, b.beat)
	return b, nil
}

func (b *beacon) beat() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.file == nil || !b.mu.until.IsZero() && time.Now().After(b.mu.until) {
		return
	}
	b.mu.beats++
	var text [8]byte
	binary.LittleEndian.PutUint64(text[:], b.mu.beats)
	// If a beat cannot be written the others pass this holder over, which is right
	// for a process that cannot write.
	_, _ = b.mu.file.WriteAt(text[:], 0)
	b.mu.timer.Reset(b.period / 3)
}

// extinguish ends a beacon. last, if not nil, is called with the file before the lock
// is given up.
func (b *beacon) extinguish(last func(vfs.File) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.file == nil {
		return nil
	}
	b.mu.timer.Stop()
	var err error
	if last != nil {
		err = last(b.mu.file)
	}
	err = errors.Join(err, b.mu.file.Close())
	b.mu.file = nil
	return err
}

// sight is the state of a beacon as another process sees it.
type sight struct {
	there    bool
	released bool
	orphaned bool // its lock is free though it was not released
	beats    uint64
	period   time.Duration // of the holder; 0 = it does not say
}

// mostPeriod bounds the bytes that a period takes, with the blank.
const mostPeriod = 20

// parse takes apart what does not change in a beacon file. A mark of an older version
// has no period, and begins with no number.
func parse(text []byte) (period time.Duration, note string) {
	word, note, _ := strings.Cut(string(text), " ")
	if n, err := strconv.ParseInt(word, 10, 64); err == nil && n > 0 {
		return time.Duration(n), note
	}
	return 0, string(text)
}

// look opens a beacon file and reads it. With lock it also tries the lock.
func look(fsys vfs.FS, name string, lock bool) (sight, error) {
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return sight{}, nil
	}
	if err != nil {
		return sight{}, err
	}
	defer f.Close()
	var s sight
	if lock {
		if s.orphaned, err = f.TryLock(); err != nil {
			return sight{}, err
		}
	}
	info, err := f.Stat() // after the lock: a holder removes its file before it unlocks
	if err != nil || info.Links == 0 {
		return sight{}, err
	}
	text := make([]byte, beaconSize+mostPeriod)
	n, err := f.ReadAt(text, 0)
	if err != nil && err != io.EOF {
		return sight{}, err
	}
	if n < beaconSize { // power was lost, or it is no beacon: it has no holder
		return sight{there: true, orphaned: true}, nil
	}
	s.there, s.released = true, text[releasedAt] == 1
	s.period, _ = parse(text[beaconSize:n])
	s.beats = binary.LittleEndian.Uint64(text)
	return s, nil
}
