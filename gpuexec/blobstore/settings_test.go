//go:build unix

package blobstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// byDefault is a store whose capacity and policy nobody has chosen.
func byDefault(c *blobstore.Config) {
	c.DefaultCapacity, c.Policy, c.DefaultPolicy = true, blobstore.Cost, true
}

// onlyPolicy is a store whose policy somebody has chosen, and nobody the capacity.
func onlyPolicy(c *blobstore.Config) { c.DefaultCapacity, c.Policy = true, blobstore.LRU }

// P7: capacity and policy belong to the directory. What a process gives replaces them,
// also for those that have it open; one that gives none neither lowers nor evicts.
func TestCapacityBelongsToTheDirectory(t *testing.T) {
	r := newRig(t)
	a := r.open("d", 450*kib, policy(blobstore.LRU))
	a.fill(1, 4, 100*kib)
	b := r.open("d", 10*kib, byDefault)
	r.want("entries of one that gives none", b.usage().Entries, 4)
	r.want("capacity", b.usage().Capacity, limit.Of(450*kib))
	b.fill(5, 5, 100*kib)
	kept, _, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "policy lru\n")
	r.want("it keeps the capacity and the policy", words(b.has(1, 2, 3, 4, 5), kept), "[2 3 4 5] capacity 460800\n")
	a.get("k2") // and so is used last
	a.shut()
	a.reopen()
	r.clock(2 * time.Minute) // b reads the uses of others once a minute
	b.fill(6, 6, 100*kib)
	r.want("by use", b.has(2, 3, 4, 5, 6), []int{2, 4, 5, 6})
	c := r.open("d", 250*kib, policy(blobstore.FIFO)) // for all
	r.want("lowered", c.usage().Entries, 2)
	a.fill(7, 8, 100*kib)
	r.want("held by those that were open", a.usage().Entries, 2)
	a.reopen()
	r.want("given again", a.usage().Capacity, limit.Of(450*kib))
	c.fill(9, 10, 100*kib)
	r.want("raised for those that were open", c.usage().Entries, 4)
	r.want("audit", c.audit(), "ok")
}

// P7: what is too large goes by the capacity that others have given last: what fits is stored,
// and what does not evicts nothing.
func TestTooLargeGoesByTheCapacityOfNow(t *testing.T) {
	r := newRig(t)
	large := putOptions{bytes: 500 * kib}
	a := r.open("d", 100*kib)
	r.open("d", mib).shut() // for all
	r.want("put after it was raised", a.put("large", "v", large), "ok")
	archive := a.exported()
	r.must(a.Prune(background, 0))
	a.fill(1, 3, 10*kib)
	r.open("d", 100*kib).shut()
	r.want("put after it was lowered", words(a.put("large", "v", large), a.usage().Entries), "refused reason=too_large 3")
	r.want("once more", words(a.put("large", "v", large), a.usage().Entries), "refused reason=too_large 3")
	r.open("d", mib).shut()
	r.want("import after it was raised", words(a.bring(archive), a.get("large")), "map[] v")
	r.want("audit", a.audit(), "ok")
}

