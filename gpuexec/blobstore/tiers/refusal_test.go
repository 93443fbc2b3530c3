//go:build unix

package tiers_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// P11, P5: a driver that refuses: rebuilt, replaced, counted.
func TestDriverRefuses(t *testing.T) {
	dir := t.TempDir() + "/d"
	b := open(t, dir, 8, 0)
	b.get("k", maker{value: "v"})
	b.settle()
	e := open(t, dir, 8, 0)
	want(t, "get", e.get("k", maker{value: "w", refuse: "v"}), "w by=miss")
	e.settle()
	want(t, "count", e.store.Stats().Reasons[fault.DriverRefused], 1)
	want(t, "replaced", e.stored("k"), "w")
}

// P8, P11: of two processes whose drivers refuse a blob one builds anew, the other
// waits for it and takes what was built.
func TestOneBuildAfterARefusal(t *testing.T) {
	dir := t.TempDir() + "/d"
	a, b := open(t, dir, 8, 0), open(t, dir, 8, 0)
	s := open(t, dir, 8, 0)
	s.get("k", maker{value: "bad"})
	s.settle()
	buildsOnce(t, a, b, maker{value: "good", refuse: "bad"}, maker{value: "other", refuse: "bad"})
	want(t, "builds", a.runs["k"]+b.runs["k"], 1)
}

// P11: a driver that refuses what is built in the place of a blob, too, waits for
// nobody any more.
func TestRefusesEverything(t *testing.T) {
	dir := t.TempDir() + "/d"
	a, b := open(t, dir, 8, -1), open(t, dir, 8, -1)
	a.get("k", maker{value: "v"})
	a.settle()
	found := b.tiers.Find(background, artefacts.Subject{Backend: "test", Key: "k"})
	bad, _, err := a.store.Get(background, "test", "k")
	if err == nil {
		err = a.store.Refuse(background, bad)
	}
	if err == nil {
		err = a.store.Put(background, "test", "k", []byte("w"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	next := found.Claim.Refused(background)
	want(t, "first refusal", string(next.Blob)+string(next.Reason), "w")
	fresh, _, err := a.store.Get(background, "test", "k")
	if err != nil {
		t.Fatal(err)
	}
	_, building, err := a.store.Succeed(background, "test", "k", fresh)
	if err != nil || building == nil {
		t.Fatal(building, err)
	}
	defer building.Release()
	refused := make(chan artefacts.Found, 1)
	go func() { refused <- next.Claim.Refused(background) }()
	select {
	case last := <-refused:
		want(t, "second refusal", last.Reason, fault.DriverRefused)
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for a builder")
	}
	if err := next.Claim.Save(background, []byte("x"), 0, nil); err != nil {
		t.Error(err)
	}
	want(t, "stored", b.stored("k"), "x")
}

// P11: a blob whose mark was left behind is not given to the driver again. The
// mark of a process that died is a file that nobody holds a lock on.
func TestDriverDied(t *testing.T) {
	dir := t.TempDir() + "/d"
	aborts := func(c *blobstore.Config) { c.Aborts = func(string) bool { return true } }
	b := open(t, dir, 8, 0, aborts)
	b.get("k", maker{value: "v"})
	b.settle()
	found := b.tiers.Find(background, artefacts.Subject{Backend: "test", Key: "k"})
	marks, err := os.ReadDir(filepath.Join(dir, "mark"))
	if err != nil || len(marks) != 1 {
		t.Fatal(marks, err)
	}
	found.Claim.Loaded()
	if err := os.WriteFile(filepath.Join(dir, "mark", marks[0].Name()), make([]byte, 9), 0o600); err != nil {
		t.Fatal(err)
	}
	e := open(t, dir, 8, 0, aborts)
	want(t, "get", e.get("k", maker{value: "w"}), "w by=miss")
	e.settle()
	want(t, "loads", e.loads["k"], 0)
	want(t, "count", e.store.Stats().Reasons[fault.Quarantined], 1)
	want(t, "stored anew", e.stored("k"), "w")
}

// P11, P14: a blob that a driver refused or died on is built anew, though a base has a copy.
func TestRefusedHasACopyInABase(t *testing.T) {
	for _, died := range []bool{false, true} {
		base, dir := t.TempDir()+"/base", t.TempDir()+"/d"
		first := open(t, base, 8, -1)
		first.get("k", maker{value: "v"})
		first.settle()
		if err := os.CopyFS(dir, os.DirFS(base)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		over := func(c *blobstore.Config) {
			c.Bases, c.Aborts = []string{base}, func(string) bool { return true }
		}
		b := open(t, dir, 8, 0, over)
		found := b.tiers.Find(background, artefacts.Subject{Backend: "test", Key: "k"})
		want(t, "found", string(found.Blob), "v")
		if died {
			marks, err := os.ReadDir(filepath.Join(dir, "mark"))
			if err != nil || len(marks) != 1 {
				t.Fatal(marks, err)
			}
			found.Claim.Abandon()
			if err := os.WriteFile(filepath.Join(dir, "mark", marks[0].Name()), make([]byte, 9), 0o600); err != nil {
				t.Fatal(err)
			}
		} else {
			next := found.Claim.Refused(background)
			want(t, "instead", string(next.Blob)+string(next.Reason), string(fault.DriverRefused))
			next.Claim.Abandon()
		}
		e := open(t, dir, 8, 0, over)
		want(t, "get", e.get("k", maker{value: "w"}), "w by=miss")
		e.settle()
		want(t, "loads", e.loads["k"], 0)
		want(t, "stored anew", open(t, dir, 8, 0, over).get("k", maker{value: "x"}), "w by=persistent_hit")
	}
}

// P11: a blob that a driver refuses is set aside, also where its caller waits no longer.
func TestRefusedWhenItsCallerHasGone(t *testing.T) {
	const keys = 20 // who has ended and finds the lock free goes on half of the time
	b := open(t, t.TempDir()+"/d", keys, -1)
	for i := range keys {
		b.get(fmt.Sprint("k", i), maker{value: "v"})
	}
	b.settle()
	for i := range keys {
		gone, cancel := context.WithCancel(background)
		found := b.tiers.Find(gone, artefacts.Subject{Backend: "test", Key: fmt.Sprint("k", i)})
		cancel()
		found.Claim.Refused(gone).Claim.Abandon()
	}
	u, err := b.store.Usage(background)
	want(t, "entries, some are set aside", fmt.Sprint(u.Entries, u.Quarantined > 0, err), "0 true <nil>")
}

// P11: who builds anew though a blob was there is not in its driver with that any more.
func TestMarkGoesWithASaveOrAnEnd(t *testing.T) {
	for name, end := range map[string]func(artefacts.Claim) error{
		"saved":     func(c artefacts.Claim) error { return c.Save(background, []byte("w"), 0, []string{}) },
		"abandoned": func(c artefacts.Claim) error { c.Abandon(); return nil },
	} {
		dir := t.TempDir() + "/d"
		b := open(t, dir, 8, -1, func(c *blobstore.Config) { c.Aborts = func(string) bool { return true } })
		b.get("k", maker{value: "v"})
		b.settle()
		marks := func() int {
			list, err := os.ReadDir(dir + "/mark")
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
		found := b.tiers.Find(background, artefacts.Subject{Backend: "test", Key: "k"})
		want(t, name+": blob, marks in the driver", fmt.Sprint(string(found.Blob), marks()), "v1")
		want(t, name+": error, marks", fmt.Sprint(end(found.Claim), marks()), "<nil> 0")
	}
}
