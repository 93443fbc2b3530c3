//go:build unix

package blobstore_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// P7, P8: who stood still before it gave the directory what it was given, and was passed
// over, takes nothing away that others have given since; nor does it keep its own back.
func TestStoppedWhileItSettles(t *testing.T) {
	for _, at := range []string{"rename", "link"} { // there are settings, or none yet
		r := newRig(t)
		late := newStall(at + " lease/settings")
		if at == "rename" {
			r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
		}
		done := make(chan *shop)
		go func() {
			done <- r.open("d", 2*mib, shortLease, late.config, func(c *blobstore.Config) { c.DefaultPolicy = true })
		}()
		<-late.reached
		r.open("d", 3*mib, shortLease, policy(blobstore.LRU)).shut()
		close(late.resume)
		a := <-done
		text, _, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "policy lru\n")
		r.want("settings", text, "capacity 2097152\n")
		r.want("capacity", a.usage().Capacity, limit.Of(2*mib))
		r.want("drafts", len(r.names("d/tmp")), 0)
	}
}

// P7, P8: who is killed before it has put back what others have given leaves that to the next
// open; what it was to replace, and what it has not given yet, that leaves alone.
func TestKilledWhileItSettles(t *testing.T) {
	r := newRig(t)
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	late, later := newStall("rename lease/settings"), newStall("after rename lease/settings")
	done := make(chan *shop)
	go func() {
		done <- r.open("d", 2*mib, shortLease, on(func(f vfs.FS) vfs.FS { late.FS, later.FS = f, late; return later }), func(c *blobstore.Config) { c.DefaultPolicy = true })
	}()
	killed := func(name string) string { // by another process, whose files have other names
		r.must(os.CopyFS(r.path(name), os.DirFS(r.path("d"))))
		left := r.names(name + "/tmp")[0]
		other := strings.Repeat("0", 24) + left[24:]
		for _, file := range []string{"tmp/" + left, "lease/settings"} {
			text := string(r.read(r.path(name + "/" + file)))
			r.write(r.path(name+"/"+file), []byte(blobstore.Sealed(strings.ReplaceAll(text[:len(text)-17], left, other))))
		}
		dead := r.path(name + "/tmp/" + other)
		r.must(os.Rename(r.path(name+"/tmp/"+left), dead))
		old := r.now().Add(-2 * time.Hour)
		r.must(os.Chtimes(dead, old, old))
		s := r.open(name, mib, byDefault)
		text, _, _ := strings.Cut(string(r.read(r.path(name+"/lease/settings"))), "draft")
		return strings.ReplaceAll(text, "\n", " ") + words(s.usage().Capacity, len(r.names(name+"/tmp")))
	}
	<-late.reached
	r.want("before it has given its own", killed("before"), "capacity 10485760 policy fifo 10485760 0")
	lowered := r.open("d", 3*mib, shortLease, policy(blobstore.LRU))
	r.want("before, and others have", killed("others"), "capacity 3145728 policy lru 3145728 0")
	lowered.shut()
	close(late.resume)
	<-later.reached
	r.want("before it has put theirs back", killed("between"), "capacity 3145728 policy lru 3145728 0")
	close(later.resume)
	<-done

	late = newStall("after rename lease/settings")
	go func() { done <- r.open("d", 4*mib, late.config, func(c *blobstore.Config) { c.DefaultPolicy = true }) }()
	<-late.reached
	r.want("when it has given its own", killed("after"), "capacity 4194304 policy lru 4194304 0")
	close(late.resume)
	<-done
}

// once is a file system that exchanges names once, and at the second time has a fault.
type once struct {
	*stall
	calls *int
}

func (f once) Exchange(a, b string) error {
	if *f.calls++; *f.calls == 2 {
		return &vfs.Fault{Op: "rename", Name: b, Err: syscall.EIO}
	}
	return f.stall.Exchange(a, b)
}

// P7, P8: who was passed over before it gave the directory what it was given, and cannot give
// the others' back by an exchange, gives that back and its own once more.
func TestSettlesAgainAfterAFault(t *testing.T) {
	r := newRig(t)
	late, calls := newStall("rename lease/settings"), 0
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	done := make(chan *shop)
	go func() {
		done <- r.open("d", 2*mib, shortLease, on(func(f vfs.FS) vfs.FS { late.FS = f; return once{late, &calls} }),
			func(c *blobstore.Config) { c.DefaultPolicy = true })
	}()
	<-late.reached
	r.open("d", 3*mib, shortLease, policy(blobstore.LRU)).shut()
	close(late.resume)
	a := <-done
	r.want("capacity here", a.usage().Capacity, limit.Of(2*mib))
	text, _, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "policy lru\n")
	r.want("settings", text, "capacity 2097152\n")
}

