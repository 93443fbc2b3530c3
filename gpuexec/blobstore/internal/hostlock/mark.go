package hostlock

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// Marks show who is inside a driver that can take its process down (SPEC P11):
// a mark that is held means somebody is in there, one left behind that somebody
// died there. Safe for concurrent use.
type Marks struct{ Leases }

// Verdict is what a mark says.
type Verdict uint8

// The verdicts of Enter.
const (
	Entered Verdict = iota // nobody was there; the mark is now the caller's
	Busy                   // somebody is in there, for longer than the period
	Crashed                // somebody died in there
)

// Mark is held while its caller is inside the driver.
type Mark struct {
	marks  *Marks
	name   string
	beacon *beacon
}

// Enter sets the mark of that name, with a note for Sweep. It waits at most a
// period for whoever is inside. The Mark is nil unless the verdict is Entered.
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
		now := time.Now()
		if s.beats != beats {
			beats, moved = s.beats, now
		}
		switch {
		case !s.there:
			continue // just left
		case s.orphaned || now.Sub(moved) > m.Period && !m.Lock:
			return nil, Crashed, nil
		case now.Sub(begin) > m.Period*5/4: // longer than one without locks needs to be found dead
			return nil, Busy, nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, Busy, err
		}
	}
}

// Forget removes a mark that was left behind, once what it warned of is gone.
func (m *Marks) Forget(name string) error {
	err := m.FS.Remove(m.Folder + "/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Sweep removes a mark that was left behind, if by its note nobody needs it, and
// reports whether it did. One that is held stays, and so does every one where the
// file system has no locks: who is inside could not be told at one look.
func (m *Marks) Sweep(name string, needed func(note string) bool) (bool, error) {
	file := m.Folder + "/" + name
	text, err := vfs.ReadFile(m.FS, file, mostMark)
	if !m.Lock || err != nil || needed(string(text[min(beaconSize, len(text)):])) {
		return false, err
	}
	if s, err := look(m.FS, file, m.Lock); err != nil || !s.orphaned {
		return false, err
	}
	return true, m.Forget(name)
}

// mostMark is the longest mark that Sweep reads, in bytes: a note may be a path.
const mostMark = 64 << 10

// Leave takes the mark away; calling it again does nothing.
func (m *Mark) Leave() error {
	err := m.marks.Forget(m.name) // before the lock goes, so that nobody takes it for left behind
	return errors.Join(err, m.beacon.extinguish(nil))
}
