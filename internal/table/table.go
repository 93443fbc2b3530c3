// Package table is the hash table that readers of every room walk: one writer,
// any number of readers, no lock, no allocation and no clock on a lookup.
//
// Open addressing with linear probing over atomic pointers, at most half full,
// so a miss ends soon; a sparse table is at most an eighth full, so that nearly every
// hit is where it looks first. The full key is compared on every hit; the hash only
// places (SPEC K2). A removed node leaves a tombstone until the next rebuild, which
// publishes a new slot array with one atomic store. The nodes of a large table are
// moved there some at a time, by the calls that change it: meanwhile a look-up that finds
// nothing in the new array looks in the old one.
package table

import (
	"hash/maphash"
	"math"
	"sync/atomic"
)

// Node is one entry. Key and Sub are set once; Value belongs to the room,
// which must make what it changes there safe for its readers.
type Node[V any] struct {
	hash  uint64
	Key   string
	Sub   uint64 // second part of the key: a lane, a backend id, or 0
	Value V
}

// Table maps (Key, Sub) to nodes. Lookup and All may be called by anybody at
// any time; the other methods by the one writer. The zero Table is not usable.
type Table[V any] struct {
	slots atomic.Pointer[slots[V]]
	hash  func(string) uint64 // nil = maphash with the process's seed
	grave *Node[V]            // what stands in a removed node's slot
	room  int                 // slots for each node, at least
	live  int                 // nodes in the table; writer only
	used  int                 // slots that are not empty, of the new array; writer only
	moved int                 // slots of the old array that are dealt with; writer only
}

// slots are an array, and what is being moved there.
//
// INVARIANT: what is found in at hides what has the same key in from. A node stays in from
// when it has moved; Remove takes it out there first.
type slots[V any] struct {
	mask uint64
	at   []atomic.Pointer[Node[V]]
	from *slots[V] // nil = nothing; it is moved itself before another one is
}

// atOnce is how large an array may be of which all is moved in one call. The others are
// moved by step for each slot of a node, so that all has moved before the new array is
// full: where a node has n slots, that has room for 1/20n of the old one at least. Tests
// have others.
var atOnce, step = 1 << 12, 1 << 6

const smallest = 8

// What a node has of slots, at least.
const (
	dense  = 2
	sparse = 8
)

var seed = maphash.MakeSeed()

// New gives an empty table. hash, if not nil, places the keys instead of the
// process's own seeded hash: it may be as bad as it likes.
func New[V any](hash func(string) uint64) *Table[V] { return newTable[V](hash, dense) }

// NewSparse gives an empty table for few nodes that are looked up often: a node takes
// four times the slots, 64 to 128 bytes.
func NewSparse[V any](hash func(string) uint64) *Table[V] { return newTable[V](hash, sparse) }

func newTable[V any](hash func(string) uint64, room int) *Table[V] {
	t := &Table[V]{hash: hash, grave: new(Node[V]), room: room}
	t.slots.Store(newSlots[V](smallest))
	return t
}

func newSlots[V any](n int) *slots[V] {
	return &slots[V]{mask: uint64(n - 1), at: make([]atomic.Pointer[Node[V]], n)}
}

// Hash is the hash of a key, the same in all tables with the same hash function.
func (t *Table[V]) Hash(key string) uint64 {
	if t.hash != nil {
		return t.hash(key)
	}
	return maphash.String(seed, key)
}

// mixed adds the second part of a key to the hash of the first. Adding it twice
// takes it off again.
func mixed(hash, sub uint64) uint64 {
	return hash ^ sub*0x9e3779b97f4a7c15 // 2^64 / golden ratio spreads small numbers
}

// Lookup gives the node of a key, or nil.
func (t *Table[V]) Lookup(key string, sub uint64) *Node[V] {
	return t.Hashed(t.Hash(key), key, sub)
}

// Hashed is Lookup with a precomputed Hash(key).
func (t *Table[V]) Hashed(hash uint64, key string, sub uint64) *Node[V] {
	h := mixed(hash, sub)
	for s := t.slots.Load(); s != nil; s = s.from {
		for i := h & s.mask; ; i = (i + 1) & s.mask {
			n := s.at[i].Load()
			if n == nil {
				break
			}
			if n.hash == h && n.Sub == sub && n.Key == key && n != t.grave {
				return n
			}
		}
	}
	return nil
}

// find gives where s itself has a node of this one's key, or the place for it.
func (t *Table[V]) find(s *slots[V], n *Node[V]) (at *atomic.Pointer[Node[V]], old *Node[V]) {
	for i := n.hash & s.mask; ; i = (i + 1) & s.mask {
		old = s.at[i].Load()
		if old == nil || old.hash == n.hash && old.Sub == n.Sub && old.Key == n.Key && old != t.grave {
			return &s.at[i], old
		}
	}
}

// NewNode makes a node for the key without entering it, so that the writer can
// fill in its Value first.
func (t *Table[V]) NewNode(key string, sub uint64) *Node[V] {
	return t.HashedNode(t.Hash(key), key, sub)
}

