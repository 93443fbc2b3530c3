package flight

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
)

// node is a flight as the waits-for graph sees it. The graph is process-wide,
// since a circle may run through several rooms, but has no lock of its own: each
// node guards the edges that leave it, so that flights that have nothing to do
// with each other never wait for each other.
type node struct {
	scope  any
	key    string
	parent []*node // under whose context the flight was started
	owner  bool    // no flight, but code that owns flights (Own); it has no parent
	nest

	mu struct {
		sync.Mutex
		waits edges // whom it waits for
		left  edges // whom it waited for when it ended, see end
	}
	gone atomic.Bool // it has ended with edges in left: who has it among from may not be awaited by it any more
	in   struct {    // apart, so that waiting for a flight waits for no search from it; locked last
		sync.Mutex
		from edges // who waits for it; changed with the other's mu held
	}
}

// edges lead from a node, or to it: how often to each. Most nodes have one at a time, for
// which there is no map.
type edges struct {
	one   *node // nil = none
	times int   // to one
	more  map[*node]int
}

func (e *edges) add(n *node, times int) {
	switch {
	case e.one == n:
		if e.times += times; e.times == 0 {
			e.one = nil
		}
		return
	case e.one == nil && e.more[n] == 0:
		e.one, e.times = n, times
		return
	case e.more == nil:
		e.more = make(map[*node]int)
	}
	if e.more[n] += times; e.more[n] == 0 {
		delete(e.more, n)
	}
}

// to is how often they lead to n.
func (e *edges) to(n *node) int {
	if e.one == n {
		return e.times
	}
	return e.more[n]
}

func (e *edges) len() int {
	if e.one == nil {
		return len(e.more)
	}
	return 1 + len(e.more)
}

// all gives each with how often they lead to it.
func (e *edges) all() iter.Seq2[*node, int] {
	return func(yield func(*node, int) bool) {
		if e.one != nil && !yield(e.one, e.times) {
			return
		}
		for n, times := range e.more {
			if !yield(n, times) {
				return
			}
		}
	}
}

// isAwaited reports whether any edge leads to n.
func (n *node) isAwaited() bool {
	n.in.Lock()
	defer n.in.Unlock()
	return n.in.from.len() > 0
}

// awaitedBy adds to the edges that lead from m to n, or takes from them.
func (n *node) awaitedBy(m *node, times int) {
	n.in.Lock()
	defer n.in.Unlock()
	n.in.from.add(m, times)
}

type identityKey struct{}

// identityOf gives the nodes on whose behalf the code under ctx runs: nil, or none, for an
// ordinary caller, its flight for a creator; where the code owns flights, a node for
// all of those comes last. It is a pointer so that handing it out costs nothing.
func identityOf(ctx context.Context) *identity {
	id, _ := ctx.Value(identityKey{}).(*identity)
	return id
}

// enter adds the edges from all of from to to. If that closes a circle, it takes
// them back and gives the circle: to first, each waits for the next, and the last, one
// of from, was to wait for to.
//
// Of callers that close one circle at one time at least one finds it: each adds
// its edges before it looks. circular then lets only one of them break it. It costs as
// much as there is before from or behind to, whichever is less: that of two long chains is
// the length of the shorter. So it is for the goroutine that is to wait, never for a turn,
// which adds and takes edges only, and it holds the lock of one node at a time (SPEC F6).
func enter(from []*node, to *node) (circle []*node) {
	oblige(from, []*node{to})
	for _, n := range from {
		for n.isAwaited() { // else no circle runs through it
			path, _ := between(to, n)
			if path == nil {
				break
			}
			closed, again := circular(path)
			if closed {
				exit(slices.DeleteFunc(slices.Clone(from), func(m *node) bool { return m == n }), to)
				return path
			}
			if !again {
				break
			}
		}
	}
	return nil
}

// told says for an error which flights are in a circle, the first ones of many.
func told(circle []*node) string {
	const most = 8
	var keys []string
	for _, n := range circle[:min(len(circle), most)] {
		if key := fault.Printable(n.key); !n.owner && (len(keys) == 0 || key != keys[len(keys)-1]) { // a name may be its key
			keys = append(keys, key)
		}
	}
	if len(circle) > most {
		keys = append(keys, "...")
	}
	return strings.Join(append(keys, fault.Printable(circle[0].key)), ", which waits for ")
}

// oblige adds the edges from all of from to all of to and looks for no circle.
func oblige(from, to []*node) {
	for _, n := range from {
		for _, m := range to {
			n.mu.Lock()
			n.mu.waits.add(m, 1)
			m.awaitedBy(n, 1)
			n.mu.Unlock()
		}
	}
}

// exit takes edges back.
func exit(from []*node, to *node) {
	for _, n := range from {
		n.mu.Lock()
		n.unlinkLocked(to)
		n.mu.Unlock()
	}
}

// unlinkLocked takes one edge away, unless n has ended meanwhile: then a goroutine
// of its creator outlived it.
func (n *node) unlinkLocked(to *node) {
	if n.mu.waits.to(to) > 0 {
		n.mu.waits.add(to, -1)
		to.awaitedBy(n, -1)
	}
}

