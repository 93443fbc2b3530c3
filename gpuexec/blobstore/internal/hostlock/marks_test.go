package hostlock_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P11: held is busy, left behind is crashed, left is free.
func TestMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		m := &hostlock.Marks{Leases: hostlock.Leases{FS: f, Folder: "mark", Staging: "tmp", Period: period, Lock: true}}
		mark, verdict, err := m.Enter(background, "x", "")
		if verdict != hostlock.Entered || err != nil {
			t.Fatal(verdict, err)
		}
		if _, verdict, err := m.Enter(background, "x", ""); verdict != hostlock.Busy || err != nil {
			t.Error(verdict, err)
		}
		if err := mark.Leave(); err != nil {
			t.Error(err)
		}
		mark, verdict, _ = m.Enter(background, "x", "")
		if verdict != hostlock.Entered {
			t.Error(verdict)
		}
		_ = mark.Leave()
		if err := vfs.WriteNew(f, "mark/x", false, make([]byte, 9)); err != nil { // its process is gone, and with it the lock
			t.Fatal(err)
		}
		if _, verdict, err := m.Enter(background, "x", ""); verdict != hostlock.Crashed || err != nil {
			t.Error(verdict, err)
		}
		if err := m.Forget("x"); err != nil {
			t.Error(err)
		}
		if err := m.Forget("x"); err != nil {
			t.Error(err)
		}
	})
}

// keeping is a file system that removes nothing from one folder.
type keeping struct {
	vfs.FS
	folder string
}

func (k keeping) Remove(name string) error {
	if strings.HasPrefix(name, k.folder) {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.EROFS}
	}
	return k.FS.Remove(name)
}

// P11: a mark that could not be removed, or not its name in tmp/, is not that of a
// process that died: the next one enters, and a sweep takes it.
func TestMarkThatStays(t *testing.T) {
	for _, folder := range []string{"mark/", "tmp/"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			m := &hostlock.Marks{Leases: hostlock.Leases{FS: f, Folder: "mark", Staging: "tmp", Period: period, Lock: true}}
			left := *m
			left.FS = keeping{f, folder}
			stays := func() {
				t.Helper()
				if mark, _, err := left.Enter(background, "x", ""); (err == nil) != (folder == "mark/") || err == nil && mark.Leave() == nil {
					t.Error(folder, err)
				}
			}
			stays()
			mark, verdict, err := m.Enter(background, "x", "")
			if verdict != hostlock.Entered || err != nil {
				t.Fatal(folder, verdict, err)
			}
			if err := mark.Leave(); err != nil {
				t.Error(err)
			}
			stays()
			if swept, err := m.Sweep("x", func(string) bool { return true }, func() error { return errors.New("nobody died") }); !swept || err != nil {
				t.Error(folder, swept, err)
			}
		})
	}
}

// halting is a file system on which something happens before a file of mark/ is first taken away.
type halting struct {
	vfs.FS
	before *func()
}

func (h halting) pass(name string) {
	if before := *h.before; before != nil && strings.HasPrefix(name, "mark/") {
		*h.before = nil
		before()
	}
}

func (h halting) Remove(name string) error {
	h.pass(name)
	return h.FS.Remove(name)
}

func (h halting) Rename(from, to string) error {
	h.pass(from)
	return h.FS.Rename(from, to)
}

// P11: who stands still between its look at a mark that was released, and could not be removed,
// and its removal, takes nothing of one who has entered the driver since.
func TestLateClearerOfAMark(t *testing.T) {
	for _, what := range []string{"enter", "sweep"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			marks := func(f vfs.FS) *hostlock.Marks {
				return &hostlock.Marks{Leases: hostlock.Leases{FS: f, Folder: "mark", Staging: "tmp", Period: period, Lock: true}}
			}
			left, _, err := marks(keeping{f, "mark/"}).Enter(background, "x", "")
			if err != nil || left.Leave() == nil {
				t.Fatal(err)
			}
			var inside *hostlock.Mark
			before := func() {
				var verdict hostlock.Verdict
				if inside, verdict, err = marks(f).Enter(background, "x", ""); verdict != hostlock.Entered || err != nil {
					t.Fatal(verdict, err)
				}
			}
			late := marks(halting{f, &before})
			if what == "enter" {
				if _, verdict, err := late.Enter(background, "x", ""); verdict != hostlock.Busy || err != nil {
					t.Error(verdict, err)
				}
			} else {
				if _, err := late.Sweep("x", func(string) bool { return true }, nil); err != nil {
					t.Error(err)
				}
			}
			if _, err := f.Lstat("mark/x"); err != nil {
				t.Error(what, err)
			}
			if err := inside.Leave(); err != nil {
				t.Error(err)
			}
			for _, folder := range []string{"mark", "tmp"} {
				if list, err := f.ReadDir(folder); err != nil || len(list) > 0 {
					t.Error(what, list, err)
				}
			}
		})
	}
}

