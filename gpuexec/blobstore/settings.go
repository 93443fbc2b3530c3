package blobstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// settings are the capacity and the policy of a directory (SPEC P7). They lie in it:
// what a process gives replaces them, and every process follows. The zero value of a
// field says that nobody has given it. Each has a number of the index's sequence, which says
// when it was given.
type settings struct {
	capacity   limit.Limit // bytes
	policy     Policy
	capacityAt int64
	policyAt   int64
}

// settingsIn gives the settings that a folder has: none where their file is missing or
// damaged. An error says that they may be there.
func settingsIn(f folder) (have settings, err error) {
	have, _, err = settingsAt(f, settingsFile)
	return have, err
}

// signs tell a file of settings from others.
type signs struct {
	seal string // its end; empty = it has none
	as   string // its first name, in tmp/
	over string // seal of the file that it was to replace
}

// settingsAt gives those of a file with that name.
func settingsAt(f folder, name string) (have settings, of signs, err error) {
	text, err := vfs.ReadFile(f, name, 256)
	switch {
	case isGone(err) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, vfs.ErrTooLong):
		return settings{}, signs{}, nil
	case err != nil:
		return settings{}, signs{}, err
	}
	lines := string(text[:max(0, len(text)-sealSize)])
	if sealed(lines) != string(text) {
		return settings{}, signs{}, nil
	}
	of.seal = strings.TrimSuffix(string(text[len(lines):]), "\n")
	for line := range strings.Lines(lines) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch name {
		case "capacity":
			if n, err := limit.Parse(value); err == nil {
				have.capacity = n
			}
		case "policy":
			if p := Policy(value); slices.Contains(policies, p) {
				have.policy = p
			}
		case "draft":
			of.as, of.over, _ = strings.Cut(value, " ")
		case "given":
			_, _ = fmt.Sscan(value, &have.capacityAt, &have.policyAt)
		}
	}
	if min(have.capacityAt, have.policyAt) < 0 || have.latest() > mostRead {
		have.capacityAt, have.policyAt = 0, 0
	}
	return have, of, nil
}

// remembered gives the settings of a directory for a call that only reads.
func (s *Store) remembered() settings {
	have, err := settingsIn(s.main)
	if err != nil {
		s.degraded("read settings", err)
	}
	return have
}

// given is what this process was given for the directory.
func (c *Config) given() settings {
	g := settings{capacity: c.Capacity, policy: c.Policy}
	if c.DefaultCapacity {
		g.capacity = limit.Limit{}
	}
	if c.DefaultPolicy {
		g.policy = ""
	}
	return g
}

// with gives the settings after more were given at that time.
func (have settings) with(more settings, at int64) settings {
	if more.capacity.Given() && more.capacity != have.capacity {
		have.capacity, have.capacityAt = more.capacity, at
	}
	if more.policy != "" && more.policy != have.policy {
		have.policy, have.policyAt = more.policy, at
	}
	return have
}

// join gives of both what was given later. In whatever order settings are joined, and however
// often, what was given last is kept.
func (have settings) join(other settings) settings {
	if other.capacityAt > have.capacityAt {
		have.capacity, have.capacityAt = other.capacity, other.capacityAt
	}
	if other.policyAt > have.policyAt {
		have.policy, have.policyAt = other.policy, other.policyAt
	}
	return have
}

func (have settings) latest() int64 { return max(have.capacityAt, have.policyAt) }

// follow goes by what the directory says now, or said last where that cannot be read at
// the moment: nothing is evicted for a problem with a file (SPEC P5). It is part of a
// change, after the index was read.
func (d *directory) follow() {
	d.saidIn = d.s.main.stampOf(settingsFile)
	said, err := settingsIn(d.s.main)
	if d.blind = err != nil; d.blind {
		d.s.logOnce("read settings", err)
	} else {
		d.said = said
	}
	have := d.said
	if d.unwritten || d.waits {
		have = have.with(d.s.cfg.given(), 0)
	}
	d.s.obey(have, d.idx.disk)
	if p := d.s.policy(); d.idx.policy != p {
		d.idx.policy, d.idx.order = p, nil
	}
}

