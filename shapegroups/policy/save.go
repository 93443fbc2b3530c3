package policy

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
)

// magic begins a saved state; its last byte is the version of the format.
const magic = "kiln policy\x01"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// What a group is part of, as saved.
const (
	savedVisited = 1 << iota
	savedRecent  // in the shadow directory by recency
	savedCounted // in the shadow directory by use counts
	savedAll     = savedVisited | savedRecent | savedCounted
)

// Save encodes the state, so that Load gives a policy that evicts as this one
// would (SPEC S9). Announcements are of the moment and are not in it. Its length
// is that of the keys known plus a few dozen bytes each.
//
// Layout, integers as varints and floats as 8 little-endian bytes: magic and
// version; kind and keep as lengths and bytes; capacity (0 unlimited, else plus
// 1); requests; clock; three floats of the duel; residents in order of age;
// shapes that are not resident, the one asked for longest ago first; the classes
// with their orders as places among the residents; CRC-32C of all before it.
func (p *Policy) Save() []byte {
	p.arrange()
	out := []byte(magic)
	text := func(s string) {
		out = binary.AppendUvarint(out, uint64(len(s)))
		out = append(out, s...)
	}
	number := func(n uint64) { out = binary.AppendUvarint(out, n) }
	real := func(f float64) { out = binary.LittleEndian.AppendUint64(out, math.Float64bits(f)) }

	text(string(p.kind))
	text(string(p.keep))
	if p.limit == Unlimited {
		number(0)
	} else {
		number(uint64(p.limit) + 1)
	}
	number(p.requests)
	number(p.clock)
	if d := p.duel; d != nil {
		real(d.weight)
		real(d.recencyMiss)
		real(d.countsMiss)
	}
	group := func(g *Group) {
		text(g.shape.Key())
		out = append(out, p.parts(g))
		number(g.last)
		if p.duel != nil {
			real(g.score)
		}
	}
	number(uint64(p.residents))
	place := make(map[*Group]uint64, p.residents)
	for g := range p.Residents() {
		place[g] = uint64(len(place))
		group(g)
		number(g.since)
		out = binary.AppendVarint(out, int64(g.cost))
	}
	others := make([]*Group, 0, len(p.groups)-p.residents)
	for _, g := range p.groups {
		if !g.resident {
			others = append(others, g)
		}
	}
	slices.SortFunc(others, func(a, b *Group) int { return cmp.Compare(a.last, b.last) })
	number(uint64(len(others)))
	for _, g := range others {
		group(g)
	}
	number(uint64(len(p.classes)))
	for _, c := range p.classes {
		out = binary.AppendVarint(out, int64(c.exponent))
		number(uint64(c.len))
		members, hand := c.members()
		for g := members.oldest; g != nil; g = g.links[inOrder].newer {
			number(place[g])
		}
		if hand == nil {
			number(0)
		} else {
			number(place[hand] + 1)
		}
	}
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// parts are the flags that a group is saved with.
func (p *Policy) parts(g *Group) (flags byte) {
	if g.visited {
		flags |= savedVisited
	}
	if p.duel != nil && p.duel.recency.has(g) {
		flags |= savedRecent
	}
	if p.duel != nil && p.duel.counts.has(g) {
		flags |= savedCounted
	}
	return flags
}

// members is the list that a class's order walks, and sieve's hand.
func (c *class) members() (*list, *Group) {
	switch o := c.order.(type) {
	case *registered:
		return &o.list, nil
	case *recent:
		return &o.list, nil
	case *sieve:
		return &o.list, o.hand
	}
	return &c.order.(*duelled).list, nil
}
