//go:build unix

package blobstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P4, P11: what has the name of the list of refused blobs and is no file is none, of which
// nothing is said, and the next refusal replaces it.
func TestListOfRefusalsIsNoFile(t *testing.T) {
	for what, make := range map[string]func(name string) error{
		"folder": func(name string) error { return os.MkdirAll(name+"/x", 0o700) },
		"link":   func(name string) error { return os.Symlink("settings", name) },
		"FIFO":   func(name string) error { return syscall.Mkfifo(name, 0o600) },
	} {
		r := newRig(t)
		base := r.open("base", mib)
		base.put("k", "bad")
		archive := base.exported()
		r.open("d", mib).shut()
		r.must(make(r.path("d/lease/refused")))
		r.must(make(r.path("base/lease/refused")))
		s := r.open("d", mib, func(c *blobstore.Config) { c.Bases = []string{r.path("base")} })
		r.want("import", words(s.bring(archive), s.get("k")), "map[] bad")
		leave, miss, err := s.Enter(background, backend, s.blob("k"))
		leave()
		r.want("enter", words(miss.Reason, err), " <nil>")
		r.want(what+": warnings", r.log.count("going on without"), 0)
		r.must(s.Refuse(background, s.blob("k")))
		s.reopen()
		r.want("after a restart", words(s.bring(archive), s.get("k")), "map[quarantined:1] miss reason=absent")
		r.want(what+": left", len(r.names("d/tmp")), 0)
	}
}

// P8, P11: who stood still before it replaced that takes nothing of what others have noted.
func TestStoppedWhileItReplacesTheListOfRefusals(t *testing.T) {
	r := newRig(t)
	base := r.open("base", mib)
	r.want("put", words(base.put("a", "bad a"), base.put("b", "bad b")), "ok ok")
	archive := base.exported()
	late := newStall("rename lease/refused")
	stopped, other := r.open("d", mib, shortLease, late.config), r.open("d", mib, shortLease)
	r.want("import", other.bring(archive), "map[]")
	a, b := stopped.blob("a"), other.blob("b")
	r.must(os.MkdirAll(r.path("d/lease/refused/x"), 0o700))
	done := make(chan error, 1)
	go func() { done <- stopped.Refuse(background, a) }()
	<-late.reached
	r.must(other.Refuse(background, b))
	close(late.resume)
	r.must(<-done)
	other.reopen()
	r.want("import", words(other.bring(archive), other.get("a"), other.get("b")), "map[quarantined:2] miss reason=absent miss reason=absent")
	r.want("left", len(r.names("d/tmp")), 0)
}

// unnoted is a file system that once it is on adds nothing to the list of refused blobs.
type unnoted struct {
	vfs.FS
	on *atomic.Bool
}

func (f unnoted) Append(name string) (vfs.File, error) {
	if name == "lease/refused" && f.on.Load() {
		return nil, &vfs.Fault{Op: "open", Name: name, Err: syscall.ENOSPC}
	}
	return f.FS.Append(name)
}

// P8, P11: where such a one has taken the list of the others away, and cannot add to its own what
// they have noted, it goes by that itself and leaves it to a sweep after its end.
func TestRefusalsOfOthersOnAFullDisk(t *testing.T) {
	r := newRig(t)
	base := r.open("base", mib)
	r.want("put", words(base.put("a", "bad a"), base.put("b", "bad b"), base.put("c", "bad c")), "ok ok ok")
	archive := base.exported()
	var full atomic.Bool
	late := newStall("rename lease/refused")
	stopped := r.open("d", mib, shortLease, on(func(f vfs.FS) vfs.FS { late.FS = f; return unnoted{late, &full} }))
	other := r.open("d", mib, shortLease)
	r.want("import", other.bring(archive), "map[]")
	a, b, c := stopped.blob("a"), other.blob("b"), other.blob("c")
	r.must(os.MkdirAll(r.path("d/lease/refused/x"), 0o700))
	done := make(chan error, 1)
	go func() { done <- stopped.Refuse(background, a) }()
	<-late.reached
	r.must(errors.Join(other.Refuse(background, b), other.Refuse(background, c)))
	full.Store(true)
	close(late.resume)
	<-done
	r.want("import", stopped.bring(archive), "map[quarantined:3]")
	stopped.shut()
	for _, left := range r.names("d/tmp") {
		dead := r.path("d/tmp/" + strings.Repeat("0", 24) + left[24:])
		old := r.now().Add(-2 * time.Hour)
		r.must(errors.Join(os.Rename(r.path("d/tmp/"+left), dead), os.Chtimes(dead, old, old)))
	}
	fresh := r.open("d", mib)
	r.want("import", fresh.bring(archive), "map[quarantined:3]")
	r.want("left", len(r.names("d/tmp")), 0)
}

