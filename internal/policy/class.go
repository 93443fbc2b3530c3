package policy

import (
	"math"
	"slices"
)

// class is one cost class: residents whose compile seconds per byte lie within
// one power of two (SPEC S6).
type class struct {
	exponent int
	order    *order
}

// noCost is the class of groups that cost nothing to compile.
const noCost = math.MinInt16

// classOf is the exponent of the class by cost: the largest e with 2^e seconds
// per byte not above the group's. fifo has one class.
func (p *Policy) classOf(bytes int64, seconds float64) int {
	if p.kind == FIFO || !(seconds > 0) { // also NaN
		return noCost
	}
	_, e := math.Frexp(min(seconds, math.MaxFloat64) / float64(max(bytes, 1)))
	return e - 1
}

// join puts g into the class of that exponent, leave takes it out of its own.
func (p *Policy) join(g *Group, exponent int) {
	i, found := slices.BinarySearchFunc(p.classes, exponent, func(c *class, e int) int { return c.exponent - e })
	if !found {
		p.classes = slices.Insert(p.classes, i, &class{exponent: exponent, order: p.newOrder()})
	}
	c := p.classes[i]
	g.class = c
	p.joined++
	g.number = p.joined
	if p.isAnnounced(g) {
		g.part = announced
	} else if g.part == announced {
		g.part = free
	}
	c.order.admit(g)
}

func (p *Policy) leave(g *Group) {
	c := g.class
	c.order.remove(g)
	g.class = nil
	if c.order.len == 0 {
		p.classes = slices.DeleteFunc(p.classes, func(o *class) bool { return o == c })
	}
}

// freshen notes the use of a resident group in its class; one that had dropped
// is back in the class of its cost.
func (p *Policy) freshen(g *Group) {
	if p.kind != FIFO {
		g.since = p.requests
		p.ages.renew(g)
		if g.class.exponent != g.cost {
			p.leave(g)
			p.join(g, g.cost)
		}
	}
	g.class.order.use(g)
}

// drop lets groups that were not asked for long enough drop a class. In the
// lowest class that has a group they stay: with equal costs the choice is the
// policy's own. A few go with each request: after the capacity was lowered, all are late.
func (p *Policy) drop() {
	if p.requests < p.due {
		return
	}
	p.arrange()
	period := halfLife * uint64(p.size)
	for range few {
		g := p.ages.oldest
		if g == nil || p.requests-g.since < period {
			break
		}
		p.copy(g)
		g.since = p.requests
		p.ages.renew(g)
		if g.class.exponent > p.classes[0].exponent {
			next := g.class.exponent - 1
			p.leave(g)
			p.join(g, next)
		}
	}
	p.due = p.requests + 1
	if g := p.ages.oldest; g != nil {
		p.due = g.since + period
	}
}