// settle writes what this process was given, if the directory says something else, and what
// it owes to others, and goes by the result. What it was not given stays, so where the directory
// cannot be read it writes only if it was given all. It is part of a change.
func (d *directory) settle() error {
	seen := d.s.main.stampOf(settingsFile)
	was, of, err := settingsAt(d.s.main, settingsFile)
	have := was
	for _, name := range d.owed {
		theirs, _, e := settingsAt(d.s.main, name)
		have, err = have.join(theirs), cmp.Or(err, e)
	}
	at := after(max(d.idx.seq, have.latest()), d.s.cfg.Now())
	if d.draft != nil && d.draft.at > have.latest() {
		at = d.draft.at
	}
	gives := !d.waits && (!d.settled || d.unwritten)
	if gives {
		have = have.with(d.s.cfg.given(), at)
	}
	if d.draft != nil && (have == was || have != d.draft.settings || of.seal != d.draft.over) { // others have said it, or more
		_ = d.s.main.Remove(d.draft.name) // else the next sweep removes it
		d.draft = nil
	}
	unwritten := false
	if have != was {
		writable := err == nil || have.capacity.Given() && have.policy != ""
		if writable && d.draft == nil {
			d.look = func() { d.write(have, at, of.seal) }
			return errMore
		}
		if err := d.change(); err != nil { // so that others look again
			return err
		}
		if writable {
			if err = d.publishSettings(seen); err == errPassedOver {
				return err
			}
			d.idx.seq = max(d.idx.seq, have.latest()) // what others give from now on is later
			d.remembered = d.remembered || err == nil
		}
		if unwritten = err != nil; unwritten {
			d.s.logOnce("write settings", err)
		}
	}
	if !unwritten && len(d.owed) > 0 {
		d.sync(leaseDir + "/")
		d.trash = append(d.trash, d.owed...)
		d.owed = nil
	}
	d.settled, d.unwritten = !d.waits, unwritten && gives
	d.follow()
	return nil
}

// draft is a file of settings that has not its name yet. It is synced, whatever the
// durability, so that a loss of power leaves the settings as they were before or after; and
// so not written under the lock.
type draft struct {
	settings
	at   int64 // when they were given, of this process
	name string
	over string // seal of the file that it is to replace
	err  error  // it could not be written
}

func (d *directory) write(have settings, at int64, over string) {
	text := ""
	if have.capacity.Given() {
		text = fmt.Sprintf("capacity %v\n", have.capacity)
	}
	if have.policy != "" {
		text += fmt.Sprintf("policy %s\n", have.policy)
	}
	name := tmpDir + "/" + hostlock.Unique() + settingsSuffix
	text += fmt.Sprintf("draft %s %s\ngiven %d %d\n", path.Base(name), over, have.capacityAt, have.policyAt)
	d.draft = &draft{have, at, name, over, vfs.WriteNew(d.s.main, name, true, []byte(sealed(text)))}
}

// settingsSuffix ends the names of such files in tmp/.
const settingsSuffix = ".settings"

// takeSettings gives the directory what others had given, where a process was killed before it
// did: the file of that name in tmp/ was the directory's. It is part of a change.
func (d *directory) takeSettings(name string) error {
	if !slices.Contains(d.owed, name) {
		_, of, err := settingsAt(d.s.main, name)
		if err != nil || of.seal == "" || of.as == path.Base(name) {
			return err
		}
		d.owed = append(d.owed, name)
	}
	err := d.settle()
	if err == nil && slices.Contains(d.owed, name) {
		err = errors.New("settings that others have given cannot be written")
	}
	return err
}

// publishSettings gives the draft its name, in place of the settings that were seen. What
// is left of one the next sweep removes.
func (d *directory) publishSettings(seen stamp) error {
	made := d.draft
	d.draft = nil
	err := made.err
	if err == nil {
		err = d.supersede(made.name, seen)
	}
	if err != errPassedOver {
		_ = d.s.main.RemoveAll(made.name)
	}
	return err
}

