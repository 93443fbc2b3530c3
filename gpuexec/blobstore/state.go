package blobstore

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/priority"
)

// index is what one process knows of the entries of a directory. It is pure: it uses
// no file, clock or lock. Where it differs from the directory, the directory is right.
type index struct {
	policy  Policy
	entries map[string]*record // by place
	own     uses               // those of this writer's file
	others  uses               // those of other writers' files, as they were read last
	totals
	order   *queue    // of all entries; nil until the first victim is asked for
	strange []*record // those that were added unknown, also some that are gone or known by now
	unread  bool      // only the totals are known
	added   int64     // bytes on the disk of all that were added, those too that went since

	// rest says that entries are known by two ends only: those that were stored lately,
	// and of those before, in the order of lines, the first.
	rest bool
	low  record          // the last of these
	gone map[string]bool // places of which the rest tells what is not so any more
	held totals          // bytes of the entries that are known
}

// totals are what a journal says at the end of each change.
type totals struct {
	// seq is the latest number of the sequence that orders creations and uses. A number
	// is one more than the latest that its giver knows, or the time in nanoseconds since
	// 1970 if that is more: so the order of a journal holds whatever clocks do, and an
	// index that is made anew, which begins with times, has numbers like the old one.
	seq   int64
	bytes int64
	disk  int64
}

// mostSeq bounds the times that become a number of the sequence, and mostRead the numbers
// that are read, so that counting on from there never ends.
const (
	mostSeq  = 1 << 62 // in the year 2116
	mostRead = mostSeq + mostSeq/2
)

// after gives a number above the latest.
func after(latest int64, now time.Time) int64 { return max(latest+1, min(now.UnixNano(), mostSeq)) }

// uses are by place.
type uses map[string]use

// use counts the requests for one entry.
type use struct {
	created int64 // of the entry: its place may be taken by another one later
	count   int64
	last    int64 // its number in the sequence
}

// record is one entry. place is its folder, below the root.
type record struct {
	place string
	bytes int64 // of key.bin and kernel.bin
	disk  int64 // what they take there

	seq int64 // its number in the sequence; before it is known, the largest that it can have

	least  use // what the index told of its uses: there are no fewer, and none later is forgotten
	looked int // round in which its uses were looked up

	known   bool  // the fields below were read
	created int64 // nanoseconds since 1970; tells whether a use is of this entry
	cost    time.Duration

	stamp stamp   // zero = not known
	was   *record // what may be an older record of it

	stuck bool // it cannot be evicted at present
	at    int  // where it is in the queue; 0 = it is not
}

// sized is the record of a place with these files.
func sized(place string, f files) record {
	r := record{place: place, stamp: f.stamp}
	for _, size := range [...]int64{f.key, f.kernel} {
		r.bytes += max(size, 0)
		r.disk += frame.OnDisk(max(size, 0))
	}
	return r
}

func newIndex(policy Policy) *index {
	return &index{policy: policy, entries: make(map[string]*record), own: uses{}, others: uses{}}
}

// add notes an entry in place of one that is known at its place.
func (x *index) add(r record) {
	x.remove(r.place)
	x.bytes += r.bytes
	x.disk += r.disk
	x.added += r.disk
	x.hold(&r)
}

func (x *index) hold(r *record) {
	x.entries[r.place] = r
	x.held.bytes += r.bytes
	x.held.disk += r.disk
	if !r.known {
		x.strange = append(x.strange, r)
	}
	if r.at = 0; x.order != nil && x.order.takes(r) {
		x.order.Push(r)
	}
}

// remove forgets the entry of a place. Of one in the rest it does not know the bytes.
func (x *index) remove(place string) {
	r, ok := x.entries[place]
	if !ok && !x.rest {
		return
	}
	delete(x.own, place)
	delete(x.others, place)
	if !ok {
		x.gone[place] = true
		return
	}
	delete(x.entries, place)
	x.bytes -= r.bytes
	x.disk -= r.disk
	x.held.bytes -= r.bytes
	x.held.disk -= r.disk
	if x.order != nil {
		x.order.Remove(r)
	}
}

