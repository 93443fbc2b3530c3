// Package policy decides which shape group a full session evicts, and with
// keep=worth whether a new one is registered at all (SPEC S1..S3, S6, S7, S9).
//
// A Policy is a plain value that belongs to one goroutine, the session's only
// writer. It holds no artefact and counts no bytes: it is told what happens, in
// order, and names a victim when asked.
//
//	g := p.Request(shape)        // one acquisition; nil: not resident
//	p.Use(g)                     // the same by handle, the fast way
//	for over() {                 // the caller counts groups and bytes
//		victim := p.Victim(standing, policy.Busy)
//		p.Remove(victim)
//	}
//	g = p.Admit(shape, bytes, seconds)
//
// A request for a shape that is not resident is noted first. The caller decides
// whether Admit follows: it asks Worth before it evicts for the shape. Requests may
// be noted in batches, later than they happened. A *Group that has been removed
// meanwhile is legal.
//
// fifo, lru and sieve are exact. duel keeps two shadow directories of keys, one
// by recency and one by decayed use counts, each as large as the capacity, and
// lets the one that missed less of late choose. That use counts outlive eviction
// matters more than anything else in it. Sieve is by Zhang et al., NSDI 2024; the
// choice between two shadow directories follows the set duelling of Qureshi et al.,
// ISCA 2007; counts grow by a growing weight instead of shrinking, as in forward
// decay by Cormode et al., ICDE 2009.
//
// Costs: a request is O(1) amortised, a victim O(log n) amortised: a group that is
// found busy is passed over once, until Ready tells that it is so no more, announced or
// not, and what holds no bytes is not looked at where bytes are short.
package policy