// fillRefusals writes the longest list of refusals there is into the store d.
func (r *rig) fillRefusals() (full []byte) {
	for i := range 4096 {
		full = fmt.Appendf(full, "%064x\n", i)
	}
	r.write(r.path("d/lease/refused"), full)
	return full
}

// P11, P8: nor does one that stood still while it made room in a list that is full.
func TestStoppedWhileItHalvesTheRefusals(t *testing.T) {
	r := newRig(t)
	base := r.open("base", mib)
	r.want("put", words(base.put("a", "bad a"), base.put("b", "bad b")), "ok ok")
	archive := base.exported()
	late := newStall("rename lease/refused")
	stopped, other := r.open("d", mib, shortLease, late.config), r.open("d", mib, shortLease)
	r.want("import", other.bring(archive), "map[]")
	a, b := stopped.blob("a"), other.blob("b")
	r.fillRefusals()
	done := make(chan error, 1)
	go func() { done <- stopped.Refuse(background, a) }()
	<-late.reached
	r.must(other.Refuse(background, b))
	close(late.resume)
	r.must(<-done)
	fresh := r.open("d", mib)
	r.want("import", words(fresh.bring(archive), fresh.get("a"), fresh.get("b")), "map[quarantined:2] miss reason=absent miss reason=absent")
	r.want("kept once", bytes.Count(r.read(r.path("d/lease/refused")), []byte("\n")), 2048-1+2)
	r.want("left", len(r.names("d/tmp")), 0)
}

// P8, P11: nor does one that stood still, where a third process notes something while the list
// of the others is not back yet, or where it is killed then.
func TestStoppedWhileTheRefusalsAreNotBack(t *testing.T) {
	r := newRig(t)
	base := r.open("base", mib)
	r.want("put", words(base.put("a", "bad a"), base.put("b", "bad b"), base.put("c", "bad c")), "ok ok ok")
	archive := base.exported()
	late, later := newStall("rename lease/refused"), newStall("after rename lease/refused")
	stopped := r.open("d", mib, shortLease, on(func(f vfs.FS) vfs.FS { late.FS, later.FS = f, late; return later }))
	other := r.open("d", mib, shortLease)
	r.want("import", other.bring(archive), "map[]")
	a, b, c := stopped.blob("a"), other.blob("b"), other.blob("c")
	full := r.fillRefusals()
	done := make(chan error, 1)
	go func() { done <- stopped.Refuse(background, a) }()
	<-late.reached
	r.must(other.Refuse(background, b))
	close(late.resume)
	<-later.reached

	r.must(os.CopyFS(r.path("killed"), os.DirFS(r.path("d"))))
	left := r.names("killed/tmp")[0]
	dead := r.path("killed/tmp/" + strings.Repeat("0", 24) + left[24:])
	r.must(os.Rename(r.path("killed/tmp/"+left), dead))
	halved := dead[:len(dead)-len(".refused")] + "0.refused" // of one that was killed after a sound step
	r.write(halved, full)
	old := r.now().Add(-2 * time.Hour)
	r.must(errors.Join(os.Chtimes(dead, old, old), os.Chtimes(halved, old, old)))
	killed := r.open("killed", mib, r.freely(new(atomic.Int64)))
	r.want("no older ones come back", bytes.Count(r.read(r.path("killed/lease/refused")), []byte("\n")), 2048-1+1)
	r.want("after a kill", words(killed.get("b"), len(r.names("killed/tmp"))), "miss reason=absent 0")
	killed.reopen()
	r.want("import after a kill", words(killed.bring(archive), killed.get("b")), "map[quarantined:1] miss reason=absent")

	r.must(other.Refuse(background, c))
	close(later.resume)
	r.must(<-done)
	fresh := r.open("d", mib)
	r.want("import", words(fresh.bring(archive), fresh.get("a"), fresh.get("b"), fresh.get("c")), "map[quarantined:3] miss reason=absent miss reason=absent miss reason=absent")
	list := r.read(r.path("d/lease/refused"))
	r.want("kept once", bytes.Count(list, []byte("\n")), 2048-1+3)
	r.want("left", len(r.names("d/tmp")), 0)
}
