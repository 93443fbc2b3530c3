package sessioncache

import (
	"slices"

	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/shapegroups"
)

// state is the pure core: each method is one event, legal at any time. What
// readers see (tables, dead flags, counts) it stores at once; what needs a
// goroutine, a flight or user code it appends to effects, for the shell.
type state struct {
	published *published
	policy    *policy.Policy
	requests  requests
	keyHits   uint64 // that were in the log

	desk     flight.Desk[place, *call]
	serving  []*group                       // groups out of the table that serve open handles (SPEC S7), see serve
	evicted  map[shapegroups.Shape]*group   // of these, the last of a shape that had to go for others: see back
	owners   map[string]map[*group]struct{} // the groups, of either kind, that have names of an owner
	holds    map[string]int
	makings  map[string]*making   // owners of names that are being made
	clearing map[string]*clearing // the last reset of each owner that is under way
	interned int                  // names with an id
	wanted   Capacity             // as set; what is published follows as groups go, see surplus
	touched  touched.Gauge
	closed   bool
	told     bool // somebody wants to know what is evicted

	own *group // being written: no victim before every other; see standing

	share *share // of the pool; nil where there is none
	floor Floor  // what others cannot take

	effects effects
}

func newState(c Config, p *published) (*state, error) {
	groups, err := policyGroups(c.Groups)
	if err != nil {
		return nil, err
	}
	rule, err := newPolicy(policy.Config{Kind: policy.Kind(c.Policy), Keep: policy.Keep(c.Keep), Groups: groups}, c.Saved)
	if err != nil {
		return nil, err
	}
	seen, err := newRequests(groups)
	if err != nil {
		return nil, err
	}
	s := &state{
		published: p,
		policy:    rule,
		requests:  seen,
		evicted:   make(map[shapegroups.Shape]*group),
		owners:    make(map[string]map[*group]struct{}),
		holds:     make(map[string]int),
		makings:   make(map[string]*making),
		clearing:  make(map[string]*clearing),
		wanted:    p.capacity(),
		floor:     c.Floor,
	}
	return s, nil
}

// newPolicy begins with what was saved of an earlier session, if anything. Its
// groups are not here, only what was learnt of their use.
func newPolicy(c policy.Config, saved []byte) (*policy.Policy, error) {
	if len(saved) == 0 {
		return policy.New(c)
	}
	p, err := policy.Load(saved, c)
	if err != nil {
		return nil, err
	}
	for _, g := range slices.Collect(p.Residents()) {
		p.Remove(g)
	}
	return p, nil
}

// policyGroups is a capacity in groups as package policy takes it.
func policyGroups(l Limit) (int, error) {
	n, counted := l.Value()
	if !counted || n > policy.Unlimited {
		return policy.Unlimited, nil
	}
	return int(n), l.Validate()
}

// drained notes uses that readers have logged, in their order.
func (s *state) drained(use *asked) {
	s.touched.Noted()
	s.published.remember(use)
	if use.found {
		s.keyHits++
	}
	s.request(use, false)
}

// request is one acquisition: for the policy, for the statistics.
func (s *state) request(use *asked, missed bool) {
	s.requests.note(use, missed)
	if use.policy != nil {
		s.policy.Use(use.policy)
		return
	}
	use.policy = s.policy.Request(use.compiled)
}

// heeded publishes what was counted of requests.
func (s *state) heeded() {
	s.published.keyHits.Store(s.keyHits)
	s.published.useful.Store(s.requests.padding.Asked)
	s.published.padded.Store(s.requests.padding.Compiled)
}

// acquire gives the group to serve a request for a shape: the resident one, a
// new one, or one that is not registered where nothing may or should be kept.
func (s *state) acquire(use *asked) (*group, error) {
	if s.closed {
		return nil, errClosed
	}
	s.published.remember(use)
	g := s.published.resident(use.compiled, use.placed)
	s.request(use, g == nil)
	s.heeded()
	if g != nil {
		return g, nil
	}
	groups := s.published.capacity().Groups
	worth := groups.Allows(1) && (groups.Allows(s.published.groups.Load()+1) || s.policy.Worth(use.compiled, s.standing))
	if worth {
		if g = s.back(use.compiled); g != nil {
			return g, nil
		}
	} else if g = s.evicted[use.compiled]; g != nil {
		return g, nil
	}
	g = s.published.newGroup(use.compiled, use.placed)
	if worth && s.makeRoom(1, 0, nil) {
		s.register(g)
		return g, nil
	}
	g.dead.Store(true)
	s.serve(g)
	return g, nil
}

