package pool

// Claim is room that others are making for one member. It ends with one call of
// done, when every member that was asked has answered; then the claimant calls
// Accept, once. A claim that ended as soon as there is enough would leave members
// that have given and not answered yet: the next claim would think that they have
// less to give than they have.
type Claim struct {
	member *Member
	done   func(*Claim)
	floor  bool // on what a floor lacks, not of bytes to use

	// Under the pool's lock.
	bytes   int64 // that the member is to use
	need    int64 // of the pool
	granted int64 // of that, as far as the claim has taken it; counted as drawn already
	excess  int64 // members that use no more than that above their floors are not asked
	asking  int64 // bytes that members were asked for and have not answered
	awaited int   // those members
	patient int   // so many may yet answer and not give all before nobody more is asked
	stands  bool
	waits   *place   // for what is not granted
	after   []*Claim // that end one after the other after this one: for values within the floor
}

// MostAsked is how many members a claim asks at a time: it may be made in a turn, and so may
// be the answers, each of which has the next one asked (SPEC F6).
const MostAsked = 64

// lackingLocked is what has not been granted yet, and nobody is asked for.
func (c *Claim) lackingLocked() int64 {
	m := c.member
	m.settleLocked()
	c.settleLocked()
	if c.floor {
		return m.promised - m.floor - c.asking
	}
	growth := m.growthLocked(m.used+m.claimed-c.bytes, c.bytes) // more of its floor may be there by now, or used
	return min(growth, c.need) - c.granted - c.asking
}

// settleLocked takes what has come for the claim.
func (c *Claim) settleLocked() {
	if c.waits != nil {
		c.granted += c.member.pool.mu.claims.take(c.waits)
	}
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
	m.lock()
	p.renewLocked()
	used := m.used + m.claimed
	need := m.growthLocked(used, bytes)
	if need > p.capacity {
		p.mu.Unlock()
		return nil
	}
	c := &Claim{member: m, done: done, bytes: bytes}
	if m.due != nil && bytes <= m.promised-used { // the floor is being given up already
		m.due.after = append(m.due.after, c)
		m.claimed += bytes
		p.mu.Unlock()
		return c
	}
	free := p.capacity - p.mu.drawn
	c.need, c.granted = need, min(need, free)
	m.claimed += bytes
	gifts := p.claimLocked(c, used+bytes-m.promised)
	if !c.stands {
		m.claimed -= bytes
		p.mu.Unlock()
		return nil
	}
	over := p.overLocked(c)
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
	p, c := g.from.pool, g.claim
	p.mu.Lock()
	g.from.asked -= g.Bytes
	g.from.movedLocked()
	c.asking -= g.Bytes
	c.awaited--
	if c.lackingLocked() > 0 && g.from.aboveLocked() > c.excess { // else it would be asked for the same again
		c.patient--
		p.spendLocked(g.from)
	}
	gifts := p.askLocked(c)
	over := p.overLocked(c)
	p.mu.Unlock()
	send(gifts)
	if over {
		c.done(c)
	}
}

// overLocked takes a claim out if nobody is left to wait for.
func (p *Pool) overLocked(c *Claim) bool {
	if c.awaited > 0 {
		return false
	}
	if c.waits != nil {
		c.settleLocked()
		p.mu.claims.leave(c.waits)
		c.waits = nil
	}
	return true
}

// Bytes is how many the claim was made for.
func (c *Claim) Bytes() int64 { return c.bytes }

// Accept reserves what the claim was made for and reports whether the member has
// it now. What was granted and not needed goes to others. The end of one claim more of the
// member may come of it.
func (c *Claim) Accept() (ok bool) {
	m, p := c.member, c.member.pool
	m.lock()
	m.claimed -= c.bytes
	p.mu.drawn -= c.granted
	c.granted = 0
	ok = m.reserveLocked(c.bytes)
	p.releaseLocked(0)
	p.mu.Unlock()
	endNext(c.after)
	return ok
}

// endNext ends the first of these claims, and the others as each before is accepted: one
// answer of a giver, who is in a turn, ends one claim.
func endNext(claims []*Claim) {
	if len(claims) > 0 {
		c := claims[0]
		c.after = claims[1:]
		c.done(c)
	}
}
