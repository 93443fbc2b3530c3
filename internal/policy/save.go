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

// Encode gives what Load makes a policy of that evicts as this one would have (SPEC S9).
// Announcements are of the moment and are not in it. Its length is that of the keys known
// plus a few dozen bytes each. It takes the logarithm of their number for each.
//
// Layout, integers as varints and floats as 8 little-endian bytes: magic and
// version; kind and keep as lengths and bytes; capacity (0 unlimited, else plus
// 1); requests; clock; three floats of the duel; residents in order of age;
// shapes that are not resident, the one asked for longest ago first; the classes
// with their orders as places among the residents; CRC-32C of all before it.
func (s *Snapshot) Encode() []byte {
	w := &writer{[]byte(magic)}
	w.text(string(s.config.Kind))
	w.text(string(s.config.Keep))
	if s.config.Groups == Unlimited {
		w.number(0)
	} else {
		w.number(uint64(s.config.Groups) + 1)
	}
	w.number(s.requests)
	w.number(s.clock)
	if s.config.Kind == Duel {
		w.real(s.weight)
		w.real(s.recencyMiss)
		w.real(s.countsMiss)
	}
	var residents, others []*record
	for i := range s.groups {
		if g := &s.groups[i]; g.resident {
			residents = append(residents, g)
		} else {
			others = append(others, g)
		}
	}
	w.residents(s, residents)
	w.others(s, others)
	w.classes(s, residents)
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

func (w *writer) group(s *Snapshot, g *record) {
	w.text(g.shape.Key())
	w.out = append(w.out, g.parts)
	w.number(g.last)
	if s.config.Kind == Duel {
		w.real(g.count.in(s.era))
	}
}

func (w *writer) residents(s *Snapshot, all []*record) {
	slices.SortFunc(all, func(a, b *record) int { return cmp.Compare(a.aged, b.aged) })
	w.number(uint64(len(all)))
	for i, g := range all {
		g.place = uint64(i)
		w.group(s, g)
		w.number(g.since)
		w.exponent(g.cost)
	}
}

// others writes the shapes that are not resident.
func (w *writer) others(s *Snapshot, all []*record) {
	slices.SortFunc(all, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.shape.Key(), b.shape.Key()))
	})
	w.number(uint64(len(all)))
	for _, g := range all {
		w.group(s, g)
	}
}

// classes writes the members of each: of fifo and sieve in the order in which they were
// registered, of the others by use.
func (w *writer) classes(s *Snapshot, residents []*record) {
	byUse := s.config.Kind == LRU || s.config.Kind == Duel
	slices.SortFunc(residents, func(a, b *record) int {
		if byUse {
			return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.last, b.last), cmp.Compare(a.number, b.number))
		}
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.number, b.number))
	})
	w.number(uint64(len(s.hands)))
	for len(residents) > 0 {
		class := residents[0].class
		n := slices.IndexFunc(residents, func(g *record) bool { return g.class != class })
		if n < 0 {
			n = len(residents)
		}
		hand, next := s.hands[class], uint64(0) // next: the one that sieve looks at next, plus 1; 0 is the oldest
		w.exponent(class)
		w.number(uint64(n))
		for _, g := range residents[:n] {
			if w.number(g.place); next == 0 && hand > 0 && g.number > hand {
				next = g.place + 1
			}
		}
		w.number(next)
		residents = residents[n:]
	}
}