// P8, P11: without locks who wants a mark goes by the period of its holder, who lives.
func TestMarkOfOneWithALongPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		slow := &hostlock.Marks{Leases: hostlock.Leases{FS: f, Folder: "mark", Staging: "tmp", Period: 10 * period}}
		hasty := *slow
		hasty.Period = period / 10
		mark, _, err := slow.Enter(background, "x", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, verdict, err := hasty.Enter(background, "x", ""); verdict != hostlock.Busy || err != nil {
			t.Error(verdict, err)
		}
		if err := mark.Leave(); err != nil {
			t.Error(err)
		}
	})
}

// P11: a sweep takes what was left behind and nobody needs, by the note that it
// was set with; never what is held, nor without locks anything.
func TestMarksAreSwept(t *testing.T) {
	for _, lock := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			m := &hostlock.Marks{Leases: hostlock.Leases{FS: f, Folder: "mark", Staging: "tmp", Period: period, Lock: lock}}
			deaths, keep := 0, error(nil)
			sweep := func(name string, needed bool) string {
				var note string
				swept, err := m.Sweep(name, func(text string) bool {
					note = text
					return needed
				}, func() error { deaths++; return keep })
				return fmt.Sprintf("%t %v %q", swept, err, note)
			}
			want := func(what, got, want string) {
				t.Helper()
				if !lock {
					want = `false <nil> ""`
				}
				if got != want {
					t.Errorf("%s, locks %t: %s, want %s", what, lock, got, want)
				}
			}
			mark, verdict, err := m.Enter(background, "x", "who")
			if verdict != hostlock.Entered || err != nil {
				t.Fatal(verdict, err)
			}
			want("held", sweep("x", false), `false <nil> "who"`)
			text, err := vfs.ReadFile(f, "mark/x", 100)
			if err != nil {
				t.Fatal(err)
			}
			if err := mark.Leave(); err != nil {
				t.Error(err)
			}
			for name, text := range map[string][]byte{"left": text, "torn": text[:4]} {
				if err := vfs.WriteNew(f, "mark/"+name, false, text); err != nil {
					t.Fatal(err)
				}
			}
			want("needed", sweep("left", true), `false <nil> "who"`)
			keep = errors.New("not now")
			want("not yet", sweep("left", false), `false not now "who"`)
			keep = nil
			want("left", sweep("left", false), `true <nil> "who"`)
			want("torn", sweep("torn", false), `true <nil> ""`)
			if lock && deaths != 3 {
				t.Errorf("%d deaths", deaths)
			}
			list, err := f.ReadDir("mark")
			if err != nil || (len(list) == 0) != lock {
				t.Errorf("locks %t: %v %v", lock, list, err)
			}
			if _, err := m.Sweep("left", func(string) bool { return false }, func() error { return nil }); lock && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		})
	}
}

// P11, P8: a driver may take longer with a blob than a build may: its mark says that it lives.
func TestMarkOutlivesTheBoundOfBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		m := &hostlock.Marks{Leases: hostlock.Leases{FS: f, Folder: "mark", Staging: "tmp", Period: period, Most: period}}
		mark, verdict, err := m.Enter(background, "x", "")
		if verdict != hostlock.Entered || err != nil {
			t.Fatal(verdict, err)
		}
		time.Sleep(10 * period)
		if _, verdict, err := m.Enter(background, "x", ""); verdict != hostlock.Busy || err != nil {
			t.Error(verdict, err)
		}
		if err := mark.Leave(); err != nil {
			t.Error(err)
		}
	})
}
