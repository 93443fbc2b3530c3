package artefacts

import (
	"cmp"
	"hash/maphash"
	"sync/atomic"

	"github.com/kiln-cache/kiln/internal/touched"
)

// few is how many users of an entry are looked at, at a time.
const few = touched.Most / 16

// users is the set of owners that used an artefact; the empty name stands for
// callers without one. A set is immutable and never empty. It is a treap: ordered by
// name from left to right, and by the hash of the name from the top. So a set that
// differs by one owner shares all of it but a path, however large it is.
type users struct {
	owner       string
	rank        uint64
	left, right *users
}

var (
	seed   = maphash.MakeSeed()
	nobody = newUsers("") // what most artefacts are used by: no allocation
)

func newUsers(owner string) *users { return &users{owner: owner, rank: maphash.String(seed, owner)} }

func usersOf(owner string) *users {
	if owner == "" {
		return nobody
	}
	return newUsers(owner)
}

func (u *users) has(owner string) bool {
	for u != nil && u.owner != owner {
		if owner < u.owner {
			u = u.left
		} else {
			u = u.right
		}
	}
	return u != nil
}

func (u *users) only(owner string) bool { return u.owner == owner && u.left == nil && u.right == nil }

// with gives the set and one more, which is not in it.
func (u *users) with(one *users) *users {
	if u == nil || one.rank > u.rank {
		left, right := u.split(one.owner)
		return &users{one.owner, one.rank, left, right}
	}
	more := *u
	if one.owner < u.owner {
		more.left = u.left.with(one)
	} else {
		more.right = u.right.with(one)
	}
	return &more
}

// split gives the owners before one, and those after it.
func (u *users) split(owner string) (left, right *users) {
	if u == nil {
		return nil, nil
	}
	part := *u
	if u.owner < owner {
		part.right, right = u.right.split(owner)
		return &part, right
	}
	if u.owner == owner {
		return u.left, u.right
	}
	left, part.left = u.left.split(owner)
	return left, &part
}

// without gives the set less owner, which is in it; nil if that was all.
func (u *users) without(owner string) *users {
	if u.owner == owner {
		return u.left.join(u.right)
	}
	less := *u
	if owner < u.owner {
		less.left = u.left.without(owner)
	} else {
		less.right = u.right.without(owner)
	}
	return &less
}

// join is one set of two, where all owners of u come before those of right.
func (u *users) join(right *users) *users {
	if u == nil || right == nil {
		return cmp.Or(u, right)
	}
	if u.rank > right.rank {
		both := *u
		both.right = u.right.join(right)
		return &both
	}
	both := *right
	both.left = u.join(right.left)
	return &both
}

// all walks the owners, by name.
func (u *users) all(yield func(string) bool) { u.walk(yield) }

func (u *users) walk(yield func(string) bool) (more bool) {
	return u == nil || u.left.walk(yield) && yield(u.owner) && u.right.walk(yield)
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
		if p.CompareAndSwap(u, u.with(newUsers(owner))) {
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

// unuse forgets an entry that has gone, of as many of the users given as most says, and
// gives the others.
func (s *state) unuse(n *node, of *users, most int) (rest *users) {
	looked := 0
	defer func() { s.touched.Add(looked) }()
	for owner := range of.all {
		if looked == most {
			_, rest = of.split(owner)
			return rest.with(newUsers(owner))
		}
		looked++
		if uses := s.owned[owner]; uses != nil {
			if delete(uses, n); len(uses) == 0 {
				delete(s.owned, owner)
			}
		}
	}
	return nil
}

// unlisted is an entry that has gone, and owners that it is still listed for: of one that
// very many used a turn takes only a part.
type unlisted struct {
	n  *node
	of *users
}

// unlist takes an entry that has gone off the lists of its users, or of some: calls of
// unlistMore follow.
func (s *state) unlist(n *node) {
	if rest := s.unuse(n, n.Value.users.Load(), few); rest != nil {
		s.unlisted = append(s.unlisted, unlisted{n, rest})
	}
}

// unlistMore goes on with what unlist left, and reports whether that is done.
func (s *state) unlistMore() (over bool) {
	for len(s.unlisted) > 0 && s.touched.Left() {
		last := &s.unlisted[len(s.unlisted)-1]
		if last.of = s.unuse(last.n, last.of, few); last.of == nil {
			*last = unlisted{}
			s.unlisted = s.unlisted[:len(s.unlisted)-1]
		}
	}
	return len(s.unlisted) == 0
}

// take gives what an owner used, to take the owner off all that. Later uses are not in
// it, and entries may go that are.
func (o owned) take(owner string) uses {
	taken := o[owner]
	delete(o, owner)
	return taken
}
