package pool

import "slices"

// Claim is room that others are making for one member. It ends with one call of
// done, when every member that was asked has answered; then the claimant calls
// Accept, once. A claim that ended as soon as there is enough would leave members
// that have given and not answered yet: the next claim would think that they have
// less to give than they have.
type Claim struct {
	member *Member
	done   func(*Claim)
	floor  bool // of a floor, not of bytes to use

	// Under the pool's lock.
	bytes   int64 // that the member is to use
	need    int64 // of the pool
	granted int64 // of that, counted as drawn already
	awaited int   // members that have not answered
}

// Gift is what one member is asked to release for a claim.
type Gift struct {
	Bytes int64
	claim *Claim
	from  *Member
}

// Claim asks others to make room for n bytes to use. It asks members that use more
// above their floors than m would then. It gives nil where these cannot make enough
// room: then m makes room among its own. done is called once, from any goroutine,
// perhaps before Claim returns, and must not wait.
func (m *Member) Claim(bytes int64, done func(*Claim)) *Claim {
	p := m.pool
	p.mu.Lock()
	used := m.used + m.claimed
	need := m.growthLocked(used, bytes)
	if need > p.capacity {
		p.mu.Unlock()
		return nil
	}
	c, gifts := p.claimLocked(m, need, used+bytes-m.floor, done)
	if c != nil {
		c.bytes = bytes
		m.claimed += bytes
	}
	over := c != nil && p.overLocked(c)
	p.mu.Unlock()
	send(gifts)
	if over {
		done(c)
	}
	return c
}

// send asks for the gifts, without the lock.
func send(gifts []Gift) {
	for _, g := range gifts {
		g.from.give(g)
	}
}

// Answered is called once for each gift, after what was released for it, be it
// more, less or nothing.
func (g Gift) Answered() {
	p := g.from.pool
	p.mu.Lock()
	g.from.asked -= g.Bytes
	g.from.movedLocked()
	g.claim.awaited--
	over := p.overLocked(g.claim)
	p.mu.Unlock()
	if over {
		g.claim.done(g.claim)
	}
}

// overLocked takes a claim out if nobody is left to wait for.
func (p *Pool) overLocked(c *Claim) bool {
	if c.awaited > 0 {
		return false
	}
	p.mu.claims = slices.DeleteFunc(p.mu.claims, func(o *Claim) bool { return o == c })
	return true
}

// Bytes is how many the claim was made for.
func (c *Claim) Bytes() int64 { return c.bytes }

// Accept reserves what the claim was made for and reports whether the member has
// it now. What was granted and not needed goes to others.
func (c *Claim) Accept() (ok bool) {
	m, p := c.member, c.member.pool
	p.mu.Lock()
	m.claimed -= c.bytes
	p.mu.drawn -= c.granted
	c.granted = 0
	switch {
	case !c.floor:
		ok = m.reserveLocked(c.bytes)
	case c.need <= p.capacity-p.mu.drawn:
		ok = true
		p.mu.drawn += max(c.need, m.used) - m.used
		m.settleLocked(c.need)
	}
	p.releaseLocked(0)
	p.mu.Unlock()
	return ok
}