// feed adds the next entry of the rest.
func (x *index) feed(r record) {
	x.low = r
	if x.gone[r.place] {
		delete(x.gone, r.place)
		return
	}
	x.hold(&r)
}

// early adds an entry of the rest before its turn.
func (x *index) early(r record) {
	x.gone[r.place] = true
	x.hold(&r)
}

// fed ends the rest. It reports whether the entries are those that the totals count.
func (x *index) fed() bool {
	x.rest, x.gone = false, nil
	return x.held.bytes == x.bytes && x.held.disk == x.disk
}

// starved reports that the next victim may be in the rest.
func (x *index) starved() bool {
	if !x.rest || x.order.Len() == 0 {
		return x.rest
	}
	first := x.order.First()
	return x.compare(first, x.useOf(first), &x.low, x.low.least) > 0
}

// pass leaves an entry that cannot be evicted out of the queue.
func (x *index) pass(r *record) {
	if x.order != nil {
		x.order.Remove(r)
	}
	r.stuck = true
}

// retry brings those entries back.
func (x *index) retry() {
	x.order = nil
	for _, r := range x.entries {
		r.stuck = false
	}
}

// stuck counts the entries, of one backend if that is not empty, that were passed over.
func (x *index) stuck(only string) (n int) {
	for _, r := range x.entries {
		if r.stuck && (only == "" || only == backendOf(r.place)) {
			n++
		}
	}
	return n
}

// note adds requests to those of this writer.
func (x *index) note(more uses) {
	for place, u := range more {
		x.merge(x.own, uses{place: u}) // one after the other, since each may move in the queue
		x.seq = max(x.seq, u.last)
		if r, ok := x.entries[place]; ok && x.order != nil {
			x.order.Fix(r)
		}
	}
}

// setUses replaces all requests. The queue is made anew, which happens once a minute
// at most.
func (x *index) setUses(own, others uses) {
	x.own, x.others, x.order = own, others, nil
	x.seq = max(x.seq, own.latest(), others.latest())
}

// learned notes what was read of an entry that was unknown.
func (r *record) learned() {
	r.known, r.seq = true, min(r.seq, r.created)
	if r.was != nil && r.was.created == r.created {
		r.seq = r.was.seq
	}
	r.was = nil
}

// follow applies a change that is not older than what is known.
func (x *index) follow(c change) {
	if !c.added {
		x.remove(c.place)
		return
	}
	c.seq = max(c.seq, x.seq+1) // its writer may not have known all numbers
	x.seq = c.seq
	x.add(c.record)
}

// add adds requests for an entry. Of two entries of one place the one that was used last
// counts: its creation may be by a clock that was set back.
func (us uses) add(place string, u use) {
	old, known := us[place]
	switch {
	case known && old.created != u.created && old.last > u.last:
	case old.created != u.created:
		us[place] = u
	default:
		us[place] = use{u.created, old.count + u.count, max(old.last, u.last)}
	}
}

// merge adds requests. Of two entries of one place that counts which is there.
func (x *index) merge(us, more uses) {
	for place, u := range more {
		old, r := us[place], x.entries[place]
		switch {
		case r == nil || !r.known || r.created != old.created && r.created != u.created:
			us.add(place, u)
		case r.created == u.created && old.created != u.created:
			us[place] = u
		case r.created == u.created:
			us.add(place, u)
		}
	}
}

// latest is the latest number among them.
func (us uses) latest() (seq int64) {
	for _, u := range us {
		seq = max(seq, u.last)
	}
	return seq
}

// useOf sums the requests for an entry, as far as they are known.
func (x *index) useOf(r *record) (sum use) {
	for _, us := range [...]uses{x.own, x.others} {
		if u := us[r.place]; u.created == r.created {
			sum.count += u.count
			sum.last = max(sum.last, u.last)
		}
	}
	return use{r.created, max(sum.count, r.least.count), max(sum.last, r.least.last)}
}

// usedSince reports whether an entry was used later than the index told.
func (x *index) usedSince(r *record) bool { return x.useOf(r).last > r.least.last }