// P7: what is given with a put is the directory's when the put has succeeded. One that fails
// changes nothing and evicts nothing.
func TestAPutThatFailsGivesNoCapacity(t *testing.T) {
	late := func(c *blobstore.Config) { *c = hidden.With(*c, true) }
	r := newRig(t)
	said := func(d string) string {
		lines := strings.SplitAfter(string(r.read(r.path(d+"/lease/settings"))), "\n")
		return strings.ReplaceAll(strings.Join(lines[:2], ""), "\n", " ")
	}
	r.open("d", 450*kib, policy(blobstore.LRU)).fill(1, 4, 100*kib)
	former := said("d")
	for _, op := range []string{"write", "sync", "rename", "mkdir", "open"} {
		s := r.open("d", 250*kib, policy(blobstore.Cost), sync_(blobstore.Full), late)
		r.fault(op, syscall.EIO)
		r.want(op, s.put("new", "v"), "refused reason=degraded")
		r.heal()
		s.shut()
		r.want(op, words(said("d"), r.open("d", mib, byDefault).has(1, 2, 3, 4)), words(former, "[1 2 3 4]"))
	}
	s := r.open("d", 250*kib, late)
	r.want("too large", s.put("new", "v", putOptions{bytes: 300 * kib}), "refused reason=too_large")
	r.want("too large", words(said("d"), s.has(1, 2, 3, 4)), words(former, "[1 2 3 4]"))
	r.want("one that fits", s.put("k5", "v5", putOptions{bytes: 100 * kib}), "ok")
	r.want("one that fits", words(said("d"), s.has(1, 2, 3, 4, 5)), words("capacity 256000 policy lru ", "[4 5]"))
	s.fill(6, 6, 100*kib)
	r.want("the next", s.has(4, 5, 6), "[5 6]")
	s = r.open("d", 150*kib, policy(blobstore.Cost), late)
	r.want("one that is there", s.put("k5", "other"), "ok")
	r.want("one that is there", words(said("d"), s.has(5, 6)), words("capacity 153600 policy cost ", "[5]"))
	s = r.open("d", mib, late)
	r.want("a larger one", words(s.put("large", "v", putOptions{bytes: 500 * kib}), said("d")), "ok capacity 1048576 policy cost ")
	s = r.open("new", 250*kib, late)
	r.want("a new directory", words(r.exists(r.path("new/lease/settings")), s.put("k", "v"), said("new")[:15]), "false ok capacity 256000")
}

// P8, P11: who has locks, and who has none, would take each other for dead. So later openings go
// without them too, and none is without them while another has them.
func TestSharedBelongsToTheDirectory(t *testing.T) {
	shared := func(c *blobstore.Config) { c.Shared = true }
	short := func(c *blobstore.Config) { c.Lease = 50 * time.Millisecond }
	r := newRig(t)
	a := r.open("d", mib, shared, abortsAll, short)
	r.want("put", a.put("k", "v"), "ok")
	leave, miss, err := a.Enter(background, backend, a.blob("k"))
	r.want("in the driver", words(miss.Reason, err), " <nil>")
	b := r.open("d", mib, abortsAll, short)
	_, miss, err = b.Enter(background, backend, b.blob("k"))
	r.want("beside it", words(miss.Reason, err), "busy <nil>")
	leave()
	r.want("after it", words(a.get("k"), b.get("k"), b.put("j", "v"), a.get("j")), "v v ok v")

	locks := r.open("e", mib)
	for range 2 {
		_, err = blobstore.Open(background, r.config("e", mib, shared))
		r.want("while one has locks", said(err), "error refused")
	}
	again := r.open("e", mib)
	r.want("it goes on", words(locks.put("k", "v"), again.get("k"), r.exists(r.path("e/lease/shared"))), "ok v false")
	locks.shut()
	again.shut()
	r.open("e", mib, shared).shut()
	r.want("afterwards", r.exists(r.path("e/lease/shared")), true)

	_, err = blobstore.Open(background, r.config("f", mib, on(func(f vfs.FS) vfs.FS { return &joined{f, r} })))
	r.want("at the same time", said(err), "error refused")
	r.open("f", mib).shut()
}

// joined is a file system on which another process begins to go without locks when an owner
// shows itself.
type joined struct {
	vfs.FS
	r *rig
}

func (j *joined) Rename(from, to string) error {
	if strings.HasPrefix(to, "lease/owner/") {
		j.r.write(filepath.Join(j.Root(), "lease/shared"), nil)
	}
	return j.FS.Rename(from, to)
}

