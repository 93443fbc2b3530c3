package artefacts

import (
	"fmt"
	"math"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// tenants are the owners that have a floor.
//
// INVARIANT: their floors are together within the capacity in bytes, unless that
// is 0 and nothing is kept at all.
type tenants map[string]*tenant

// tenant is one of them: what it uses has an order of its own, so that the
// choice of a victim passes over all that a floor holds at once. An artefact
// that several tenants use counts to the floor of one.
//
// INVARIANT: bytes are those of the residents in its order.
type tenant struct {
	order
	floor int64
	bytes int64
}

// charge counts bytes; a nil tenant does not.
func (t *tenant) charge(bytes int64) {
	if t != nil {
		t.bytes += bytes
	}
}

// holds reports whether its floor would be touched if n went.
func (t *tenant) holds(n *node) bool { return t.bytes-n.Value.kept() < t.floor }

// kept is what n takes of the bytes: nothing before it has landed.
func (e *entry) kept() int64 {
	if e.resident.Load() {
		return e.bytes
	}
	return 0
}

// of gives the tenant to whose floor n counts best: one that is below it, else
// any that uses n, else nil.
func (all tenants) of(n *node) (t *tenant) {
	if len(all) == 0 {
		return nil
	}
	for owner := range n.Value.users.Load().all {
		if other := all[owner]; other != nil {
			if t = other; t.bytes < t.floor {
				break
			}
		}
	}
	return t
}

// floors is the sum of all.
func (all tenants) floors() (bytes int64) {
	for _, t := range all {
		bytes += t.floor
	}
	return bytes
}

// fit refuses so many bytes more of floors than a capacity holds.
func (all tenants) fit(more int64, capacity limit.Limit) error {
	most, counted := capacity.Value()
	if !counted || most == 0 {
		most = math.MaxInt64
	}
	if floors := all.floors(); more > most-floors {
		return fmt.Errorf("%w: floors of %d bytes, and %d more, in %v bytes: raise the capacity or lower the floors",
			fault.ErrTooLarge, floors, more, capacity)
	}
	return nil
}

// addFloor raises or lowers the floor of an owner. One that has none left is
// forgotten.
func (s *state) addFloor(owner string, bytes int64) error {
	if bytes > 0 {
		if err := s.tenants.fit(bytes, s.bytes); err != nil {
			return err
		}
	}
	t := s.tenants[owner]
	if t == nil {
		t = new(tenant)
		s.tenants[owner] = t
	}
	if t.floor += bytes; t.floor > 0 {
		return nil
	}
	delete(s.tenants, owner)
	s.owned.forget(owner)
	for t.oldest != nil {
		s.move(t.oldest, s.tenants.of(t.oldest))
	}
	return nil
}
