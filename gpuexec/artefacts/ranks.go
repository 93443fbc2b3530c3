package artefacts

import "github.com/kiln-cache/kiln/internal/priority"

// ranks are the tenants that have entries, by when the oldest entry of each was used:
// those above their floors, and those whose floor holds that entry. They make the choice
// of a victim cost the logarithm of the number of tenants.
//
// INVARIANT: a tenant with entries is in one of the two, and its key is the use of the
// oldest.
type ranks struct {
	above, held byAge
	bytes       int64 // that the floors of all hold
}

// byAge has the tenant with the oldest entry first.
type byAge = priority.Queue[*tenant]

func newByAge() byAge {
	return priority.New(func(a, b *tenant) bool { return a.oldest.Value.used < b.oldest.Value.used }, func(t *tenant) *int { return &t.rank })
}

// update ranks a tenant anew, at once after its oldest entry, its bytes or its floor
// have changed. A nil tenant has no rank.
func (r *ranks) update(t *tenant) {
	if t == nil {
		return
	}
	held := min(t.bytes, t.floor)
	r.bytes += held - t.held
	t.held = held
	among := &r.above
	if t.oldest != nil && t.holds(t.oldest) {
		among = &r.held
	}
	if t.among != nil && (t.among != among || t.oldest == nil) {
		t.setAside()
	}
	switch {
	case t.among != nil:
		among.Fix(t)
	case t.oldest != nil:
		t.among = among
		among.Push(t)
	}
}

// heldBeside is how many bytes the floors of all others than t hold; t may be nil.
func (r *ranks) heldBeside(t *tenant) int64 {
	if t == nil {
		return r.bytes
	}
	return r.bytes - t.held
}

// setAside takes a tenant out until it is updated.
func (t *tenant) setAside() {
	t.among.Remove(t)
	t.among = nil
}