// settle forgets whom a creator that has returned waited for.
func (n *node) settle() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, all := range []*edges{&n.mu.waits, &n.mu.left} {
		for to, times := range all.all() {
			to.awaitedBy(n, -times)
		}
		*all = edges{}
	}
}

// mostSettled is how many edges an ending takes away itself.
const mostSettled = 64

// settled is settle for a flight that ends, perhaps in a turn, while its creator runs still. That
// of a creator with many edges costs the same: these count no more, and go when it returns.
func (n *node) settled() {
	n.mu.Lock()
	many := n.mu.waits.len() > mostSettled
	if many {
		n.gone.Store(true)
		n.mu.left, n.mu.waits = n.mu.waits, edges{}
	}
	n.mu.Unlock()
	if !many {
		n.settle()
	}
}

// waitsFor reports whether n, which may have ended, waits for to.
func (n *node) waitsFor(to *node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.waits.to(to) > 0
}

// pathTo gives a path of edges from n to a goal, or nil. The edges are read one
// node after the other, so they need not all have been there at one time.
func (n *node) pathTo(goal func(*node) bool) (path []*node) {
	before := map[*node]*node{n: nil}
	for next := []*node{n}; len(next) > 0; {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		if goal(at) {
			for ; at != nil; at = before[at] {
				path = append(path, at)
			}
			slices.Reverse(path)
			return path
		}
		at.mu.Lock()
		for to := range at.mu.waits.all() {
			if _, seen := before[to]; !seen {
				before[to] = at
				next = append(next, to)
			}
		}
		at.mu.Unlock()
	}
	return nil
}

// side is one end of a search for a path.
type side struct {
	edges func(*node, func(*edges)) // shows those of a node, locked
	back  bool                      // they lead to the node, and may be those of one that is gone
	seen  map[*node]*node           // by which node
	next  []*node
	spent int // edges looked at
}

func newSide(n *node, back bool, edges func(*node, func(*edges))) *side {
	return &side{edges: edges, back: back, seen: map[*node]*node{n: nil}, next: []*node{n}}
}

// cost is what the side has cost when it has taken its next step.
func (s *side) cost() (cost int) {
	s.edges(s.next[len(s.next)-1], func(e *edges) { cost = s.spent + e.len() })
	return cost
}

// step looks at the edges of one node, and gives a node that other has seen, too, or nil.
func (s *side) step(other *side) (met *node) {
	at := s.next[len(s.next)-1]
	s.next = s.next[:len(s.next)-1]
	var ended []*node // asked apart, so that one flight is locked at a time
	s.edges(at, func(e *edges) {
		s.spent += e.len()
		for n := range e.all() {
			if s.back && n.gone.Load() {
				ended = append(ended, n)
			} else if s.see(n, at, other) {
				met = n
				return
			}
		}
	})
	for _, n := range ended {
		if met == nil && n.waitsFor(at) && s.see(n, at, other) {
			met = n
		}
	}
	return met
}

// see notes that an edge of at leads to n, and reports whether other has seen that one, too.
func (s *side) see(n, at *node, other *side) (both bool) {
	if _, seen := s.seen[n]; seen {
		return false
	}
	s.seen[n] = at
	s.next = append(s.next, n)
	_, both = other.seen[n]
	return both
}

// between gives a path of edges from start to end, or nil, as pathTo does. It searches from
// both, and goes on where there is less to look at: what can be reached from one alone may be
// much, such as a long chain. looked says at how many edges it has looked.
func between(start, end *node) (path []*node, looked int) {
	if start == end {
		return []*node{start}, 0
	}
	ahead := newSide(start, false, func(n *node, show func(*edges)) { n.mu.Lock(); show(&n.mu.waits); n.mu.Unlock() })
	behind := newSide(end, true, func(n *node, show func(*edges)) { n.in.Lock(); show(&n.in.from); n.in.Unlock() })
	for len(ahead.next) > 0 && len(behind.next) > 0 {
		s, other := behind, ahead
		if ahead.cost() < behind.cost() {
			s, other = ahead, behind
		}
		met := s.step(other)
		if met == nil {
			continue
		}
		for at := met; at != nil; at = ahead.seen[at] {
			path = append(path, at)
		}
		slices.Reverse(path)
		for at := behind.seen[met]; at != nil; at = behind.seen[at] {
			path = append(path, at)
		}
		return path, ahead.spent + behind.spent
	}
	return nil, ahead.spent + behind.spent
}

// breaking is held by the one that holds the locks of several nodes.
var breaking sync.Mutex

// circular looks again at a path whose end waits for its start, with all of its
// edges at one time. If it is a circle, that last edge, which is the caller's, is
// taken away, so that one caller alone breaks the circle. If it is none any more,
// again says whether there may be another.
func circular(path []*node) (closed, again bool) {
	breaking.Lock()
	defer breaking.Unlock()
	for _, n := range path {
		n.mu.Lock()
		defer n.mu.Unlock()
	}
	start, end := path[0], path[len(path)-1]
	if end.mu.waits.to(start) == 0 {
		return false, false // the caller's flight has ended: its creator waits for nothing
	}
	for i, n := range path[:len(path)-1] {
		if n.mu.waits.to(path[i+1]) == 0 {
			return false, true
		}
	}
	end.unlinkLocked(start)
	return true, false
}
