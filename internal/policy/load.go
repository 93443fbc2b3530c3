package policy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Load makes a policy from what Save gave. The residents of then count as
// resident: walk Residents and remove what is not registered again. The config
// is the one in force now: its kind must be the saved one; with a smaller
// capacity the surplus is evicted by Victim, as after SetGroups.
//
// The bytes may come from anywhere: what Save would not have written is an
// ErrInvalid with a reason, and memory is taken in proportion to their number.
func Load(saved []byte, c Config) (*Policy, error) {
	c, err := c.Validate()
	if err != nil {
		return nil, err
	}
	const sum = crc32.Size
	switch {
	case len(saved) < len(magic)+sum:
		return nil, unsound(fault.Truncated, "%d bytes", len(saved))
	case string(saved[:len(magic)]) != magic:
		return nil, unsound(fault.Format, "saved by another version, or no policy's state")
	}
	body := saved[:len(saved)-sum]
	if binary.LittleEndian.Uint32(saved[len(body):]) != crc32.Checksum(body, castagnoli) {
		return nil, unsound(fault.Checksum, "damaged")
	}
	r := &reader{rest: body[len(magic):]}
	p, err := r.policy(c)
	if err != nil {
		return nil, err
	}
	if r.bad != nil {
		return nil, r.bad
	}
	if len(r.rest) != 0 {
		return nil, unsound(fault.Trailing, "%d bytes behind the state", len(r.rest))
	}
	return p, p.SetGroups(c.Groups)
}

func unsound(reason fault.Reason, format string, args ...any) error {
	return &fault.Error{Op: "policy: load", Reason: reason, Err: fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)}
}

// reader takes values off the front. After the first that is unsound it gives
// zeroes, and bad says what it was.
type reader struct {
	rest []byte
	bad  error
}

func (r *reader) fail(format string, args ...any) {
	if r.bad == nil {
		r.bad = unsound(fault.Format, format, args...)
	}
	r.rest = nil
}

// number reads a number of at most most.
func (r *reader) number(what string, most uint64) uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > most {
		r.fail("%s is not a number up to %d", what, most)
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) exponent() int {
	v, n := binary.Varint(r.rest)
	if n <= 0 || v < noCost || v > -noCost {
		r.fail("a cost class is out of range")
		return 0
	}
	r.rest = r.rest[n:]
	return int(v)
}

// real reads a float of 0 to most.
func (r *reader) real(what string, most float64) float64 {
	if len(r.rest) < 8 {
		r.fail("%s is missing", what)
		return 0
	}
	f := math.Float64frombits(binary.LittleEndian.Uint64(r.rest))
	if !(f >= 0 && f <= most) {
		r.fail("%s is %v, out of range", what, f)
		return 0
	}
	r.rest = r.rest[8:]
	return f
}

func (r *reader) text(what string) string {
	n := r.number("the length of "+what, uint64(len(r.rest)))
	if n > uint64(len(r.rest)) {
		r.fail("%s is cut short", what)
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *reader) policy(c Config) (*Policy, error) {
	if kind := r.text("the policy"); r.bad == nil && kind != string(c.Kind) {
		return nil, unsound(fault.Format, "state of policy %.64q, want %q", kind, c.Kind)
	}
	r.text("keep") // for people who look at a file; the config decides
	was := Config{Kind: c.Kind, Keep: c.Keep, Groups: Unlimited}
	if limit := r.number("the capacity", Unlimited); limit > 0 {
		was.Groups = int(limit - 1)
	}
	p, err := New(was)
	if err != nil {
		return nil, err
	}
	p.requests = r.number("the requests", 1<<62)
	p.clock = r.number("the clock", 1<<63)
	if d := p.duel; d != nil {
		d.weight = r.real("the weight", 2*tooHeavy)
		d.recencyMiss = r.real("the misses by recency", 1)
		d.countsMiss = r.real("the misses by counts", 1)
		if d.weight == 0 {
			r.fail("the weight is 0")
		}
	}
	residents := make([]*Group, 0)
	for range r.number("the residents", uint64(len(r.rest))) {
		g := r.group(p)
		if r.bad != nil {
			return nil, r.bad
		}
		g.since = r.number("an age", p.requests)
		g.cost = r.exponent()
		if n := len(residents); n > 0 && residents[n-1].since > g.since {
			r.fail("residents are not in order of age")
		}
		g.resident = true
		p.residents++
		p.ages.push(g)
		residents = append(residents, g)
	}
	p.resize(few) // directories take their size before they are filled
	for range r.number("the shapes remembered", uint64(len(r.rest))) {
		r.group(p)
		if r.bad != nil {
			return nil, r.bad
		}
		if p.duel == nil {
			r.fail("policy %s remembers no shapes", p.kind)
		}
	}
	r.classes(p, residents)
	if r.bad != nil {
		return nil, r.bad
	}
	r.directories(p)
	return p, r.bad
}

// group reads a shape and what is known of it. Its place in the shadow
// directories stays in the flags until all are read.
func (r *reader) group(p *Policy) *Group {
	shape, err := shapegroups.FromKey(r.text("a shape"))
	if err != nil {
		r.fail("%v", err)
	}
	if _, twice := p.groups[shape]; twice {
		r.fail("shape %s twice", shape)
	}
	if r.bad != nil {
		return nil
	}
	g := p.know(shape)
	g.saved = byte(r.number("the parts", savedAll))
	g.visited = g.saved&savedVisited != 0
	g.last = r.number("a use", p.clock)
	if p.duel != nil {
		g.count.sum = r.real("a use count", tooHeavy*tooHeavy/4)
	} else if g.saved&^savedVisited != 0 {
		r.fail("policy %s has no directories", p.kind)
	}
	return g
}

// classes reads the cost classes and puts every resident into one of them.
func (r *reader) classes(p *Policy, residents []*Group) {
	placed := 0
	for range r.number("the classes", uint64(len(residents))) {
		exponent := r.exponent()
		if n := len(p.classes); n > 0 && p.classes[n-1].exponent >= exponent {
			r.fail("classes are not in order")
		}
		count := r.number("the groups of a class", uint64(len(residents)-placed))
		if count == 0 {
			r.fail("a class is empty")
			return
		}
		var c *class
		for range count {
			g := residents[r.number("a place", uint64(len(residents)-1))]
			if r.bad != nil || g.class != nil || exponent > g.cost || p.kind == FIFO && exponent != noCost {
				r.fail("a group is in a class that is not its own")
				return
			}
			visited := g.visited
			p.join(g, exponent)
			g.visited = visited
			c = g.class
			placed++
		}
		at := r.number("the hand", uint64(len(residents)))
		if p.kind == Sieve && at > 0 && residents[at-1].class == c {
			c.hand = residents[at-1].number - 1
		} else if at > 0 {
			r.fail("the hand is on a group of another class")
		}
	}
	if placed != len(residents) {
		r.fail("%d residents are in no class", len(residents)-placed)
	}
}

// directories fills the duel's shadow directories and the memory.
func (r *reader) directories(p *Policy) {
	if p.duel == nil {
		return
	}
	known := slices.SortedFunc(maps.Values(p.groups), func(a, b *Group) int {
		return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.shape.Key(), b.shape.Key()))
	})
	for _, g := range known {
		if g.saved&savedRecent != 0 {
			p.duel.recency.push(g)
		}
		if g.saved&savedCounted != 0 {
			p.duel.counts.push(g)
		}
	}
	if p.duel.recency.len > p.size || p.duel.counts.len() > p.size {
		r.fail("a directory is larger than the capacity of %d", p.size)
	}
	for _, g := range known {
		p.settle(g)
	}
}
