package artefacts

import "container/heap"

// ranks are the tenants that have entries above their floors, by when the oldest
// entry of each was used: a heap. They make the choice of a victim cost the
// logarithm of the number of tenants.
//
// INVARIANT: a tenant is in it exactly if it has entries and its floor does not hold
// the oldest, and its key is the use of that.
type ranks []*tenant

func (r ranks) Len() int           { return len(r) }
func (r ranks) Less(a, b int) bool { return r[a].oldest.Value.used < r[b].oldest.Value.used }

func (r ranks) Swap(a, b int) {
	r[a], r[b] = r[b], r[a]
	r[a].rank, r[b].rank = a+1, b+1
}

// Push and Pop are for package heap.
func (r *ranks) Push(t any) {
	*r = append(*r, t.(*tenant))
	t.(*tenant).rank = len(*r)
}

func (r *ranks) Pop() any {
	last := len(*r) - 1
	t := (*r)[last]
	t.rank = 0
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
	above := t.oldest != nil && !t.holds(t.oldest)
	switch {
	case above && t.rank == 0:
		heap.Push(r, t)
	case above:
		heap.Fix(r, t.rank-1)
	case t.rank != 0:
		heap.Remove(r, t.rank-1)
	}
}

// setAside takes a tenant out until it is updated.
func (r *ranks) setAside(t *tenant) { heap.Remove(r, t.rank-1) }