// supersede gives a file of tmp/ the name of the settings, in place of what was seen there, and
// what was there the name in tmp/. Where others have put something there since, because this
// process stood still, that goes back: the error is errPassedOver. More of them may have done so
// before it is back, in place of what this process has put there. What has the name in tmp/ then
// this process owes to the directory. Without locks, and on systems that cannot exchange names,
// the last one counts.
func (d *directory) supersede(from string, seen stamp) error {
	f := d.s.main
	given := f.stampOf(from)
	err := f.Exchange(from, settingsFile)
	if isGone(err) {
		err = f.Link(from, settingsFile)
	}
	switch found := f.stampOf(from); {
	case err != nil && !isTaken(err):
		return replace(f, from, settingsFile)
	case err == nil && (found == seen || found == given || d.lock == nil): // given: there was nothing
		return nil
	}
	d.owed = append(d.owed, from)
	if err == nil {
		_ = f.Exchange(from, settingsFile) // else it is owed
		d.sync(leaseDir + "/")
	}
	return errPassedOver
}

// isShared reports whether processes without locks use the folder, or have used it.
func (f folder) isShared() bool {
	_, err := f.Lstat(sharedFile)
	return err == nil
}

// withoutLocks has those that open the directory later go without locks as this process does.
// To who has locks it would look dead: its lease would be taken, and its mark would say that a
// driver has ended it (SPEC P8, P11). So where one is there this process does not begin. Who
// comes at the same time shows itself before it looks for the file.
func (d *directory) withoutLocks() error {
	if d.lock != nil {
		return nil
	}
	s := d.s
	f, err := s.main.Create(sharedFile)
	made := err == nil
	if made {
		err = errors.Join(f.Close(), s.syncDir(leaseDir))
	}
	switch {
	case noSpace(err): // the next open makes it
		s.logOnce("open without locks", err)
	case err != nil && !isTaken(err):
		return err
	}
	living, err := s.owners.Living()
	if err == nil && !slices.Contains(slices.Collect(maps.Values(living)), true) {
		return nil
	}
	if made {
		err = errors.Join(err, s.main.Remove(sharedFile))
	}
	return cmp.Or(err, d.mixed())
}

func (d *directory) mixed() error {
	return &fault.Error{Op: "store: open", Key: d.s.cfg.Dir,
		Err: fmt.Errorf("%w: some processes use it with locks and some without: end them, and set Config.Shared in all or in none (if there are none, remove %s, or what is in %s)", fault.ErrRefused, sharedFile, ownerDir)}
}

// obey goes by the settings of a directory with that many bytes in use. Where it has
// none, a capacity that is only a default does not evict what is there.
func (s *Store) obey(have settings, disk int64) {
	if !have.capacity.Given() {
		have.capacity = s.cfg.Capacity
		if n, counted := have.capacity.Value(); s.cfg.DefaultCapacity && counted && n < disk {
			have.capacity = limit.Of(disk)
		}
	}
	have.policy = cmp.Or(have.policy, s.cfg.Policy, FIFO)
	s.settings.Store(&have)
}

// capacity in bytes.
func (s *Store) capacity() int64 {
	if n, counted := s.settings.Load().capacity.Value(); counted {
		return n
	}
	return math.MaxInt64
}

// allows reports whether an entry of that size is stored. Before it says no it looks whether
// others have given the directory another capacity since the last change.
func (s *Store) allows(ctx context.Context, bytes int64) bool {
	if d := &s.dir; bytes > s.largest() && bytes <= Largest && d.hold(ctx) == nil {
		changed := d.saidIn != s.main.stampOf(settingsFile)
		d.unhold()
		if changed && d.alter(ctx, func() error { return nil }) != nil {
			return false
		}
	}
	return bytes <= s.largest()
}

func (s *Store) policy() Policy { return s.settings.Load().policy }

// errFull is the error of a store for which nothing could be evicted that is enough.
var errFull = errors.New("others fill the disk beyond what is to be kept free")

// room is how many bytes entries may take now: the capacity, or less where the file
// system is fuller than Config.KeepFree allows; below 0 if others fill it. stored says
// that what was written for entries are entries by now. It is part of a change.
func (d *directory) room(stored bool) int64 {
	s, capacity := d.s, d.s.capacity()
	if s.cfg.KeepFree == 0 {
		return capacity
	}
	free, total, err := s.main.Free()
	if err != nil {
		s.logOnce("look for free space", err)
		return capacity
	}
	now := s.cfg.Now()
	d.late.read(s.main)
	if stored {
		d.late.note(d.idx, free, now)
	}
	return min(capacity, d.idx.disk+free+d.late.bytes(now)-int64(s.cfg.KeepFree*float64(total)))
}

