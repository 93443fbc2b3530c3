package artefacts

import "container/heap"

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

// byAge is a heap.
type byAge []*tenant

func (r byAge) Len() int           { return len(r) }
func (r byAge) Less(a, b int) bool { return r[a].oldest.Value.used < r[b].oldest.Value.used }

func (r byAge) Swap(a, b int) {
	r[a], r[b] = r[b], r[a]
	r[a].rank, r[b].rank = a, b
}

// Push and Pop are for package heap.
func (r *byAge) Push(t any) {
	t.(*tenant).rank = len(*r)
	*r = append(*r, t.(*tenant))
}

func (r *byAge) Pop() any {
	last := len(*r) - 1
	t := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return t
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
		heap.Fix(among, t.rank)
	case t.oldest != nil:
		t.among = among
		heap.Push(among, t)
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
	heap.Remove(t.among, t.rank)
	t.among = nil
}
