package sessioncache

import (
	"math"
	"slices"

	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/sums"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/limit"
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
	evicted  map[shapegroups.Shape]*group   // of these, the last of a shape that had to go for others: see lent
	owners   map[string]map[*group]struct{} // the groups, of either kind, that have names of an owner
	holds    map[string]int
	makings  map[string]*making   // owners of names that are being made
	clearing map[string]*clearing // the last reset of each owner that is under way
	interned int                  // names with an id
	wanted   Capacity             // as set; what is published follows as groups go, see surplus
	touched  touched.Gauge
	sifts    int // turns that were not enough, see sifted
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
	g = s.published.newGroup(use.compiled, use.placed)
	groups := s.published.capacity().Groups
	switch {
	case !groups.Allows(1):
	case !groups.Allows(s.published.groups.Load()+1) && !s.policy.Worth(use.compiled, s.standing):
	case s.makeRoom(1, 0, nil):
		s.register(g)
		return g, nil
	}
	g.dead.Store(true)
	s.serve(g)
	return g, nil
}

// register publishes an empty group for which room was made.
func (s *state) register(g *group) {
	g.policy = s.policy.Admit(g.shape, g.bytes, g.cost.Value().Seconds())
	g.policy.Of = g
	g.registered = true
	s.published.groups.Add(1)
	s.published.shapes.Put(g.at)
}

// makeRoom evicts until the groups and bytes given fit besides what there is, and
// reserves the bytes where they are shared. own is not chosen. It reports false if
// they do not fit with every other group gone.
func (s *state) makeRoom(groups, bytes int64, own *group) bool {
	return s.evictUntil(own, func() Cause {
		why := s.short(groups, bytes)
		if why == nothing && !s.share.reserve(bytes) {
			return ForPool
		}
		return why
	})
}

// evictUntil evicts by the policy, all but own, while there is a cause to, and reports
// whether there is none left.
func (s *state) evictUntil(own *group, cause func() Cause) bool {
	s.own = own
	defer func() { s.own = nil }()
	for why := cause(); why != nothing; why = cause() {
		if !s.evictOne(why) {
			return false
		}
	}
	return true
}

// evictOne evicts the group that the policy chooses, and reports whether one may go.
func (s *state) evictOne(why Cause) bool {
	victim := s.policy.Victim(s.standing, policy.Busy)
	if victim == nil {
		return false
	}
	if n := s.published.groups.Load(); s.published.capacity().Groups.Allows(n + 1) { // it is bytes that are short
		s.requests.all.Full(int(n))
	}
	s.evict(victim.Of.(*group), why)
	s.published.evictions.Add(1)
	return true
}

// sifted sees to it that the group that has to go for one more, of the bytes given, is
// found at once: what is in use is passed over as far as a turn goes. It reports whether
// that is done, or has been tried often enough: users may come and go as fast.
func (s *state) sifted(bytes int64) bool {
	if !s.closed && s.short(1, bytes) != nothing {
		s.policy.Sift(s.standing, s.touched.Left)
		if s.sifts++; !s.touched.Left() && s.sifts < touched.Often {
			return false
		}
	}
	s.sifts = 0
	return true
}

// short says of what the session's capacity has too little for the groups and bytes
// given, besides what there is.
func (s *state) short(groups, bytes int64) Cause {
	return s.shortOf(s.published.capacity(), groups, bytes)
}

func (s *state) shortOf(c Capacity, groups, bytes int64) Cause {
	switch {
	case !c.Groups.Allows(s.published.groups.Load() + groups):
		return ForGroups
	case !fits(c.Bytes, s.published.bytes.Load(), bytes):
		return ForBytes
	}
	return nothing
}

// fits reports whether more bytes may come to those that there are. Without a capacity
// the largest sum is one (SPEC Q5).
func fits(capacity Limit, bytes, more int64) bool {
	all := sums.Add(bytes, more)
	return all < math.MaxInt64 && capacity.Allows(all)
}

// over reports whether they are more than that, or than its pool has.
func (s *state) over(groups, bytes int64) bool {
	return s.short(groups, bytes) != nothing || !s.share.fits(bytes)
}

