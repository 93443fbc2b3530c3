package policy

// The parts of an order.
const (
	free      = iota // those not known to be busy
	aside            // those found busy, until the caller tells that they are Ready
	announced        // those that waiting requests need
	parts
)

// Of each part those that hold bytes are apart from those that hold none.
const (
	holding = 1 + iota // of these kinds the first: those that hold bytes
	kinds
)

// order is the policy's rule among the residents of one cost class. Those that may not
// go are kept apart from those that may, so that a victim costs the logarithm of their
// number, however many are busy.
type order struct {
	list  // members, as they were registered
	kind  Kind
	duel  *duel
	copy  func(*Group) // before a mark of sieve goes
	parts [parts][kinds]part
	hand  hand // of sieve, over all parts
}

// hand is how far sieve's walk from the oldest to the newest has come.
type hand struct {
	round  uint64
	number uint64 // of the last group passed; 0: it begins anew
}

// part has some members of an order: fifo by registration and lru by use, both in a;
// duel by use in a and by use counts in b; sieve those ahead of the hand in a and
// those behind it in b.
type part struct {
	a, b heap
	hand hand // where it was when a and b were parted last
}

func (p *Policy) newOrder() *order {
	o := &order{list: list{kind: inOrder}, kind: p.kind, duel: p.duel, copy: p.copy, hand: hand{round: 1}}
	by := (*Group).rank
	switch p.kind {
	case FIFO, Sieve:
		by = (*Group).registration
	case Duel:
		by = (*Group).lastUse
	}
	for i := range parts * kinds {
		p := &o.parts[i/kinds][i%kinds]
		p.a, p.b = heap{kind: byResidence, by: by}, heap{kind: bySecond, by: by}
		if o.kind == Duel {
			p.b.by = (*Group).rank
		}
	}
	return o
}

// at is where a member is, or belongs.
func (o *order) at(g *Group) *part {
	if g.empty {
		return &o.parts[g.part][holding]
	}
	return &o.parts[g.part][0]
}

// registration and lastUse are what fifo and sieve, and duel's recency, order by.
func (g *Group) registration() rank { return rank{last: g.number} }
func (g *Group) lastUse() rank      { return rank{last: g.last} }

// admit takes in a group that is in no order, the part in g says where.
func (o *order) admit(g *Group) {
	g.visited = false
	o.push(g)
	o.at(g).add(o, g)
}

// use notes that g is asked for.
func (o *order) use(g *Group) {
	p := o.at(g)
	switch o.kind {
	case Sieve:
		g.visited = true
	case Duel:
		p.b.renew(g)
		p.a.renew(g)
	case LRU:
		p.a.renew(g)
	}
}

func (o *order) remove(g *Group) {
	o.at(g).take(g)
	ahead := g.number > o.hand.number
	older := g.links[inOrder].older
	if newest := o.newest == g; newest && ahead && (older == nil || older.number <= o.hand.number) {
		o.turn()
	}
	o.list.remove(g)
}

// move puts a member into another part.
func (o *order) move(g *Group, to uint8) {
	if g.part != to {
		o.at(g).take(g)
		g.part = to
		o.at(g).add(o, g)
	}
}

// empty notes that a member holds no bytes, or some.
func (o *order) empty(g *Group, empty bool) {
	o.at(g).take(g)
	g.empty = empty
	o.at(g).add(o, g)
}

func (p *part) add(o *order, g *Group) {
	if o.kind != Sieve || g.number > p.hand.number {
		p.a.push(g)
	}
	if o.kind == Duel || o.kind == Sieve && g.number <= p.hand.number {
		p.b.push(g)
	}
}

func (p *part) take(g *Group) {
	for _, h := range []*heap{&p.a, &p.b} {
		if h.has(g) {
			h.remove(g)
		}
	}
}

// victim is the group to go of a part, of the first kinds of it, nil if none may. may gives
// the standing of a group and whether it may go: Fixed and true ends the search with it.
func (o *order) victim(from uint8, among int, may func(*Group) (Standing, bool)) *Group {
	if o.kind == Sieve {
		return o.walk(from, among, may)
	}
	return o.lowest(from, among, o.kind == Duel && o.duel.countsChoose(), may)
}

// heap gives the first heap of a part, or the second.
func (p *part) heap(second bool) *heap {
	if second {
		return &p.b
	}
	return &p.a
}

// least is the lowest of all first, or second, heaps of some parts, nil if there is none.
func least(of []part, second bool) (g *Group) {
	for i := range of {
		h := of[i].heap(second)
		if low := h.lowest(); low != nil && (g == nil || h.by(low).below(h.by(g))) {
			g = low
		}
	}
	return g
}

// lowest is the lowest that may go. Those found busy are set aside.
func (o *order) lowest(from uint8, among int, second bool, may func(*Group) (Standing, bool)) *Group {
	var passed []*Group
	of := o.parts[from][:among]
	found := least(of, second)
	for ; found != nil; found = least(of, second) {
		s, ok := may(found)
		if ok {
			break
		}
		if s == Busy && from == free {
			o.move(found, aside)
			continue
		}
		passed = append(passed, found)
		o.at(found).heap(second).remove(found)
	}
	for _, g := range passed {
		o.at(g).heap(second).push(g)
	}
	return found
}

// walk is sieve's search: it passes over what was used again, once for each time it
// comes by. What may not go keeps its mark. After one round every group that may go is
// unmarked: two rounds find one if there is one.
func (o *order) walk(from uint8, among int, may func(*Group) (Standing, bool)) *Group {
	of, began := o.parts[from][:among], o.hand
	all := 0
	for i := range of {
		all += of[i].a.len() + of[i].b.len()
	}
	for range 2 * all {
		g := o.ahead(of)
		if g == nil {
			o.turn()
			g = o.ahead(of)
		}
		if g == nil {
			break
		}
		s, ok := may(g)
		switch {
		case ok && (s == Fixed || !g.visited): // Fixed: it is to stop here
			o.hand.number = g.number - 1 // it stands at g, and has passed what is in other parts
			return g
		case ok:
			o.copy(g)
			g.visited = false
		case s == Busy && from == free:
			o.move(g, aside)
		}
		if o.hand.number = g.number; o.newest == g {
			o.turn()
		}
	}
	o.hand = began // it has come round twice
	return nil
}

// ahead is the next of some parts that the hand comes to, nil if it has passed them all.
func (o *order) ahead(of []part) *Group {
	for i := range of {
		of[i].follow(o.hand)
	}
	return least(of, false)
}

// turn has the hand begin anew.
func (o *order) turn() { o.hand = hand{round: o.hand.round + 1} }

// follow parts what is ahead of the hand from what is behind it.
func (p *part) follow(to hand) {
	if p.hand.round != to.round || p.hand.number > to.number {
		if p.a.len() < p.b.len() {
			p.a, p.b = p.b, p.a
		}
		for g := p.b.lowest(); g != nil; g = p.b.lowest() {
			p.b.remove(g)
			p.a.push(g)
		}
	}
	p.hand = to
	for g := p.a.lowest(); g != nil && g.number <= to.number; g = p.a.lowest() {
		p.a.remove(g)
		p.b.push(g)
	}
}