// P7, P8: where that process cannot write its own once more either, what the others gave is there
// after its end.
func TestSettingsOwedOnAFullDisk(t *testing.T) {
	r := newRig(t)
	late, calls, full := newStall("rename lease/settings"), 0, atomic.Bool{}
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	done := make(chan *shop)
	go func() {
		done <- r.open("d", 2*mib, shortLease, on(func(f vfs.FS) vfs.FS { late.FS = f; return undrafted{once{late, &calls}, &full} }),
			func(c *blobstore.Config) { c.DefaultPolicy = true })
	}()
	<-late.reached
	r.open("d", 3*mib, shortLease, policy(blobstore.LRU)).shut()
	full.Store(true)
	close(late.resume)
	(<-done).shut()
	for _, left := range r.names("d/tmp") {
		dead := r.path("d/tmp/" + strings.Repeat("0", 24) + left[24:])
		old := r.now().Add(-2 * time.Hour)
		r.must(errors.Join(os.Rename(r.path("d/tmp/"+left), dead), os.Chtimes(dead, old, old)))
	}
	s := r.open("d", mib, byDefault)
	text, _, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "draft")
	r.want("settings", text, "capacity 3145728\npolicy lru\n")
	r.want("capacity, left", words(s.usage().Capacity, len(r.names("d/tmp"))), words(limit.Of(3*mib), 0))
}

// undrafted is a file system on which, once it is full, there are no new files of settings.
type undrafted struct {
	vfs.FS
	full *atomic.Bool
}

func (f undrafted) Create(name string) (vfs.File, error) {
	if strings.HasSuffix(name, ".settings") && f.full.Load() {
		return nil, &vfs.Fault{Op: "open", Name: name, Err: syscall.ENOSPC}
	}
	return f.FS.Create(name)
}

// drafting is a file system that calls written when the first file of tmp/ was synced.
type drafting struct {
	vfs.FS
	once    *sync.Once
	written func()
}

func (f drafting) Create(name string) (vfs.File, error) {
	file, err := f.FS.Create(name)
	if err == nil && strings.HasPrefix(name, "tmp/") {
		file = draftingFile{file, f}
	}
	return file, err
}

type draftingFile struct {
	vfs.File
	drafting
}

func (f draftingFile) Sync() error {
	f.once.Do(f.written)
	return f.File.Sync()
}

// P7, P9: of two that give a directory the same, the second finds it done and leaves no
// file behind.
func TestSettledByOthersMeanwhile(t *testing.T) {
	r := newRig(t)
	r.open("d", 10*mib).shut()
	drafted := false
	s := r.open("d", 2*mib, on(func(f vfs.FS) vfs.FS {
		return drafting{f, &sync.Once{}, func() {
			drafted = true
			r.open("d", 2*mib).shut()
		}}
	}))
	r.want("drafted, capacity, left", words(drafted, s.usage().Capacity, len(r.names("d/tmp"))), words(true, limit.Of(2*mib), 0))
}

// meddled is a file system on which others do something before settings are exchanged: the first
// of them before the first time.
type meddled struct {
	vfs.FS
	others *[]func()
}

func (f meddled) Exchange(a, b string) error {
	if b == "lease/settings" && len(*f.others) > 0 {
		next := (*f.others)[0]
		*f.others = (*f.others)[1:]
		next()
	}
	return f.FS.Exchange(a, b)
}

