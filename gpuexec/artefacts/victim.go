package artefacts

import (
	"math"

	"github.com/kiln-cache/kiln/internal/sums"
)

// scope says which entries may go.
type scope bool

const (
	either   scope = true
	complete scope = false // not those that fly
)

// victim is the entry that goes next for a newcomer of tenant t, which may be nil:
// the least recently used of those that no floor holds, else of t's own, else nil.
func (s *state) victim(t *tenant, may scope) *node {
	n := s.order.first(may)
	if len(s.tenants) == 0 {
		return n
	}
	for ; n != nil; n = s.order.first(may) {
		other := s.tenantOf(n)
		if other == nil {
			break
		}
		s.move(n, other) // a tenant has come to use it since it was entered
	}
	var seen []*tenant
	for len(s.ranks.above) > 0 {
		o := s.ranks.above[0]
		oldest := o.oldest
		if n != nil && n.Value.used < oldest.Value.used {
			break
		}
		head := s.oldestSpare(o, may)
		if o.oldest != oldest {
			continue // it has gone over to another tenant
		}
		if head != nil && (n == nil || head.Value.used < n.Value.used) {
			n = head
		}
		if head == oldest {
			break
		}
		o.setAside() // what may go of it is not its oldest
		seen = append(seen, o)
	}
	for _, o := range seen {
		s.ranks.update(o)
	}
	if n == nil && t != nil {
		n = t.first(may)
	}
	return n
}

// oldestSpare is t's least recently used entry if no floor holds it, else nil. An entry
// that another tenant's floor would hold goes over to that tenant.
func (s *state) oldestSpare(t *tenant, may scope) *node {
	for n := t.first(may); n != nil && !t.holds(n); n = t.first(may) {
		other := s.tenantOf(n)
		if other == nil || other == t || other.bytes >= other.floor {
			return n
		}
		s.move(n, other)
	}
	return nil
}

// surplus is the entry that goes next when the capacity itself was lowered: floors
// give way then, too.
func (s *state) surplus(may scope) *node {
	n := s.victim(nil, may)
	if n != nil {
		return n
	}
	var seen []*tenant
	for _, among := range []*byAge{&s.ranks.above, &s.ranks.held} {
		for len(*among) > 0 && (n == nil || (*among)[0].oldest.Value.used < n.Value.used) {
			t := (*among)[0]
			s.touched.Add(1)
			if head := t.first(may); head != nil && (n == nil || head.Value.used < n.Value.used) {
				n = head
			}
			t.setAside() // what may go of it may be younger than what may go of another
			seen = append(seen, t)
		}
	}
	for _, t := range seen {
		s.ranks.update(t)
	}
	return n
}

// shrinkBytes evicts the least recently used artefacts until the bytes of n, less
// room, fit, and reports whether they do. It passes over flights, which hold no bytes yet.
func (s *state) shrinkBytes(n *node, room int64) bool {
	t := n.Value.tenant
	if n.Value.in == nil {
		t = s.tenantOf(n)
	}
	for {
		all := sums.Add(s.gauges.bytes.Load()-room, n.Value.bytes)
		if all < math.MaxInt64 && s.bytes.Allows(all) { // the largest sum is a bound, too (SPEC Q5)
			return true
		}
		victim := s.victim(t, complete)
		if victim == nil {
			return false
		}
		s.evict(victim, ForBytes)
	}
}
