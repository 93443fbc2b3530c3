package artefacts

import (
	"cmp"

	"github.com/kiln-cache/kiln/internal/priority"
)

// ranks are the tenants that have entries, by when the head of each was used, for each
// scope: those above their floors, and those whose floor holds the head. They make the
// choice of a victim cost the logarithm of the number of tenants.
//
// INVARIANT: a tenant with a head is in one of the two, and its key is the use of the head.
type ranks struct {
	above, held [scopes]byAge
	bytes       int64 // that the floors of all hold
}

// byAge has the tenant with the oldest head first.
type byAge = priority.Queue[*tenant]

func newRanks() (r ranks) {
	for may := range scopes {
		before := func(a, b *tenant) bool { return a.head(may).Value.used < b.head(may).Value.used }
		place := func(t *tenant) *int { return &t.rank[may] }
		r.above[may], r.held[may] = priority.New(before, place), priority.New(before, place)
	}
	return r
}

// head is an entry of t that is no younger than the oldest that may go, or nil if none may:
// firstOf makes it that entry.
func (t *tenant) head(may scope) *node {
	switch {
	case may == either:
		return t.oldest
	case t.landed == 0:
		return nil
	}
	return cmp.Or(t.flown, t.oldest)
}

// firstOf is the first of t.
func (s *state) firstOf(t *tenant, may scope, left func() bool) (n *node, over bool) {
	n, over = s.first(&t.order, may, left)
	s.ranks.update(t) // by what it had to pass
	return n, over
}

// update ranks a tenant anew, at once after its heads, its bytes or its floor
// have changed. A nil tenant has no rank.
func (r *ranks) update(t *tenant) {
	if t == nil {
		return
	}
	held := min(t.bytes, t.floor)
	r.bytes += held - t.held
	t.held = held
	for may := range scopes {
		head, among := t.head(may), &r.above[may]
		if head != nil && t.holds(head) {
			among = &r.held[may]
		}
		if was := t.among[may]; was != nil && (was != among || head == nil) {
			was.Remove(t)
			t.among[may] = nil
		}
		switch {
		case t.among[may] != nil:
			among.Fix(t)
		case head != nil:
			t.among[may] = among
			among.Push(t)
		}
	}
}

// heldBeside is how many bytes the floors of all others than t hold; t may be nil.
func (r *ranks) heldBeside(t *tenant) int64 {
	if t == nil {
		return r.bytes
	}
	return r.bytes - t.held
}