// P7, P8: who gives a directory something at the very moment when a process that stood still has
// its own there, and has not put back yet what others gave, takes nothing of that away; nor does
// a fourth, at the moment when that is back.
func TestOthersSettleAmongTheExchange(t *testing.T) {
	byPolicy := func(p blobstore.Policy) option {
		return func(c *blobstore.Config) { c.DefaultCapacity, c.Policy = true, p }
	}
	byCapacity := func(n int64) option {
		return func(c *blobstore.Config) { c.Capacity, c.DefaultPolicy = limit.Of(n), true }
	}
	for what, c := range map[string]struct {
		late   option
		others []option
		want   string
	}{
		"policy":               {byPolicy(blobstore.Cost), []option{byCapacity(3 * mib), byPolicy(blobstore.LRU)}, "capacity 3145728 policy cost"},
		"capacity":             {byCapacity(2 * mib), []option{byPolicy(blobstore.LRU), byCapacity(3 * mib)}, "capacity 2097152 policy lru"},
		"three, and a policy":  {byPolicy(blobstore.Cost), []option{byPolicy(blobstore.LRU), byCapacity(4 * mib), byPolicy(blobstore.FIFO)}, "capacity 4194304 policy cost"},
		"three, and an amount": {byCapacity(2 * mib), []option{byCapacity(4 * mib), byPolicy(blobstore.LRU), byCapacity(3 * mib)}, "capacity 2097152 policy lru"},
	} {
		r := newRig(t)
		r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
		var others []func()
		for _, o := range c.others {
			others = append(others, func() { r.open("d", mib, shortLease, o).shut() })
		}
		a := r.open("d", mib, shortLease, c.late, on(func(f vfs.FS) vfs.FS { return meddled{f, &others} }))
		text, _, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "\ndraft")
		r.want(what, strings.ReplaceAll(text, "\n", " "), c.want)
		r.want("meddled, drafts", words(len(others), r.names("d/tmp")), "0 []")
		r.want("here", fmt.Sprintf("capacity %v", a.usage().Capacity), strings.Split(c.want, " policy")[0])
	}
}

// P7, P8: of two gifts between which the clock was set back the second is the later one.
func TestSettlesUnderAClockThatWentBack(t *testing.T) {
	r := newRig(t)
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	gives := func(n int64) {
		r.open("d", n, shortLease, func(c *blobstore.Config) { c.DefaultPolicy = true }).shut()
	}
	others := []func(){
		func() { r.clock(time.Hour); gives(3 * mib); r.clock(-time.Hour) },
		func() { gives(5 * mib) },
	}
	a := r.open("d", mib, shortLease, onlyPolicy, on(func(f vfs.FS) vfs.FS { return meddled{f, &others} }))
	r.want("meddled, capacity", words(len(others), a.usage().Capacity), words(0, limit.Of(5*mib)))
}

// P7, P8: two that stood still before they gave a directory what they were given, and take each
// what the other has there, take nothing away that a third has given meanwhile.
func TestTwoSettleLateAtOnce(t *testing.T) {
	r := newRig(t)
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	done := make(chan *shop)
	late := func(capacity int64) (before, after *stall) {
		before, after = newStall("rename lease/settings"), newStall("after rename lease/settings")
		go func() {
			done <- r.open("d", capacity, shortLease, func(c *blobstore.Config) { c.DefaultPolicy = true },
				on(func(f vfs.FS) vfs.FS { before.FS, after.FS = f, before; return after }))
		}()
		<-before.reached
		return before, after
	}
	before1, after1 := late(2 * mib)
	r.open("d", mib, onlyPolicy, shortLease).shut()
	before2, after2 := late(4 * mib)
	close(before1.resume)
	<-after1.reached
	close(before2.resume)
	<-after2.reached
	close(after1.resume)
	<-done
	close(after2.resume)
	<-done
	text, _, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "draft")
	r.want("settings", text, "capacity 4194304\npolicy lru\n")
	r.want("left", len(r.names("d/tmp")), 0)
}

// killedWhileItSettled leaves directory d as a process does that is killed before it puts a
// capacity of 3 MiB back.
func (r *rig) killedWhileItSettled() {
	dead := strings.Repeat("0", 40) + ".settings"
	r.write(r.path("d/lease/settings"), []byte(blobstore.Sealed("capacity 2097152\npolicy fifo\ndraft "+dead+" ab\ngiven 2 1\n")))
	r.write(r.path("d/tmp/"+dead), []byte(blobstore.Sealed("capacity 3145728\npolicy fifo\ndraft other.settings ab\ngiven 3 1\n")))
	old := r.now().Add(-2 * time.Hour)
	r.must(os.Chtimes(r.path("d/tmp/"+dead), old, old))
}