// P7: where a directory remembers nothing, a capacity that nobody has chosen does not
// evict what is there, and is not remembered.
func TestDefaultCapacity(t *testing.T) {
	r := newRig(t)
	a := r.open("d", 450*kib)
	a.fill(1, 4, 100*kib)
	a.shut()
	settings := r.path("d/lease/settings")
	for _, text := range []string{"", "capacity -1\npolicy sieve\n", "\x00"} {
		r.must(os.WriteFile(settings, []byte(text), 0o600))
		b := r.open("d", 220*kib, byDefault)
		r.want("opened", b.usage().Entries, 4)
		r.want("remembered", b.usage().Capacity.Given(), false)
		b.fill(5, 5, 100*kib)
		r.want("no more than there were", b.usage().Entries, 4)
	}
	r.open("d", 450*kib)
	fresh := r.open("e", 220*kib, byDefault)
	fresh.fill(1, 5, 100*kib)
	r.want("a fresh directory", fresh.usage().Entries, 2)
	r.want("read-only", r.open("d", 1, func(c *blobstore.Config) { c.ReadOnly = true }).usage().Capacity, limit.Of(450*kib))
}

// P5: settings that cannot be written hold for the process that was given them.
func TestSettingsThatCannotBeWritten(t *testing.T) {
	r := newRig(t)
	r.open("d", 450*kib).fill(1, 4, 100*kib)
	r.must(os.Remove(r.path("d/lease/settings")))
	r.must(os.MkdirAll(r.path("d/lease/settings/x"), 0o700))
	s := r.open("d", 250*kib, func(c *blobstore.Config) {
		blobstore.SetFS(c, func(root string) vfs.FS { return stubborn{vfs.Dir(root), "lease/settings"} })
	})
	r.want("entries", s.usage().Entries, 2)
	r.open("d", 250*kib, byDefault).fill(5, 5, 100*kib) // another process, which makes s look again
	s.fill(6, 7, 100*kib)
	r.want("entries later", s.usage().Entries, 2)

	r.open("e", 450*kib).fill(1, 4, 100*kib) // here there are others
	s = r.open("e", 250*kib, on(func(f vfs.FS) vfs.FS { return stubborn{f, "lease/settings"} }))
	r.want("entries beside the settings of others", s.usage().Entries, 2)
}

// P5, P7: one that could not write what it was given goes by what the directory says else.
func TestPolicyThatCannotBeWritten(t *testing.T) {
	r := newRig(t)
	r.open("d", 10*mib).fill(1, 4, 100*kib)
	s := r.open("d", 220*kib, onlyPolicy, on(func(f vfs.FS) vfs.FS { return stubborn{f, "lease/settings"} }))
	s.fill(5, 7, 100*kib)
	r.want("entries", s.usage().Entries, 7)
}

// unreadable is a file system on which one name cannot be opened while it is on.
type unreadable struct {
	vfs.FS
	name string
	on   *atomic.Bool
}

func (f unreadable) Open(name string) (vfs.File, error) {
	if name == f.name && f.on.Load() {
		return nil, syscall.EMFILE
	}
	return f.FS.Open(name)
}

// P5, P7: settings that cannot be read for a moment stay those that were read last, and
// are written by nobody who was not given all.
func TestSettingsThatCannotBeRead(t *testing.T) {
	r := newRig(t)
	broken := &atomic.Bool{}
	poor := on(func(f vfs.FS) vfs.FS { return unreadable{f, "lease/settings", broken} })
	a := r.open("d", 220*kib, poor)
	b := r.open("d", 10*mib) // for all
	b.fill(1, 4, 100*kib)
	a.fill(5, 5, 100*kib)
	b.fill(6, 6, 100*kib)
	broken.Store(true)
	a.fill(7, 7, 100*kib)
	r.want("entries", b.usage().Entries, 7)
	c := r.open("d", 220*kib, onlyPolicy, poor)
	r.want("entries of one that opens then", b.usage().Entries, 7)
	kept, _, _ := strings.Cut(string(r.read(r.path("d/lease/settings"))), "\n")
	r.want("what it writes", kept, "capacity 10485760")
	r.open("d", 350*kib).shut() // which a cannot read
	a.fill(8, 8, 100*kib)
	broken.Store(false)
	a.fill(9, 9, 100*kib)
	r.want("entries when it can be read again", a.usage().Entries, 3)
	r.want("capacity", c.usage().Capacity, limit.Of(350*kib))
}

