package pool

// givers is members, of which the one that uses most above its floor is first. It is a
// leftist tree (C. A. Crane, Linear Lists and Priority Queues as Balanced Binary Trees,
// Stanford, 1972), so that two become one: each call costs the logarithm of their number.
type givers struct{ root *Member }

// among is where a member stands in one of these.
type among struct {
	up, left, right *Member
	rank            int // members on the way down to the right, itself too; 0 = it stands nowhere
}

func (m *Member) rank() int {
	if m == nil {
		return 0
	}
	return m.at.rank
}

// lean has the longer way down be the left one, and reports whether the rank has changed.
func (m *Member) lean() bool {
	at := &m.at
	if at.left.rank() < at.right.rank() {
		at.left, at.right = at.right, at.left
	}
	had := at.rank
	at.rank = at.right.rank() + 1
	return at.rank != had
}

// push puts in a member that stands nowhere.
func (g *givers) push(m *Member) {
	m.at.rank = 1
	g.root = melded(g.root, m)
}

// remove takes a member out, which is there.
func (g *givers) remove(m *Member) {
	at := m.at
	below := melded(at.left, at.right)
	m.at = among{}
	if below != nil {
		below.at.up = at.up
	}
	switch {
	case at.up == nil:
		g.root = below
	case at.up.at.left == m:
		at.up.at.left = below
	default:
		at.up.at.right = below
	}
	for up := at.up; up != nil && up.lean(); up = up.at.up {
	}
}

// take has all of another be in this one.
func (g *givers) take(other *givers) {
	g.root = melded(g.root, other.root)
	other.root = nil
}

// melded makes one tree of two.
func melded(a, b *Member) *Member {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	if a.aboveLocked() < b.aboveLocked() {
		a, b = b, a
	}
	a.at.right = melded(a.at.right, b)
	a.at.right.at.up = a
	a.lean()
	return a
}

// amongLocked is where a member stands that has not left.
func (m *Member) amongLocked() *givers {
	if m.spent == m.pool.mu.renewed {
		return &m.pool.mu.spent
	}
	return &m.pool.mu.givers
}

// movedLocked follows each change of what the member uses above its floor.
func (m *Member) movedLocked() {
	at, above := &m.at, m.aboveLocked()
	switch {
	case at.rank == 0: // it has left
	case at.up != nil && at.up.aboveLocked() < above,
		at.left != nil && at.left.aboveLocked() > above,
		at.right != nil && at.right.aboveLocked() > above:
		g := m.amongLocked()
		g.remove(m)
		g.push(m)
	}
}

// spendLocked has a member be asked no more until the next claim.
func (p *Pool) spendLocked(m *Member) {
	if m.at.rank > 0 && m.spent != p.mu.renewed {
		p.mu.givers.remove(m)
		m.spent = p.mu.renewed
		p.mu.spent.push(m)
	}
}

// renewLocked has who is spent be asked again.
func (p *Pool) renewLocked() {
	p.mu.givers.take(&p.mu.spent)
	p.mu.renewed++
}