// standing is what the policy asks of the groups it looks at (SPEC S3).
func (s *state) standing(p *policy.Group) policy.Standing {
	s.touched.Add(1)
	g := p.Of.(*group)
	switch {
	case g == s.own:
		return policy.Fixed
	case g.free():
		return policy.Free
	}
	return policy.Busy
}

// evict takes a registered group out: for readers by one store, in the counts
// by one subtraction each, whatever its size. Its values are freed later.
func (s *state) evict(g *group, why Cause) {
	if s.told && why != nothing {
		s.effects.lost = append(s.effects.lost, lost{g.shape, why})
	}
	s.touched.Add(1)
	g.dead.Store(true)
	p := s.published
	p.shapes.Remove(g.at)
	p.objects.Add(-g.objects)
	p.bytes.Add(-g.bytes)
	p.groups.Add(-1)
	s.share.changed(-g.bytes)
	g.policy.Of = nil
	s.policy.Remove(g.policy)
	g.policy, g.registered = nil, false
	s.serve(g)
	if why != Cleared && s.wanted.Groups.Allows(1) && s.wanted.Bytes.Allows(1) {
		s.evicted[g.shape] = g
	}
	s.vacated(g)
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

// resize sets the capacity that is given. It changes nothing if that is negative or
// below the floor. Calls of surplus follow, until there is none.
func (s *state) resize(groups, bytes Limit) error {
	if s.closed {
		return errClosed
	}
	c := Capacity{Groups: groups.Or(s.wanted.Groups), Bytes: bytes.Or(s.wanted.Bytes)}
	n, err := policyGroups(c.Groups)
	if err == nil {
		err = c.Bytes.Validate()
	}
	if err == nil {
		err = s.floor.within(c)
	}
	if err == nil {
		err = s.policy.SetGroups(n)
	}
	if err != nil {
		return err
	}
	s.wanted = c
	if !c.Groups.Allows(1) || !c.Bytes.Allows(1) { // what is being made meanwhile does not stay (SPEC F7)
		s.desk.VoidAll()
		s.evicted = make(map[shapegroups.Shape]*group)
	}
	return s.requests.all.SetGroups(n)
}

// surplus evicts what the capacity as set has no room for, as far as a turn goes, and
// reports whether there is nothing left of it. Until then what is there is the capacity,
// so that nothing is added to it meanwhile.
func (s *state) surplus() (done bool) {
	for !done && s.touched.Left() {
		why := s.shortOf(s.wanted, 0, 0)
		done = why == nothing || !s.evictOne(why)
	}
	c := s.wanted
	if n := s.published.groups.Load(); !c.Groups.Allows(n) {
		c.Groups = limit.Of(n)
	}
	if n := s.published.bytes.Load(); !c.Bytes.Allows(n) {
		c.Bytes = limit.Of(n)
	}
	s.published.limits.Store(&c)
	return done
}

// announce tells the policy which groups waiting requests need, soonest first.
func (s *state) announce(shapes []shapegroups.Shape) {
	s.touched.Add(2 * mostAnnounced)
	s.policy.Announce(shapes)
}

// save copies what the policy knows, as far as a turn goes, and reports whether that was
// all. Until another snapshot is complete, none begins.
func (s *state) save(to **policy.Snapshot) (done bool) {
	left := func() bool { s.touched.Add(1); return s.touched.Left() }
	if *to == nil {
		*to = s.policy.Snapshot(left)
	}
	return *to != nil && (*to).Copy(left)
}

// intern gives the place of a name among the interned ones. Groups that hold it
// already learn its place by learn: until then it is found by its hash.
func (s *state) intern(name string, hash uint64) NameID {
	if n := s.published.ids.Hashed(hash, name, 0); n != nil {
		return n.Value
	}
	if s.closed {
		return NameID{name: name}
	}
	n := s.published.ids.HashedNode(hash, name, 0)
	n.Value = NameID{name: name, slot: s.interned, of: s.published}
	s.interned++
	s.published.ids.Put(n)
	return n.Value
}

// learn has groups that are registered know the place of an interned name.
func (s *state) learn(id NameID, hash uint64, groups []*group) {
	for _, g := range groups {
		s.touched.Add(1)
		if held := g.names.Hashed(hash, id.name, 0); held != nil && g.registered {
			s.place(g, held, id.slot)
		}
	}
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
		s.desk.End(c.place(), c)
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
