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
	if p.duel != nil { // what does not fit is not saved
		p.duel.heed()
		p.duel.shrink(math.MaxInt)
		p.trim(math.MaxInt)
	}
	w := &writer{[]byte(magic)}
	w.text(string(p.kind))
	w.text(string(p.keep))
	if p.limit == Unlimited {
		w.number(0)
	} else {
		w.number(uint64(p.limit) + 1)
	}
	w.number(p.requests)
	w.number(p.clock)
	if d := p.duel; d != nil {
		w.real(d.weight)
		w.real(d.recencyMiss)
		w.real(d.countsMiss)
	}
	place := w.residents(p)
	w.remembered(p)
	w.classes(p, place)
	return binary.LittleEndian.AppendUint32(w.out, crc32.Checksum(w.out, castagnoli))
}

// writer is the counterpart of reader.
type writer struct{ out []byte }

func (w *writer) number(n uint64) { w.out = binary.AppendUvarint(w.out, n) }

func (w *writer) exponent(n int) { w.out = binary.AppendVarint(w.out, int64(n)) }

func (w *writer) real(f float64) {
	w.out = binary.LittleEndian.AppendUint64(w.out, math.Float64bits(f))
}

func (w *writer) text(s string) {
	w.number(uint64(len(s)))
	w.out = append(w.out, s...)
}

func (w *writer) group(p *Policy, g *Group) {
	w.text(g.shape.Key())
	w.out = append(w.out, p.parts(g))
	w.number(g.last)
	if p.duel != nil {
		w.real(g.count.in(p.duel.era))
	}
}

// residents gives the place of each among them.
func (w *writer) residents(p *Policy) map[*Group]uint64 {
	w.number(uint64(p.residents))
	place := make(map[*Group]uint64, p.residents)
	for g := range p.Residents() {
		place[g] = uint64(len(place))
		w.group(p, g)
		w.number(g.since)
		w.exponent(g.cost)
	}
	return place
}

// remembered writes the shapes that are not resident.
func (w *writer) remembered(p *Policy) {
	others := make([]*Group, 0, len(p.groups)-p.residents)
	for _, g := range p.groups {
		if !g.resident {
			others = append(others, g)
		}
	}
	slices.SortFunc(others, func(a, b *Group) int { return cmp.Compare(a.last, b.last) })
	w.number(uint64(len(others)))
	for _, g := range others {
		w.group(p, g)
	}
}

func (w *writer) classes(p *Policy, place map[*Group]uint64) {
	w.number(uint64(len(p.classes)))
	for _, c := range p.classes {
		w.exponent(c.exponent)
		members := c.order.members()
		w.number(uint64(len(members)))
		for _, g := range members {
			w.number(place[g])
		}
		if next := c.order.next(); next != nil {
			w.number(place[next] + 1)
		} else {
			w.number(0)
		}
	}
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
