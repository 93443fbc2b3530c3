package artefacts

import (
	"maps"
	"sync/atomic"
)

// users is the set of owners that used an artefact; the empty name stands for
// callers without one. A set is immutable and never empty.
type users struct {
	one  string
	more map[string]struct{} // besides one
}

var nobody = &users{} // what most artefacts are used by: no allocation

func usersOf(owner string) *users {
	if owner == "" {
		return nobody
	}
	return &users{one: owner}
}

func (u *users) has(owner string) bool {
	if u.one == owner {
		return true
	}
	_, ok := u.more[owner]
	return ok
}

func (u *users) only(owner string) bool { return u.one == owner && len(u.more) == 0 }

func (u *users) with(owner string) *users {
	more := make(map[string]struct{}, len(u.more)+1)
	maps.Copy(more, u.more)
	more[owner] = struct{}{}
	return &users{one: u.one, more: more}
}

// without gives the set less owner, who must not be the only one in it.
func (u *users) without(owner string) *users {
	less := &users{one: u.one, more: maps.Clone(u.more)}
	if owner != u.one {
		delete(less.more, owner)
		return less
	}
	for next := range less.more {
		less.one = next
		delete(less.more, next)
		break
	}
	return less
}

// all walks the owners.
func (u *users) all(yield func(string) bool) {
	if !yield(u.one) {
		return
	}
	for owner := range u.more {
		if !yield(owner) {
			return
		}
	}
}

// credit adds owner to the set that p holds: readers on a hit and the actor may
// change it at the same time. Only the first use by an owner allocates.
func credit(p *atomic.Pointer[users], owner string) {
	for {
		u := p.Load()
		if u.has(owner) || p.CompareAndSwap(u, u.with(owner)) {
			return
		}
	}
}

// discredit takes owner out of the set and reports whether nobody is left; the
// set is then as it was.
func discredit(p *atomic.Pointer[users], owner string) bool {
	for {
		u := p.Load()
		if !u.has(owner) {
			return false
		}
		if u.only(owner) {
			return true
		}
		if p.CompareAndSwap(u, u.without(owner)) {
			return false
		}
	}
}
