package lease

import "sync/atomic"

// Claim says whether a value that has left its cache while somebody uses it is still
// found by its key (SPEC C13): from when the cache kept it until it is cleared, or all
// is. The zero Claim does not hold. Safe for concurrent use.
type Claim struct{ era atomic.Pointer[Era] }

// Era is the time from one clearing of a whole cache to the next.
type Era struct{ over atomic.Bool }

// Grant has the claim hold for an era; nil ends it. A nil Claim is nobody's.
func (c *Claim) Grant(e *Era) {
	if c != nil {
		c.era.Store(e)
	}
}

// Holds reports whether the value may be found.
func (c *Claim) Holds() bool {
	e := c.era.Load()
	return e != nil && !e.over.Load()
}

// End ends the claims of an era.
func (e *Era) End() { e.over.Store(true) }