// P7, P8: what a process that was killed has not put back counts for who opens the directory
// next and gives it something.
func TestGivesAfterOneThatWasKilled(t *testing.T) {
	r := newRig(t)
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	r.killedWhileItSettled()
	s := r.open("d", mib, onlyPolicy, r.freely(new(atomic.Int64)))
	text, _, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "draft")
	r.want("settings", strings.ReplaceAll(text, "\n", " "), "capacity 3145728 policy lru ")
	r.want("capacity, left", words(s.usage().Capacity, r.names("d/tmp")), words(limit.Of(3*mib), "[]"))
}

// P7, P8: who stands still before it puts back what another, which was killed then, had taken,
// takes nothing away that others have given since.
func TestStoppedWhileItPutsBack(t *testing.T) {
	r := newRig(t)
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	r.killedWhileItSettled()
	late, later := newStall("rename lease/settings"), newStall("after rename lease/settings")
	done := make(chan *shop)
	go func() { done <- r.open("d", mib, byDefault, shortLease, late.config) }()
	<-late.reached
	go func() { done <- r.open("d", 4*mib, shortLease, later.config) }()
	<-later.reached
	close(late.resume)
	<-done
	close(later.resume)
	<-done
	text, _, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "\n")
	r.want("settings", text, "capacity 4194304")
}

// P7: settings whose numbers no sequence reaches, or is below, count as given before all others.
func TestSettingsOfNoSequence(t *testing.T) {
	for _, given := range []string{"9223372036854775807 9223372036854775807", "9223372036854775807 1", "1 -1"} {
		r := newRig(t)
		r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
		r.write(r.path("d/lease/settings"), []byte(blobstore.Sealed("capacity 2097152\npolicy fifo\ngiven "+given+"\n")))
		s := r.open("d", mib, onlyPolicy)
		r.want("capacity, put", words(s.usage().Capacity, s.put("k", "v")), words(limit.Of(2*mib), "ok"))
		_, text, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "given ")
		var capacityAt, policyAt int64
		_, err := fmt.Sscan(text, &capacityAt, &policyAt)
		r.want(given, words(err, capacityAt, policyAt > 0, policyAt <= r.now().UnixNano()), "<nil> 0 true true")
	}
}

// P7, P8: what is given after the clock was set back is later than what a process gave before
// that was killed, and that the directory does not have yet.
func TestGivesUnderAClockThatWentBackAfterOneThatWasKilled(t *testing.T) {
	r := newRig(t)
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	r.killedWhileItSettled()
	dead := strings.Repeat("0", 40) + ".settings"
	ahead := func(d time.Duration) int64 { return r.now().Add(d).UnixNano() }
	r.write(r.path("d/lease/settings"), []byte(blobstore.Sealed(fmt.Sprintf("capacity 2097152\npolicy fifo\ndraft %s ab\ngiven %d 1\n", dead, ahead(2*time.Hour)))))
	old := r.now().Add(-2 * time.Hour)
	r.write(r.path("d/tmp/"+dead), []byte(blobstore.Sealed(fmt.Sprintf("capacity 3145728\npolicy fifo\ndraft other.settings ab\ngiven %d 1\n", ahead(time.Hour)))))
	r.must(os.Chtimes(r.path("d/tmp/"+dead), old, old))
	s := r.open("d", mib, policy(blobstore.FIFO))
	r.want("capacity, left", words(s.usage().Capacity, r.names("d/tmp")), words(limit.Of(mib), "[]"))
}

// P7: who cannot write what it owes to others goes by what the directory says, and not by what
// it gave before.
func TestOwesWhatItCannotWrite(t *testing.T) {
	r := newRig(t)
	full := atomic.Bool{}
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	s := r.open("d", 500*kib, policy(blobstore.FIFO), on(func(f vfs.FS) vfs.FS { return undrafted{f, &full} }))
	r.open("d", 10*mib, policy(blobstore.FIFO)).shut()
	s.fill(1, 10, 90*kib)
	r.killedWhileItSettled()
	r.write(r.path("d/lease/settings"), []byte(blobstore.Sealed("capacity 2097152\npolicy fifo\ngiven 2 1\n")))
	full.Store(true)
	r.clock(2 * time.Hour) // the next store sweeps
	s.fill(11, 12, 90*kib)
	r.want("left in tmp/, entries", words(len(r.names("d/tmp")), s.usage().Entries), "1 12")
}
