package pressure

import (
	"cmp"
	"context"
	"slices"

	"github.com/kiln-cache/kiln/internal/sums"
	"github.com/kiln-cache/kiln/internal/touched"
)

// Tier says what goes before what, whatever it cost to make.
type Tier uint8

// The tiers, first to go first.
const (
	Spare  Tier = iota // above its tenant's floor, or nobody's in particular
	Floors             // below the floor of a tenant
	Last               // constants
	tiers
)

// Item is one thing that a room could give.
type Item struct {
	Bytes   int64   // above 0
	Seconds float64 // it takes to make again
	Tier    Tier
}

// Cheaper orders items by tier, then by the seconds a byte that they take to make
// again.
func Cheaper(a, b Item) int {
	return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Seconds*float64(b.Bytes), b.Seconds*float64(a.Bytes)))
}

// Freed is what a room gave.
type Freed struct {
	Bytes int64 // what it no longer holds
	// Leased is the part of these that belongs to the artefacts: it stays there
	// until they evict it, too.
	Leased int64
}

// Add adds what was freed besides.
func (f *Freed) Add(more Freed) {
	f.Bytes, f.Leased = sums.Add(f.Bytes, more.Bytes), sums.Add(f.Leased, more.Leased)
}

// InParts has a turn give of one part of a list after the other, until n bytes are freed.
// give gets a part and what is missing. The parts are such that each thing may be touched
// twice and the turn still has room (package touched).
func InParts[T any](list []T, n int64, give func(part []T, n int64) Freed) (freed Freed) {
	for part := range slices.Chunk(list, Part) {
		if freed.Bytes >= n {
			break
		}
		freed.Add(give(part, n-freed.Bytes))
	}
	return freed
}

// Part is how many things the memory limit asks about in a turn.
const Part = touched.Most / 4

// Rank says what kind of room it is. Of two things that cost the same a byte, that
// of the lower rank goes first. The Artefacts own what rooms of a lower rank lease.
type Rank uint8

// The ranks, in the order in which rooms are asked to shrink.
const (
	Blobs Rank = iota
	Sessions
	Artefacts
	Constants
)

// Room is one cache, as it joins a Watch. Its functions may wait for turns of its
// actor and for frees, but for no creator. The watch calls them one at a time, also
// for as long as a shrink takes after the room has left.
type Room struct {
	Rank Rank
	// Offer lists what is resident and not in use.
	Offer func(context.Context) []Item
	// Shrink gives at least n bytes of a tier, or what it can.
	Shrink func(ctx context.Context, n int64, tier Tier) Freed
}

// Unused has a room give up at least n bytes, or what it can, of what nobody uses and whose
// value of says is wanted: what it cost decides, whatever its tier. It gives the bytes that
// went, and waits as Room.Shrink does.
type Unused func(ctx context.Context, of func(value any) bool, n int64) (freed int64)

// plan chooses the cheapest offers, by seconds a byte, that come to the bytes
// wanted. It gives the bytes by tier and room.
func plan(offers [][]Item, bytes int64) [tiers][]int64 {
	type part struct {
		Item
		room int
	}
	var all []part
	for room, items := range offers {
		for _, it := range items {
			all = append(all, part{it, room})
		}
	}
	slices.SortStableFunc(all, func(a, b part) int { return Cheaper(a.Item, b.Item) })
	var wishes [tiers][]int64
	for tier := range wishes {
		wishes[tier] = make([]int64, len(offers))
	}
	for _, p := range all {
		if bytes <= 0 {
			break
		}
		wishes[p.Tier][p.room] = sums.Add(wishes[p.Tier][p.room], p.Bytes)
		bytes -= p.Bytes
	}
	return wishes
}