// P4, P7: torn or damaged settings are none.
func TestTornSettings(t *testing.T) {
	r := newRig(t)
	a := r.open("d", 460800, policy(blobstore.LRU))
	a.fill(1, 4, 100*kib)
	a.shut()
	name := r.path("d/lease/settings")
	text := r.read(name)
	for n := range text {
		flipped := slices.Clone(text)
		flipped[n] ^= 1
		for _, torn := range [][]byte{text[:n], flipped} {
			r.write(name, torn)
			b := r.open("d", 220*kib, byDefault)
			u := b.usage()
			r.want(fmt.Sprintf("%q", torn), words(u.Entries, u.Capacity.Given()), "4 false")
			b.shut()
		}
	}
}

// stubborn is a file system on which nothing takes one name.
type stubborn struct {
	vfs.FS
	name string
}

func (f stubborn) Rename(from, to string) error   { return f.unless(to, f.FS.Rename, from) }
func (f stubborn) Exchange(from, to string) error { return f.unless(to, f.FS.Exchange, from) }
func (f stubborn) Link(from, to string) error     { return f.unless(to, f.FS.Link, from) }

func (f stubborn) unless(to string, do func(from, to string) error, from string) error {
	if to == f.name {
		return errors.New("no")
	}
	return do(from, to)
}

// filled is a file system that others fill.
type filled struct {
	vfs.FS
	free *atomic.Int64
}

func (f filled) Free() (free, total int64, err error) {
	if f.free.Load() == untold {
		err = errors.ErrUnsupported
	}
	return f.free.Load(), 1000 * kib, err
}

const untold = math.MinInt64

// P7: a share of the disk stays free, whatever the capacity: entries make room for
// what others write, and what does not fit is not stored and evicts nothing.
func TestKeepFree(t *testing.T) {
	r := newRig(t)
	var free atomic.Int64
	free.Store(1000 * kib)
	s := r.open("d", mib, func(c *blobstore.Config) {
		c.KeepFree = 0.1
		blobstore.SetFS(c, func(root string) vfs.FS { return filled{vfs.Dir(root), &free} })
	})
	s.fill(1, 4, 100*kib)
	r.want("enough is free", s.usage().Entries, 4)
	free.Store(40 * kib) // the newcomer is written by then
	s.fill(5, 5, 100*kib)
	r.want("one goes for it", s.has(1, 2, 3, 4, 5), []int{2, 3, 4, 5})
	r.clock(2 * time.Minute) // and what went has not become free
	free.Store(-400 * kib)
	r.want("no room at all", s.put("k6", "v", putOptions{bytes: 100 * kib}), "refused reason=degraded")
	r.want("nothing went for it", s.usage().Entries, 4)
	r.clock(blobstore.LongestPause)
	r.want("no room later", words(s.put("k6", "v", putOptions{bytes: 100 * kib}), s.usage().Entries), "refused reason=degraded 4")
	s.reopen()
	r.want("nothing goes for an open", s.usage().Entries, 4)
	free.Store(untold)
	r.clock(blobstore.LongestPause) // after the failed one
	r.want("of a system that does not tell", s.put("k7", "v"), "ok")
	free.Store(1000 * kib)
	s.cfg.Capacity = limit.Of(250 * kib)
	s.reopen()
	s.fill(8, 11, 100*kib)
	r.want("the capacity holds too", s.usage().Entries, 2)
	for _, share := range []float64{-0.1, 1, math.NaN(), math.Inf(1)} {
		if _, err := blobstore.Open(background, r.config("e", mib, func(c *blobstore.Config) { c.KeepFree = share })); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("a share of %v: %v", share, err)
		}
	}
}

