package artefacts

// Which entries may go.
func either(*node) bool     { return true }
func complete(n *node) bool { return n.Value.resident.Load() }

// victim is the entry that goes next for one of tenant t, who may be nil: of
// those that no floor holds the least recently used, else t's own, else nil.
func (s *state) victim(t *tenant, may func(*node) bool) *node {
	n := s.order.first(may)
	if len(s.tenants) == 0 {
		return n
	}
	for ; n != nil; n = s.order.first(may) {
		other := s.tenants.of(n)
		if other == nil {
			break
		}
		s.move(n, other) // a tenant has come to use it since it was entered
	}
	for _, o := range s.tenants {
		head := s.spare(o, may)
		if head != nil && (n == nil || head.Value.used < n.Value.used) {
			n = head
		}
	}
	if n == nil && t != nil {
		n = t.first(may)
	}
	return n
}

// spare is the least recently used of t's that no floor holds. What another
// tenant's floor would hold goes over to that one.
func (s *state) spare(t *tenant, may func(*node) bool) *node {
	for n := t.first(may); n != nil && !t.holds(n); n = t.first(may) {
		other := s.tenants.of(n)
		if other == nil || other == t || other.bytes >= other.floor {
			return n
		}
		s.move(n, other)
	}
	return nil
}

// surplus is the entry that goes next where the capacity itself has shrunk: then
// floors give way, too.
func (s *state) surplus(may func(*node) bool) *node {
	n := s.victim(nil, may)
	if n != nil {
		return n
	}
	for _, t := range s.tenants {
		if head := t.first(may); head != nil && (n == nil || head.Value.used < n.Value.used) {
			n = head
		}
	}
	return n
}

// shrinkBytes evicts the least recently used artefacts until the bytes of n fit,
// and reports whether they do. Flights hold no bytes yet and are passed over:
// they are as few as creators that have been running for longer than any
// artefact was left alone.
func (s *state) shrinkBytes(n *node) bool {
	for !s.bytes.Allows(s.gauges.bytes.Load() + n.Value.bytes) {
		victim := s.victim(n.Value.tenant, complete)
		if victim == nil {
			return false
		}
		s.evict(victim)
	}
	return true
}