// back registers the group of a shape again that had to go for others and serves handles
// still, so that nothing it holds is made again (SPEC F10). It gives nil if there is none,
// or what it holds does not fit any more: then a new one comes beside it.
func (s *state) back(shape shapegroups.Shape) *group {
	g := s.evicted[shape]
	if g == nil || !s.fitsNow(g.bytes) || !s.makeRoom(1, g.bytes, nil) {
		return nil
	}
	s.register(g)
	return g
}

// backRoomy is roomy for back.
func (s *state) backRoomy(turns *int, shape shapegroups.Shape) bool {
	g := s.evicted[shape]
	if s.closed || g == nil || g.bytes == 0 || s.published.next(g) != nil || !s.policy.Worth(shape, s.standing) {
		return true
	}
	return s.roomy(turns, nil, 1, g.bytes, true)
}

// register publishes a group for which room was made: an empty one, or again one that
// serves.
func (s *state) register(g *group) {
	if g.serves > 0 {
		s.served(g)
	}
	g.policy = s.policy.Admit(g.shape, g.bytes, g.cost.Value().Seconds())
	g.policy.Of = g
	g.registered, g.vacant = true, false
	g.aside.Store(false)
	s.published.groups.Add(1)
	s.published.objects.Add(g.objects)
	s.published.bytes.Add(g.bytes)
	s.share.changed(g.bytes)
	g.dead.Store(false)
	s.published.shapes.Put(g.at)
}

// vacated is told when the last handle of a phase of g was closed, or the last lease
// of one that is aside has ended. It may be told at any time.
//
// INVARIANT: a closed session settles no grace. The handle that is closed last
// may then throw its group away, and the bin read what was retired, while the
// actor still has to look at handles that were closed before.
func (s *state) vacated(g *group) {
	if g.registered && g.aside.Load() && !g.busy() {
		g.aside.Store(false)
		s.policy.Ready(g.policy)
	}
	serving := g.serves > 0
	switch {
	case serving && !g.grace.open() && g.flights == 0:
		s.served(g)
		s.published.uncounted(g)
		s.effects.trash = append(s.effects.trash, trash{group: g})
		s.disown(g)
	case g.registered && !g.filled.Load() && !g.awaited():
		g.vacant = true // asked for, and nothing came of it that it keeps
		s.evict(g, nothing)
	case !s.closed && (g.registered || serving):
		g.unsettled = false
		s.settle(g)
	case !s.lives(g):
		s.disown(g)
	}
}

// disown has no owner credited for a group that has gone, as far as a turn goes: the rest
// in further turns.
func (s *state) disown(g *group) {
	for owner := range g.owners {
		if !s.touched.Left() {
			s.effects.vacated = append(s.effects.vacated, g)
			return
		}
		s.touched.Add(1)
		delete(g.owners, owner)
		s.uncredit(owner, g)
	}
}

// drop takes a group's pin off a name that no handle can see.
func (s *state) drop(n *node) {
	s.touched.Add(1)
	if n.Value.cell.Drop() {
		s.effects.trash = append(s.effects.trash, trash{node: n})
	}
}

// announce tells the policy which groups waiting requests need, soonest first.
func (s *state) announce(shapes []shapegroups.Shape) {
	s.touched.Add(2 * mostAnnounced)
	s.policy.Announce(shapes)
}

// save copies what the policy knows, as far as a turn goes, and reports whether that was
// all. Until another snapshot is complete, none begins.
func (s *state) save(to **policy.Snapshot) (done bool) {
	forgotten := s.policy.Forgotten()
	left := func() bool {
		now := s.policy.Forgotten()
		s.touched.Add(1 + now - forgotten)
		forgotten = now
		return s.touched.Left()
	}
	if *to == nil {
		*to = s.policy.Snapshot(left)
	}
	return *to != nil && (*to).Copy(left)
}

// close ends the session: nothing may stay any more, callers that wait are answered, and
// creators cancelled, as far as a turn goes. It reports whether none is left. Calls of
// clear follow, for the groups.
func (s *state) close() (over bool) {
	s.closed = true
	s.desk.VoidAll()
	for c := range s.desk.All() {
		if !s.touched.Left() {
			return false
		}
		s.touched.Add(1)
		s.desk.End(c.at, c)
		s.refuse(c, errClosed)
		c.rest = 0
		s.effects.cancel = append(s.effects.cancel, c)
	}
	return true
}

// idle reports whether no creator runs and nothing waits for room.
func (s *state) idle() bool {
	return s.published.running.Load() == 0 && (s.share == nil || s.share.held == 0)
}