// P7: where others fill the disk beyond what is to be kept free, a store gives nothing for an
// entry that would not be kept, nor at the end of an import; its capacity holds all the same.
func TestKeepFreeWithoutRoom(t *testing.T) {
	r := newRig(t)
	var free atomic.Int64
	var disk atomic.Bool
	free.Store(1000 * kib)
	s := r.open("d", mib, func(c *blobstore.Config) {
		c.KeepFree = 0.5
		blobstore.SetFS(c, func(root string) vfs.FS {
			return &full{filled{vfs.Dir(root), &free}, &disk}
		})
	})
	s.fill(1, 4, 100*kib)
	free.Store(0) // and 416 KiB are of the store
	disk.Store(true)
	r.want("put", words(s.put("k5", "v5", putOptions{bytes: 10 * kib}), s.usage().Entries), "refused reason=degraded 4")
	disk.Store(false)
	_, err := s.Import(background, bytes.NewReader(nil))
	r.want("import", words(errors.Is(err, fault.ErrInvalid), s.usage().Entries), "true 4")
	s.cfg.Capacity = limit.Of(250 * kib)
	s.reopen()
	r.want("the capacity", s.has(1, 2, 3, 4), []int{3, 4})
	free.Store(450 * kib)
	s.reopen()
	r.want("what can make the room", s.has(3, 4), []int{4})
}

// P7, P10: what an open was given for the directory is remembered after a loss of power.
func TestSettingsOutliveALossOfPower(t *testing.T) {
	for level, want := range map[blobstore.Durability]limit.Limit{blobstore.None: {}, blobstore.File: limit.Of(200 * kib), blobstore.Full: limit.Of(200 * kib)} {
		r := newRig(t)
		disk := crashfs.New(nil)
		open := func(f vfs.FS, capacity int64) *blobstore.Store {
			cfg := powerConfig(f, level)
			cfg.Capacity, cfg.DefaultCapacity = limit.Of(capacity), capacity == mib
			s, err := blobstore.Open(background, cfg)
			r.must(err)
			return s
		}
		a, b := open(disk, 400*kib), open(disk, 200*kib)
		after := open(disk.Clone(0, 1, nil), mib)
		u, err := after.Usage(background)
		r.want(string(level), words(u.Capacity, err), words(want, nil))
		r.must(errors.Join(a.Close(background), b.Close(background), after.Close(background)))
	}
}

// P7, P10: settings that were on the disk outlive a loss of power at any moment of an open
// that replaces them, whatever its durability: the directory has the old ones or the new ones.
func TestSettingsReplacedWhilePowerIsLost(t *testing.T) {
	for _, level := range []blobstore.Durability{blobstore.None, blobstore.File, blobstore.Full} {
		r := newRig(t)
		var disk *crashfs.FS
		var states []*crashfs.FS
		armed := false
		disk = crashfs.New(func(string) {
			for seed := uint64(0); armed && seed < 16; seed++ {
				states = append(states, disk.Clone(0.5, seed, nil))
			}
		})
		open := func(f vfs.FS, level blobstore.Durability, capacity int64) *blobstore.Store {
			cfg := powerConfig(f, level)
			cfg.Capacity, cfg.DefaultCapacity = limit.Of(capacity), capacity == mib
			s, err := blobstore.Open(background, cfg)
			r.must(err)
			return s
		}
		r.must(open(disk, blobstore.Full, 400*kib).Close(background))
		armed = true
		r.must(open(disk, level, 200*kib).Close(background))
		armed = false
		lost := 0
		for _, state := range states {
			s := open(state, blobstore.Full, mib)
			u, err := s.Usage(background)
			r.must(err)
			if u.Capacity != limit.Of(400*kib) && u.Capacity != limit.Of(200*kib) {
				lost++
			}
			r.must(s.Close(background))
		}
		r.want(words(level, "of", len(states), "states have neither"), lost, 0)
	}
}

// P7: settings that somebody removes or replaces by hand are noticed by those that are open.
func TestSettingsChangedByHand(t *testing.T) {
	r := newRig(t)
	a := r.open("d", 450*kib)
	r.open("d", 250*kib).shut() // for all
	a.fill(1, 4, 100*kib)
	r.want("entries", a.usage().Entries, 2)
	name := r.path("d/lease/settings")
	text := r.read(name)
	r.must(os.Remove(name))
	a.fill(5, 8, 100*kib)
	r.want("by what it was given", a.usage().Entries, 4)
	r.write(name, text)
	a.fill(9, 9, 100*kib)
	r.want("restored", a.usage().Entries, 2)
}
