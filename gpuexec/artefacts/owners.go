package artefacts

import (
	"sync"
	"sync/atomic"
)

// users is the set of owners that used an artefact; the empty name stands for
// callers without one. It is never empty. It has one owner for good, or it is for many:
// then readers and the actor change it in place.
type users struct {
	one  string
	many *sync.Map // of owners; nil = one alone
}

var nobody = &users{} // what most artefacts are used by: no allocation

func usersOf(owner string) *users {
	if owner == "" {
		return nobody
	}
	return &users{one: owner}
}

func (u *users) has(owner string) bool {
	if u.many == nil {
		return u.one == owner
	}
	_, ok := u.many.Load(owner)
	return ok
}

// all walks the owners.
func (u *users) all(yield func(string) bool) {
	if u.many == nil {
		yield(u.one)
		return
	}
	u.many.Range(func(owner, _ any) bool { return yield(owner.(string)) })
}

// credit adds owner to the set that p holds and reports whether it was not there:
// readers on a hit and the actor may do so at the same time. Only the first use
// by an owner allocates.
func credit(p *atomic.Pointer[users], owner string) (first bool) {
	for {
		u := p.Load()
		if u.has(owner) {
			return false
		}
		if u.many != nil {
			_, had := u.many.LoadOrStore(owner, nil)
			return !had
		}
		more := &users{many: new(sync.Map)}
		more.many.Store(u.one, nil)
		more.many.Store(owner, nil)
		if p.CompareAndSwap(u, more) {
			return true
		}
	}
}

// discredit takes owner out of the set and reports whether nobody is left; the set
// is then that of callers without a name. It is the actor's. A reader that is added to
// the old set at that moment is added again by its next use.
func discredit(p *atomic.Pointer[users], owner string) (last bool) {
	u := p.Load()
	for u.many == nil {
		if u.one != owner {
			return false
		}
		if p.CompareAndSwap(u, nobody) {
			return true
		}
		u = p.Load()
	}
	if _, had := u.many.LoadAndDelete(owner); !had {
		return false
	}
	for range u.all {
		return false
	}
	p.Store(nobody)
	return true
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