// late is what was removed and the file system does not tell to be free yet: some free
// blocks with the next commit, or discard them first. It lasts one to two minutes, for others
// may have the blocks too. It lies in the directory, since processes may be short: a hint,
// which is read and written in changes only.
type late struct {
	young, old     int64     // bytes
	since, noted   time.Time // when the old ones became so; when the numbers below were
	of             *index    // of the numbers below
	added, dropped int64
	free           int64
	ahead          int64    // written and not stored yet, by other calls; as a number below 0
	text           string   // of the file, as it was read or written last
	told           [2]int64 // its young and old ones
}

const lateFor = time.Minute

// note takes what the file system says is free. What is free beyond what it said last, but for
// what was stored since, has come.
func (l *late) note(x *index, free int64, now time.Time) {
	if now.Sub(l.since).Abs() >= lateFor {
		l.young, l.old, l.since, l.ahead = 0, l.young, now, 0 // it may be that of others
	}
	if now.Sub(l.noted).Abs() >= lateFor {
		l.young, l.old, l.ahead = 0, 0, 0
		l.dropped = x.added - x.disk
	} else {
		l.went(x)
		came := l.ahead + free - l.free + x.added - l.added
		l.ahead, came = min(0, came), max(0, came)
		fromOld := min(came, l.old)
		l.old -= fromOld
		l.young -= min(came-fromOld, l.young)
	}
	l.noted, l.of, l.added, l.free = now, x, x.added, free
}

// went takes what was removed since. Of what another index has counted, another process's
// perhaps, only the difference of the bytes in use is known.
func (l *late) went(x *index) {
	dropped := x.added - x.disk // where entries are read late only their sum is known
	if l.of != x {
		more := x.disk - (l.added - l.dropped)
		l.of, l.added, l.dropped = x, x.added-max(0, more), dropped+min(0, more)
	}
	l.young += max(0, dropped-l.dropped)
	l.dropped = dropped
}

// bytes are those that may come yet.
func (l *late) bytes(now time.Time) int64 {
	if now.Sub(l.noted).Abs() >= lateFor {
		return 0
	}
	return l.young + l.old
}

// line is what the file says.
func (l *late) line() string {
	return sealed(fmt.Sprintf("late %d %d %d %d %d %d %d ", l.young, l.old, l.since.UnixNano(), l.noted.UnixNano(), l.added-l.dropped, l.free, l.ahead))
}

// read takes what another process has written.
func (l *late) read(f folder) {
	const most = 1 << 60 // so that sums do not wrap
	text, err := vfs.ReadFile(f, lateFile, 256)
	if err != nil || string(text) == l.text {
		return
	}
	var of late
	var since, noted int64
	_, err = fmt.Sscanf(string(text), "late %d %d %d %d %d %d %d ", &of.young, &of.old, &since, &noted, &of.added, &of.free, &of.ahead)
	of.since, of.noted, of.text = time.Unix(0, since), time.Unix(0, noted), string(text)
	of.told = [2]int64{of.young, of.old}
	if err == nil && of.line() == of.text && min(of.young, of.old, of.added, -of.ahead) >= 0 && max(of.young, of.old, of.added, of.free, -of.free, -of.ahead) <= most {
		*l = of
	}
}

// tellLate writes what is late, if that is other than what the file says. It is part of a
// change.
func (d *directory) tellLate() {
	l := &d.late
	if l.of == nil {
		return // nothing is kept free
	}
	if l.went(d.idx); l.told == [2]int64{l.young, l.old} {
		return
	}
	line := l.line()
	if err := rewrite(d.s.main, lateFile, []byte(line)); err != nil {
		d.s.logOnce("write what is late", err) // and is tried again with the next change
		return
	}
	l.told, l.text = [2]int64{l.young, l.old}, line
}

// bound is what to evict to: the room, or the capacity where not even an empty store would
// leave free what is to be. Nothing goes for a capacity that the directory does not have yet.
func (d *directory) bound() int64 {
	if d.waits {
		return math.MaxInt64
	}
	if room := d.room(true); room >= 0 {
		return room
	}
	return d.s.capacity()
}
