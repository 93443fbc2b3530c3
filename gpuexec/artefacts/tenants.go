package artefacts

// tenants are the owners that have a floor.
type tenants map[string]*tenant

// tenant is an owner that has a floor. What it uses has an order of its own, so
// that the choice of a victim passes at once over all that its floor holds. An
// artefact that several tenants use counts to the floor of one.
//
// INVARIANT: bytes are those of the residents in its order, and landed is their number.
type tenant struct {
	order
	floor  int64
	bytes  int64
	landed int64
	held   int64          // of the bytes, by the floor, as state.ranks has it
	among  [scopes]*byAge // of state.ranks; nil = none
	rank   [scopes]int    // its places there; 0 = none
}

// charge counts n if it is resident, which comes (1) or goes (-1); a nil tenant does not.
func (t *tenant) charge(n *node, times int64) {
	if t != nil && n.Value.resident.Load() {
		t.bytes += times * n.Value.bytes
		t.landed += times
	}
}

// holds reports whether the tenant would be below its floor without n.
func (t *tenant) holds(n *node) bool { return t.bytes-n.Value.kept() < t.floor }

// kept is the bytes that count to the capacity: none before the landing.
func (e *entry) kept() int64 {
	if e.resident.Load() {
		return e.bytes
	}
	return 0
}

// tenantOf gives the tenant to whose floor n is to count: one that uses n and is below its
// floor, else any that uses n, else nil. It looks at a few users, of very many.
func (s *state) tenantOf(n *node) (t *tenant) {
	if len(s.tenants) == 0 {
		return nil
	}
	looked := 0
	for owner := range n.Value.users.Load().all {
		if other := s.tenants[owner]; other != nil {
			if t = other; t.bytes < t.floor {
				break
			}
		}
		if looked++; looked == few {
			break
		}
	}
	s.touched.Add(looked)
	return t
}

// leaving is an owner that has no floor left: it is being forgotten.
type leaving struct {
	owner string
	*tenant
	uses uses
}

// addFloor raises the floor of an owner, or lowers it by a negative number. It reports
// whether none is left: then the owner is to leave.
func (s *state) addFloor(owner string, bytes int64) (none bool) {
	t := s.tenants[owner]
	if t == nil {
		t = new(tenant)
		s.tenants[owner] = t
	}
	t.floor = max(0, t.floor+bytes)
	s.ranks.update(t)
	return t.floor == 0
}

// leave takes an owner out of the tenants. It gives nil where it has left, or has a floor
// again.
func (s *state) leave(owner string) *leaving {
	t := s.tenants[owner]
	if t == nil || t.floor > 0 {
		return nil
	}
	delete(s.tenants, owner)
	return &leaving{owner, t, s.owned.take(owner)}
}

// forget takes an owner that leaves off as much of what it used as a turn may, and
// reports whether nothing is left. Meanwhile its entries go by their age like others:
// they have their rank still, and no floor.
func (s *state) forget(l *leaving) (over bool) {
	for n := range l.uses {
		if !s.touched.Left() {
			return false
		}
		s.touched.Add(1)
		delete(l.uses, n)
		discredit(&n.Value.users, l.owner)
	}
	for l.oldest != nil {
		if !s.move(l.oldest, s.tenantOf(l.oldest), s.touched.Left) {
			return false
		}
	}
	return true
}
