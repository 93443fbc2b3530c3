package policy

// order is one policy's rule among the residents of one cost class.
type order interface {
	admit(g *Group)
	use(g *Group) // g is resident and asked for
	remove(g *Group)
	// victim is the group to go of those that may; nil if none may.
	victim(may func(*Group) bool) *Group
	members() *list // of the class, as the order walks them
}

// newOrder is the order of a new class.
func (p *Policy) newOrder() order {
	switch p.kind {
	case FIFO:
		return &registered{list{kind: inOrder}}
	case LRU:
		return &recent{list{kind: inOrder}}
	case Sieve:
		return &sieve{list: list{kind: inOrder}}
	}
	return &duelled{
		recent: recent{list{kind: inOrder}},
		counts: heap{kind: byResidence},
		duel:   p.duel,
	}
}

// registered is fifo: the first registered goes first, however often it is used.
type registered struct{ list }

func (o *registered) admit(g *Group) { o.push(g) }
func (o *registered) use(*Group)     {}

func (l *list) members() *list { return l }

// victim is the oldest that may go.
func (l *list) victim(may func(*Group) bool) *Group {
	for g := l.oldest; g != nil; g = g.links[l.kind].newer {
		if may(g) {
			return g
		}
	}
	return nil
}

// recent is lru.
type recent struct{ list }

func (o *recent) admit(g *Group) { o.insert(g) }
func (o *recent) use(g *Group)   { o.renew(g) }

// sieve passes over what was used again, once for each time it comes by. Its
// hand walks from the oldest to the newest and then begins again.
type sieve struct {
	list
	hand *Group // the next to be looked at; nil: the oldest
}

func (o *sieve) admit(g *Group) {
	g.visited = false
	o.push(g)
}

func (o *sieve) use(g *Group) { g.visited = true }

func (o *sieve) remove(g *Group) {
	if o.hand == g {
		o.hand = g.links[inOrder].newer
	}
	o.list.remove(g)
}

func (o *sieve) victim(may func(*Group) bool) *Group {
	// After one round every group that may go is unvisited: two rounds find
	// one if there is one. What may not go keeps its mark.
	for range 2 * o.len {
		if o.hand == nil {
			o.hand = o.oldest
		}
		g := o.hand
		if may(g) {
			if !g.visited {
				return g
			}
			g.visited = false
		}
		o.hand = g.links[inOrder].newer
	}
	return nil
}

// duelled orders residents by recency and by use counts, and asks the duel
// which of the two chooses.
type duelled struct {
	recent
	counts heap
	duel   *duel
}

func (o *duelled) admit(g *Group) {
	o.recent.admit(g)
	o.counts.push(g)
}

func (o *duelled) remove(g *Group) {
	o.recent.remove(g)
	o.counts.remove(g)
}

func (o *duelled) victim(may func(*Group) bool) *Group {
	if o.duel.countsChoose() {
		return o.counts.lowestOf(may)
	}
	return o.recent.victim(may)
}
