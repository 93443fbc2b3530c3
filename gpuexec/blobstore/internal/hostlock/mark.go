package hostlock

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// Marks show which processes are in a driver that can end them (SPEC P11). A process
// holds a mark while it is in the driver; a mark that was left behind shows that its
// process died there. Marks are safe for concurrent use.
type Marks struct{ Leases }

// Verdict is what a mark says.
type Verdict uint8

// The verdicts of Enter.
const (
	Entered Verdict = iota // no process was there; the mark is now the caller's
	Busy                   // a process has been there for longer than the period
	Crashed                // a process died there
)

// Mark is held while its caller is inside the driver.
type Mark struct {
	marks  *Marks
	name   string
	beacon *beacon
}

// Enter sets the mark of a name, with a note for Sweep. If another process holds the
// mark, Enter waits for little more than a period, without locks the longer one of both. The Mark is nil unless the verdict
// is Entered.
func (m *Marks) Enter(ctx context.Context, name, note string) (*Mark, Verdict, error) {
	file := m.Folder + "/" + name
	begin := time.Now()
	var beats uint64
	moved := begin
	for {
		b, err := light(m.FS, m.Staging, file, note, m.Period, m.Lock)
		if err == nil {
			return &Mark{m, name, b}, Entered, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, Entered, err
		}
		s, err := look(m.FS, file, m.Lock)
		if err != nil {
			return nil, Entered, err
		}
		now, period := time.Now(), m.Period
		if !m.Lock { // a process is dead if it does not beat, by its own period
			period = max(period, s.period)
		}
		if s.beats != beats {
			beats, moved = s.beats, now
		}
		switch {
		case !s.there:
			continue // it was removed a moment ago
		case s.released: // and could not be removed
			if _, err := m.clear(name); err != nil {
				return nil, Entered, err
			}
		case s.orphaned || now.Sub(moved) > period && !m.Lock:
			return nil, Crashed, nil
		case now.Sub(begin) > period*5/4: // longer than it takes to find a process dead without locks
			return nil, Busy, nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, Busy, err
		}
	}
}

// Forget removes a mark that was left behind, when the blob it warned of is gone.
func (m *Marks) Forget(name string) error {
	err := m.FS.Remove(m.Folder + "/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// clear removes a mark that was released. What has its name by then gets that back if it is
// another one: its holder may be in the driver.
func (m *Marks) clear(name string) (cleared bool, err error) {
	file, aside := m.Folder+"/"+name, m.Staging+"/"+Unique()
	if err := m.FS.Rename(file, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	s, err := look(m.FS, aside, m.Lock)
	if cleared = err == nil && (!s.there || s.released); !cleared {
		if e := m.FS.Link(aside, file); !errors.Is(e, fs.ErrExist) { // else others have made one since
			err = errors.Join(err, e)
		}
		_ = m.FS.SyncDir(m.Folder) // as it was
	}
	_ = m.FS.Remove(aside) // what stays is swept
	return cleared, err
}

// Sweep removes a mark that was left behind and that is not needed, by its note. It
// reports whether it did. Before the mark of a process that died goes it calls instead,
// whose error keeps it. Without locks it removes none, since one look cannot tell
// whether a mark is held.
func (m *Marks) Sweep(name string, needed func(note string) bool, instead func() error) (bool, error) {
	file := m.Folder + "/" + name
	text, err := vfs.ReadFile(m.FS, file, mostMark)
	_, note := parse(text[min(beaconSize, len(text)):])
	if !m.Lock || err != nil {
		return false, err
	}
	left := needed(note)
	s, err := look(m.FS, file, m.Lock)
	if err != nil || !s.orphaned || left && !s.released {
		return false, err
	}
	if s.released {
		return m.clear(name)
	}
	if err := instead(); err != nil {
		return false, err
	}
	return true, m.Forget(name)
}

// mostMark is the longest mark that Sweep reads, in bytes: a note may be a path.
const mostMark = 64 << 10

// Leave removes the mark. One that cannot be removed, or that others have moved, says that nobody
// died there. Leave may be called again.
func (m *Mark) Leave() error {
	return m.beacon.extinguish(func(f vfs.File) error { // before the lock is given up, or the mark would look left behind
		if info, err := f.Stat(); err == nil && info.Links == 0 {
			return nil // the name may be another one's
		}
		err := m.marks.FS.Remove(m.marks.Folder + "/" + m.name)
		if err == nil {
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		_, e := f.WriteAt([]byte{1}, releasedAt)
		return errors.Join(err, e)
	})
}
