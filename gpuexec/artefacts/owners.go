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

// without gives the set less owner, which must not be the only one in it.
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

// credit adds owner to the set that p holds and reports whether it was not there:
// readers on a hit and the actor may change it at the same time. Only the first use
// by an owner allocates.
func credit(p *atomic.Pointer[users], owner string) (first bool) {
	for {
		u := p.Load()
		if u.has(owner) {
			return false
		}
		if p.CompareAndSwap(u, u.with(owner)) {
			return true
		}
	}
}

// discredit takes owner out of the set and reports whether nobody is left; the set
// is then that of callers without a name.
func discredit(p *atomic.Pointer[users], owner string) (last bool) {
	for {
		u := p.Load()
		if !u.has(owner) {
			return false
		}
		less := nobody
		if last = u.only(owner); !last {
			less = u.without(owner)
		}
		if p.CompareAndSwap(u, less) {
			return last
		}
	}
}

// owned has the entries that each owner used. An entry is in it from when the actor
// learns of the use until the entry goes, or the owner is released or forgotten.
type owned map[string]uses

type uses map[*node]struct{}

func (o owned) add(owner string, n *node) {
	if owner == "" {
		return
	}
	if o[owner] == nil {
		o[owner] = make(uses)
	}
	o[owner][n] = struct{}{}
}

// drop forgets an entry that has gone.
func (o owned) drop(n *node) {
	for owner := range n.Value.users.Load().all {
		if uses := o[owner]; uses != nil {
			if delete(uses, n); len(uses) == 0 {
				delete(o, owner)
			}
		}
	}
}

// take gives what an owner used, to take the owner off all that. Later uses are not in
// it, and entries may go that are.
func (o owned) take(owner string) uses {
	taken := o[owner]
	delete(o, owner)
	return taken
}
