package policy

import (
	"math"
	"slices"
)

// class is one cost class: residents whose compile seconds per byte lie within
// one power of two (SPEC S6). Those that are announced are in another queue.
type class struct {
	exponent int
	members  list // as they were registered
	queue    queue
	hand     uint64 // of sieve: the number of the last group passed; 0: it begins anew
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
		p.classes = slices.Insert(p.classes, i, &class{exponent: exponent, members: list{kind: inClass}, queue: newQueue()})
	}
	c := p.classes[i]
	g.class = c
	p.joined++
	g.number = p.joined
	g.visited = false
	c.members.push(g)
	p.add(g)
}

func (p *Policy) leave(g *Group) {
	p.take(g)
	c := g.class
	older := g.links[inClass].older
	if c.members.newest == g && g.number > c.hand && (older == nil || older.number <= c.hand) {
		c.hand = 0 // it stood at g, and was behind all others
	}
	c.members.remove(g)
	g.class = nil
	if c.members.len == 0 {
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
	p.use(g)
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
