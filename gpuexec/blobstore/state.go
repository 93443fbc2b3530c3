package blobstore

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// index is what one process knows of the entries of a directory. It is pure: it uses
// no file, clock or lock. Where it differs from the directory, the directory is right.
type index struct {
	policy  Policy
	entries map[string]*record // by place
	own     uses               // those of this writer's file
	others  uses               // those of other writers' files, as they were read last
	bytes   int64
}

// uses are by place.
type uses map[string]use

// use counts the requests for one entry.
type use struct {
	created int64 // of the entry: its place may be taken by another one later
	count   int64
	last    int64 // nanoseconds since 1970
}

// record is one entry. place is its folder, below the root.
type record struct {
	place string
	bytes int64 // of key.bin and kernel.bin

	known   bool  // the fields below were read
	created int64 // nanoseconds since 1970
	cost    time.Duration
}

func newIndex(policy Policy) *index {
	return &index{policy: policy, entries: make(map[string]*record), own: uses{}, others: uses{}}
}

// add notes an entry in place of one that is known at its place.
func (x *index) add(r record) {
	x.remove(r.place)
	x.entries[r.place] = &r
	x.bytes += r.bytes
}

// remove forgets the entry of a place.
func (x *index) remove(place string) {
	if r, ok := x.entries[place]; ok {
		delete(x.entries, place)
		delete(x.own, place)
		delete(x.others, place)
		x.bytes -= r.bytes
	}
}

// add adds requests for an entry. Of two entries of one place the younger counts.
func (us uses) add(place string, u use) {
	old := us[place]
	switch {
	case old.created > u.created:
	case old.created < u.created:
		us[place] = u
	default:
		us[place] = use{u.created, old.count + u.count, max(old.last, u.last)}
	}
}

func (us uses) addAll(more uses) {
	for place, u := range more {
		us.add(place, u)
	}
}

// useOf sums the requests for an entry.
func (x *index) useOf(r *record) (sum use) {
	for _, us := range [...]uses{x.own, x.others} {
		if u := us[r.place]; u.created == r.created {
			sum.count += u.count
			sum.last = max(sum.last, u.last)
		}
	}
	return sum
}

// inherit copies what old knows of the entries that were found on the disk again.
func (x *index) inherit(old *index) {
	for place, r := range x.entries {
		if o, ok := old.entries[place]; ok && o.bytes == r.bytes && o.known {
			r.known, r.created, r.cost = true, o.created, o.cost
		}
	}
	x.own, x.others = old.own, old.others
}

// unknown lists the entries of which only the size was seen.
func (x *index) unknown() []*record {
	var list []*record
	for _, r := range x.entries {
		if !r.known {
			list = append(list, r)
		}
	}
	return list
}

// surplus lists the entries to evict so that the bytes are within capacity, in the
// order of the policy. keep is the place of the newcomer, which stays (SPEC P7). If
// only is not empty, entries of that backend alone are evicted. All entries must be
// known.
func (x *index) surplus(capacity int64, keep, only string) []*record {
	if x.bytes <= capacity {
		return nil
	}
	q := queue{before: x.before}
	for place, r := range x.entries {
		if place != keep && (only == "" || only == backendOf(place)) {
			q.list = append(q.list, r)
		}
	}
	heap.Init(&q)
	var out []*record
	for left := x.bytes; left > capacity && q.Len() > 0; {
		r := heap.Pop(&q).(*record)
		left -= r.bytes
		out = append(out, r)
	}
	return out
}

// before reports whether a is evicted before b.
func (x *index) before(a, b *record) bool {
	order := 0
	switch x.policy {
	case LRU:
		order = cmp.Compare(max(a.created, x.useOf(a).last), max(b.created, x.useOf(b).last))
	case Cost:
		order = cmp.Compare(x.worth(a), x.worth(b))
	}
	return cmp.Or(order, cmp.Compare(a.created, b.created), cmp.Compare(a.place, b.place)) < 0
}

// worth is the compile time that a byte of the entry saves, in nanoseconds (SPEC P7).
func (x *index) worth(r *record) float64 {
	return float64(r.cost) * float64(x.useOf(r).count+1) / float64(max(r.bytes, 1))
}

// places lists all entries in order.
func (x *index) places() []string {
	list := make([]string, 0, len(x.entries))
	for place := range x.entries {
		list = append(list, place)
	}
	slices.Sort(list)
	return list
}

// queue is a heap of records, the next victim first.
type queue struct {
	list   []*record
	before func(a, b *record) bool
}

func (q *queue) Len() int           { return len(q.list) }
func (q *queue) Less(i, j int) bool { return q.before(q.list[i], q.list[j]) }
func (q *queue) Swap(i, j int)      { q.list[i], q.list[j] = q.list[j], q.list[i] }
func (q *queue) Push(v any)         { q.list = append(q.list, v.(*record)) }
func (q *queue) Pop() any {
	last := q.list[len(q.list)-1]
	q.list = q.list[:len(q.list)-1]
	return last
}