// lookedUp notes what the files of other writers say of the uses of an entry.
func (x *index) lookedUp(r *record, found uses, round int) {
	r.looked = round
	x.seq = max(x.seq, found.latest())
	delete(x.others, r.place)
	x.merge(x.others, found)
	if x.order != nil {
		x.order.Fix(r)
	}
}

// inherit copies what old knows of the entries that were found on the disk again. Where
// old does not know which file it knew, the number of the entry waits for its creation
// time: another of the same size may have its place.
func (x *index) inherit(old *index) {
	for place, r := range x.entries {
		o, ok := old.entries[place]
		r.stuck = ok && o.stuck
		switch {
		case !ok || o.bytes != r.bytes || !o.known:
		case o.stamp == stamp{}:
			r.was = o
		case o.stamp == r.stamp:
			r.known, r.created, r.cost, r.seq, r.least = true, o.created, o.cost, o.seq, o.least
		}
	}
	x.seq = max(x.seq, old.seq)
	x.own, x.others = old.own, old.others
}

// unknown lists the entries of which only the size was seen, so that the caller can
// fill in what is missing.
func (x *index) unknown() []*record {
	x.strange = slices.DeleteFunc(x.strange, func(r *record) bool { return r.known || x.entries[r.place] != r })
	if len(x.strange) > 0 {
		x.order = nil
	}
	return x.strange
}

// arranged reports whether arrange has nothing to do.
func (x *index) arranged(only string) bool { return x.order != nil && x.order.only == only }

// arrange puts all entries in the order of the policy; if only is not empty, those of
// that backend.
func (x *index) arrange(only string) {
	if x.arranged(only) {
		return
	}
	x.order = &queue{priority.New(x.before, func(r *record) *int { return &r.at }), only}
	for _, r := range x.entries {
		if r.at = 0; x.order.takes(r) {
			x.order.Push(r)
		}
	}
}

// surplus lists up to most entries to evict so that the bytes are within capacity, in
// the order of the policy. keep is the place of the newcomer, which stays (SPEC P7), as
// do entries that take nothing. All entries must be known, but for the rest, and
// arranged: then the cost grows with the number of victims, and with the logarithm of
// that of entries.
func (x *index) surplus(capacity int64, keep string, most int) []*record {
	var out, passed []*record
	for left := x.disk; left > capacity && len(out) < most && x.order.Len() > 0 && !x.starved(); {
		r := x.order.Pop()
		if r.place == keep || r.bytes == 0 {
			passed = append(passed, r)
			continue
		}
		left -= r.disk
		out = append(out, r)
	}
	for _, r := range append(passed, out...) {
		x.order.Push(r)
	}
	return out
}

// before reports whether a is evicted before b.
func (x *index) before(a, b *record) bool { return x.compare(a, x.useOf(a), b, x.useOf(b)) < 0 }

// compare is below 0 if a is evicted before b where they have these uses. More uses of an
// entry never make it go earlier.
func (x *index) compare(a *record, of use, b *record, ofB use) int {
	order := 0
	switch x.policy {
	case LRU:
		order = cmp.Compare(max(a.seq, of.last), max(b.seq, ofB.last))
	case Cost:
		order = cmp.Compare(a.worth(of), b.worth(ofB))
	}
	return cmp.Or(order, cmp.Compare(a.seq, b.seq), cmp.Compare(a.created, b.created), cmp.Compare(a.place, b.place))
}

// worth is the compile time that a byte of the entry saves, in nanoseconds (SPEC P7).
func (r *record) worth(of use) float64 {
	return float64(max(0, r.cost)) / float64(max(r.bytes, 1)) * float64(of.count+1)
}

// lines lists all entries in the order that they would go in if there were no more uses than
// those that are known, which it notes in them.
func (x *index) lines() []*record {
	for _, r := range x.entries {
		r.least = x.useOf(r)
	}
	return slices.SortedFunc(maps.Values(x.entries), func(a, b *record) int { return x.compare(a, a.least, b, b.least) })
}

// queue has the next victim first.
type queue struct {
	priority.Queue[*record]
	only string // backend of all records; empty = any
}

func (q *queue) takes(r *record) bool {
	return !r.stuck && (q.only == "" || q.only == backendOf(r.place))
}