// HashedNode is NewNode with a precomputed Hash(key).
func (t *Table[V]) HashedNode(hash uint64, key string, sub uint64) *Node[V] {
	return &Node[V]{hash: mixed(hash, sub), Key: key, Sub: sub}
}

// Hash is the hash of the node's key, without Sub.
func (n *Node[V]) Hash() uint64 { return mixed(n.hash, n.Sub) }

// Put publishes a node made by NewNode and gives the one it replaces, or nil.
func (t *Table[V]) Put(n *Node[V]) *Node[V] {
	t.move(step * t.room)
	s := t.slots.Load()
	if t.room*(t.used+1) > len(s.at) {
		s = t.rebuild()
	}
	at, old := t.find(s, n)
	at.Store(n)
	if old != nil {
		return old
	}
	t.used++
	if s.from != nil {
		_, old = t.find(s.from, n) // which n hides
	}
	if old == nil {
		t.live++
	}
	return old
}

// Remove takes this very node out; it reports false if it is not in the table.
func (t *Table[V]) Remove(n *Node[V]) bool {
	t.move(step * t.room)
	s := t.slots.Load()
	at, there := t.find(s, n)
	if there != nil && there != n {
		return false
	}
	if s.from != nil {
		old, hidden := t.find(s.from, n)
		if there == nil && hidden != n {
			return false
		}
		if hidden != nil { // before what hides it
			old.Store(t.grave)
		}
	}
	switch {
	case there != nil:
		at.Store(t.grave)
	case s.from == nil:
		return false
	}
	t.live--
	return true
}

// rebuild publishes slots without tombstones, with room for a quarter more nodes at
// least, so that its cost per Put stays constant.
func (t *Table[V]) rebuild() *slots[V] {
	t.move(math.MaxInt) // the rest of what is under way, if there is any
	old, size := t.slots.Load(), smallest
	for size/t.room < t.live+t.live/4+1 || size < len(old.at)/4 {
		size *= 2
	}
	s := newSlots[V](size)
	s.from = old
	t.used, t.moved = 0, 0
	t.slots.Store(s)
	if len(old.at) <= atOnce {
		t.move(math.MaxInt)
	}
	return t.slots.Load()
}

// move moves nodes from the next slots of the old array to the new one, if there is one.
func (t *Table[V]) move(most int) {
	s := t.slots.Load()
	if s.from == nil {
		return
	}
	for ; most > 0 && t.moved < len(s.from.at); most-- {
		n := s.from.at[t.moved].Load()
		if t.moved++; n == nil || n == t.grave {
			continue
		}
		if at, newer := t.find(s, n); newer == nil {
			at.Store(n)
			t.used++
		}
	}
	if t.moved == len(s.from.at) {
		t.slots.Store(&slots[V]{mask: s.mask, at: s.at})
	}
}

// Len is the number of nodes; for the writer.
func (t *Table[V]) Len() int { return t.live }

// Clear takes every node out at once.
func (t *Table[V]) Clear() {
	t.live, t.used, t.moved = 0, 0, 0
	t.slots.Store(newSlots[V](smallest))
}

// All calls f for the nodes of one moment's slots until it returns false.
// Nodes that are put or removed meanwhile may or may not be seen.
func (t *Table[V]) All(f func(*Node[V]) bool) {
	s := t.slots.Load()
	if s.from != nil {
		for i := range s.from.at {
			n := s.from.at[i].Load()
			if n == nil || n == t.grave {
				continue
			}
			if _, newer := t.find(s, n); newer != nil {
				n = newer
			}
			if !f(n) {
				return
			}
		}
	}
	for i := range s.at {
		n := s.at[i].Load()
		if n == nil || n == t.grave {
			continue
		}
		if s.from != nil {
			if _, before := t.find(s.from, n); before != nil {
				continue // it was shown, or what hides it now
			}
		}
		if !f(n) {
			return
		}
	}
}

// Walk is a walk of the one writer over a table, which it may change between the steps.
// The zero Walk is at the beginning.
type Walk[V any] struct {
	slots *slots[V]
	next  int
}

// Step calls f, which may remove what it is given and put nothing, for the nodes in the next
// slots, as many as most says. It gives how many slots it looked at and whether the walk is
// over: all nodes that were there when it began, and are still, have been given.
func (w *Walk[V]) Step(t *Table[V], most int, f func(*Node[V])) (looked int, over bool) {
	if t.slots.Load().from != nil {
		t.move(most) // first; then there is one array
		return most, false
	}
	s := t.slots.Load()
	if s != w.slots {
		w.slots, w.next = s, 0
	}
	from := w.next
	for end := min(from+most, len(s.at)); w.next < end; w.next++ {
		if n := s.at[w.next].Load(); n != nil && n != t.grave {
			f(n)
		}
	}
	return w.next - from, w.next == len(s.at)
}
