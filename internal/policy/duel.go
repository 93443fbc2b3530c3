package policy

import "math"

const (
	// meanOf is the number of requests that misses are averaged over (SPEC S1).
	meanOf = 1000
	// tooHeavy is the weight at which the next era of counts begins, a power of two
	// so that no order changes.
	tooHeavy = 0x1p512
)

// duel is the state of policy duel that all cost classes share: two shadow
// directories of keys, each of the capacity's size, and how often each of them
// missed of late. Every request is played to both.
type duel struct {
	size   int     // of either directory
	weight float64 // of a use now
	growth float64 // of the weight from one request to the next
	era    uint32  // of counts
	worth  bool

	recency list // the size keys asked for last
	counts  heap // keys of high use count, the lowest leaving first

	recencyMiss, countsMiss float64 // share of the last requests but hits, exponential mean
	hits                    int     // of both directories, since a request that was none

	leaves, left func(*Group) // told of each key that leaves a directory, before and after
}

func newDuel(worth bool, leaves, left func(*Group)) *duel {
	return &duel{
		weight:  1,
		worth:   worth,
		recency: list{kind: inShadow},
		counts:  heap{kind: byShadow},
		leaves:  leaves,
		left:    left,
	}
}

// countsChoose says that the victim is the group of the lowest use count, not
// the one used longest ago. Hits change neither mean's place beside the other.
func (d *duel) countsChoose() bool { return d.countsMiss < d.recencyMiss }

// heed has the means heed the hits since they were changed last: a request then costs
// neither a division nor a wait for that of the request before.
func (d *duel) heed() {
	if d.hits > 0 {
		by := math.Pow(1-1./meanOf, float64(d.hits))
		d.recencyMiss *= by
		d.countsMiss *= by
		d.hits = 0
	}
}

// resize sets the directories' size and with it the half-life of counts. Keys
// that no longer fit leave, up to most of each now, the others with the requests to come.
func (d *duel) resize(size, most int) {
	if size == d.size {
		return
	}
	d.size = size
	d.growth = math.Exp2(1 / (halfLife * float64(size)))
	d.shrink(most)
}

// large reports whether one of them has more keys than fit.
func (d *duel) large() bool { return d.recency.len > d.size || d.counts.len() > d.size }

// shrink has keys leave that no longer fit, up to most of each directory.
func (d *duel) shrink(most int) {
	for n := 0; n < most && d.recency.len > d.size; n++ {
		g := d.recency.oldest
		d.leaves(g)
		d.recency.remove(g)
		d.left(g)
	}
	for n := 0; n < most && d.counts.len() > d.size; n++ {
		g := d.counts.lowest()
		d.leaves(g)
		d.counts.remove(g)
		d.left(g)
	}
}

// request plays one request to both directories.
func (d *duel) request(g *Group) {
	d.weigh(g)
	d.heed()

	missed := 0.0
	if d.recency.has(g) {
		d.recency.renew(g)
	} else {
		missed = 1
		d.recency.push(g)
	}
	d.recencyMiss += (missed - d.recencyMiss) / meanOf

	missed = 0
	if !d.counts.has(g) {
		missed = 1
		d.enter(g)
	}
	d.countsMiss += (missed - d.countsMiss) / meanOf
	d.shrink(2)
}

// count is request for a key that both directories hold, but for its place in
// the one by recency.
func (d *duel) count(g *Group) {
	d.hits++
	d.weigh(g)
}

// weigh adds a use to g's count.
func (d *duel) weigh(g *Group) {
	d.weight *= d.growth
	if g.count.era != d.era {
		g.count = count{g.count.in(d.era), d.era}
	}
	g.count.sum += d.weight
	if d.weight > tooHeavy {
		d.weight *= 1 / tooHeavy
		d.era++
	}
}

// count is a decayed use count. In each era the weight begins anew, tooHeavy times
// lighter: so it never overflows, and no count is scaled but when it is used.
type count struct {
	sum float64 // of the weights that its uses had, in those of its era
	era uint32
}

// in is the sum in the weights of an era that is no earlier.
func (c count) in(era uint32) float64 {
	return math.Ldexp(c.sum, -512*int(min(era-c.era, 4))) // 2^-512 is 1/tooHeavy
}

func (c count) below(o count) bool {
	switch {
	case c.era < o.era:
		return c.in(o.era) < o.sum
	case c.era > o.era:
		return c.sum < o.in(c.era)
	}
	return c.sum < o.sum
}

// enter takes g into the directory by counts. With keep=worth a key that is
// counted less than all there stays out (SPEC S7).
func (d *duel) enter(g *Group) {
	if d.counts.len() >= d.size {
		low := d.counts.lowest()
		if d.worth && g.count.below(low.count) {
			return
		}
		d.leaves(low)
		d.counts.remove(low)
		d.left(low)
	}
	d.counts.push(g)
}

// holds says that one of the directories has g, holdsBoth that each has.
func (d *duel) holds(g *Group) bool     { return d.recency.has(g) || d.counts.has(g) }
func (d *duel) holdsBoth(g *Group) bool { return d.recency.has(g) && d.counts.has(g) }
