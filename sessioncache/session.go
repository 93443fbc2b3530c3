package sessioncache

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/pool"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/recency"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/internal/zone"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Session is the cache of one predictor, executor or tenant. Make it with Open
// and Close it. Safe for concurrent use.
type Session struct {
	name      string
	published *published
	state     *state // the actor's
	actor     *actors.Ref[message]
	log       *recency.Log[asked]
	member    *pool.Member // of the pool; nil where there is none
	floor     Floor
	linger    time.Duration
	unwatch   func()            // leaves the memory limit
	telling   lease.Bin[func()] // what Config.Evicted is told of turns, and the log of evictions
	warning   lease.Bin[func()] // what else the log is told: a listener that blocks keeps it from nothing
	evicted   func(lost)        // tells of one
	creators  zone.Zone         // which Close waits for
	create    func(func())      // runs one on another goroutine

	joined atomic.Uint64

	closed  atomic.Bool // every call is refused from now on
	close   sync.Once
	done    chan struct{} // closed when nothing of the session runs any more
	sending struct {      // nothing is sent after it is shut: the actor would drop it
		sync.RWMutex
		shut bool
	}
	sent func() // sending.RUnlock, made once
}

// Open starts a session. ErrInvalid joins all that is wrong with the config.
func Open(c Config) (*Session, error) {
	c, err := c.Validate()
	if err != nil {
		return nil, err
	}
	p := newPublished(c, newFrees(c))
	st, err := newState(c, p)
	if err != nil {
		return nil, failed("open", c.Name, err)
	}
	s := &Session{
		name:      c.Name,
		published: p,
		state:     st,
		floor:     c.Floor,
		linger:    c.Linger,
		done:      make(chan struct{}),
	}
	s.creators.Up = c.zone
	s.create = s.creators.Lend(actors.Go)
	s.sent = s.sending.RUnlock
	p.tell = s.send
	s.tell(c)
	if err := s.join(c.Pool, c.Floor.Bytes); err != nil {
		return nil, failed("open", c.Name, err)
	}
	s.log = recency.NewLog[asked](func() { s.send(drain{}) })
	s.actor = actors.Spawn(actors.Config{Name: "session " + c.Name, Logger: c.Logger}, s.handler(c))
	s.unwatch = c.memory.Join(pressure.Room{Rank: pressure.Sessions, Offer: s.offer, Shrink: s.shrink})
	return s, nil
}

// tell has what happens in turns told, evictions if somebody wants to know of them.
func (s *Session) tell(c Config) {
	debug := c.Logger.Enabled(context.Background(), slog.LevelDebug)
	s.state.told = c.Evicted != nil || debug
	s.evicted = func(l lost) {
		if debug {
			c.Logger.Debug("session: evicted", "session", s.name, "shape", l.shape.String(), "for", string(l.why))
		}
		if c.Evicted != nil {
			c.Evicted(l.shape, l.why)
		}
	}
	for _, bin := range []*lease.Bin[func()]{&s.telling, &s.warning} {
		bin.InOrder = true
		bin.Init(s.published.frees.lend, func(tell func()) { tell() }, func(err error) {
			c.Logger.Error("session: telling of a turn", "session", s.name, "error", err)
		})
	}
}

// send tells the actor and reports false if the session has ended: what was
// sent is handled.
func (s *Session) send(m message) bool {
	s.sending.RLock()
	defer s.sending.RUnlock()
	return !s.sending.shut && s.actor.Tell(m)
}

// do is send by a goroutine that will wait: it may carry the turn out.
func (s *Session) do(m message) bool {
	s.sending.RLock()
	if s.sending.shut {
		s.sending.RUnlock()
		return false
	}
	return s.actor.Do(m, s.sent)
}

// Group is one request for a shape: it leases the shape's group until the result is
// closed. A group that is new is registered, for which other groups may have to go, and
// so is one again that was evicted and serves other calls still, if it fits.
// Where nothing is to be kept (capacity 0, SPEC S7) the group serves this call
// alone. Where the group is resident, Group waits for nothing. ErrInvalid: there is
// no such shape, or it cannot be bucketed. ErrClosed: the session was closed.
func (s *Session) Group(ctx context.Context, shape shapegroups.Shape) (*Group, error) {
	const op = "acquire"
	if err := ctx.Err(); err != nil {
		return nil, failed(op, shape.String(), err)
	}
	g, asked := s.published.find(shape)
	if g != nil {
		phase := g.grace.enter()
		if !g.dead.Load() {
			if use := &asked[byAcquire]; !s.log.Note(use, noHit) {
				s.published.unnoted(use)
			}
			return s.handle(g, phase), nil
		}
		s.leave(g, phase)
	}
	use, err := s.use(op, shape, byAcquire)
	if err != nil {
		return nil, err
	}
	a, err := actors.Ask(ctx, s.actor, func(r actors.Reply[admitted]) message { return acquire{Reply: r, use: use} })
	if err != nil {
		return nil, failed(op, shape.String(), err)
	}
	return s.handle(a.group, a.phase), nil
}

// handle makes the handle of a group whose grace was entered.
func (s *Session) handle(g *group, phase uint32) *Group {
	h := &Group{session: s, phase: phase, hits: s.published.place(g)}
	h.View = View{g, &h.closed}
	return h
}

// patience is how long the close of a handle waits for a turn (SPEC F6).
const patience = 50 * time.Millisecond

// leave is the end of a handle.
func (s *Session) leave(g *group, phase uint32) {
	if !g.grace.leave(phase) {
		return
	}
	dead := g.dead.Load()
	switch {
	case !dead && !g.filled.Load():
		// Nothing came of the request: the group goes, and is gone on return, or soon
		// where other turns are that long. If the session has ended, it went with it.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = actors.Ask(ctx, s.actor, func(r actors.Reply[struct{}]) message { return vacated{r, g} })
	case !dead && !g.grace.wanted.Load() && !g.aside.Load():
	case s.send(vacated{group: g}):
	case dead && !g.grace.open():
		s.published.frees.bin.Throw(trash{group: g}) // the session has ended: the actor cannot any more
	}
}

// use is the note for a request that needs a turn.
func (s *Session) use(op string, shape shapegroups.Shape, how int) (*asked, error) {
	if shape.IsZero() {
		return nil, noShape(op)
	}
	if s.closed.Load() {
		return nil, failed(op, shape.String(), errClosed)
	}
	asked, err := s.published.note(shape)
	if err != nil {
		return nil, failed(op, shape.String(), err)
	}
	return &asked[how], nil
}

// lookup finds a resident group, or nil. The caller notes one use of it.
func (s *Session) lookup(shape shapegroups.Shape) (*group, *notes) {
	g, asked := s.published.find(shape)
	if asked == nil && !shape.IsZero() && !s.published.bucket.Exact() {
		var err error
		if asked, err = s.published.note(shape); err != nil {
			return nil, nil
		}
		g = s.published.resident(asked[byLookup].compiled, asked[byLookup].placed)
	}
	return g, asked
}

// View is one request for the group of a shape; it reports false if none is
// registered. It creates, leases and allocates nothing, and never waits.
func (s *Session) View(shape shapegroups.Shape) (View, bool) {
	g, asked := s.lookup(shape)
	if g == nil {
		return View{}, false
	}
	s.log.Note(&asked[byLookup], noHit) // one made just now comes into the memo by it
	return View{g, &g.dead}, true
}

// Lookup looks a name up by its full key; lane 0 is the one that all workers share.
// It is one request. It creates nothing and never waits.
func (s *Session) Lookup(shape shapegroups.Shape, name string, lane Lane) (Ref, bool) {
	g, asked := s.lookup(shape)
	if g == nil {
		return Ref{}, false
	}
	r, ok := View{g, &g.dead}.Lookup(name, lane)
	if ok {
		s.log.Note(&asked[byKey], keyHit)
	} else {
		s.log.Note(&asked[byLookup], noHit)
	}
	return r, ok
}

// Has reports whether a group is registered for the shape and has held a name.
// It is no request.
func (s *Session) Has(shape shapegroups.Shape) bool {
	compiled, err := s.published.bucket.Map(shape)
	if err != nil {
		return false
	}
	g := s.published.lookup(compiled)
	return g != nil && g.filled.Load()
}

// Map gives the shape that is compiled for the one asked (SPEC S4).
func (s *Session) Map(shape shapegroups.Shape) (shapegroups.Shape, error) {
	return s.published.bucket.Map(shape)
}

// Set stores a value under a name and replaces what had the name. It registers the
// shape's group if that is new. It counts as one request. The session owns v
// whatever is returned. ErrTooLarge: v alone is above the byte capacity, and nothing
// was evicted. With 0 groups it keeps nothing and returns nil.
func (s *Session) Set(ctx context.Context, shape shapegroups.Shape, name string, v Value, o Options) error {
	return s.put(ctx, shape, writing{name: name, options: o, value: v})
}

// put is Set, of a shape or into a group that is known.
func (s *Session) put(ctx context.Context, shape shapegroups.Shape, w writing) (err error) {
	const op = "set"
	m := &write{writing: w}
	m.of = m
	defer func() { // also where Config.Hash or the context panics
		if m.take() { // its turn never came, and now it never will
			s.discard(m.value)
		}
	}()
	if m.group == nil {
		if m.use, err = s.use(op, shape, byLookup); err != nil {
			return err
		}
	}
	if err := checkName(op, m.name); err != nil {
		return err
	}
	if err := m.value.validate(op, m.name, m.options); err != nil {
		return err
	}
	m.hash = s.published.placed(m.name)
	_, err = actors.Ask(ctx, s.actor, func(r actors.Reply[struct{}]) message {
		m.Reply = r
		return m
	})
	return failed(op, m.name, err)
}

func noShape(op string) error {
	return fault.Invalidf(room+op, "the zero Shape: make one with shapegroups.Of")
}

func checkName(op, name string) error {
	if name == "" {
		return fault.Invalidf(room+op, "an empty name: give every value of a shape its own")
	}
	return nil
}

// discard frees a value that was never taken in.
func (s *Session) discard(v Value) {
	if v.Free != nil {
		s.published.frees.bin.Throw(trash{value: v.Free})
	}
}

// Intern gives the id of a name, for LookupID. Ids are never given back: intern
// the names of a model, not names made up for each request. Intern a name before it is
// set: beyond 512 groups, those that have it already find it by its hash, until it is
// set again.
func (s *Session) Intern(name string) NameID {
	hash := s.published.placed(name)
	if n := s.published.ids.Hashed(hash, name, 0); n != nil {
		return n.Value
	}
	id, err := actors.Ask(context.Background(), s.actor, func(r actors.Reply[NameID]) message { return intern{r, name, hash} })
	if err != nil {
		return NameID{name: name} // closed: it finds nothing anyhow
	}
	var some, holding []*group // those that get the name from now on know its place
	s.published.shapes.All(func(at *table.Node[group]) bool {
		some = append(some, &at.Value)
		return len(some) < touched.Most/8
	})
	for _, g := range some {
		if g.names.Hashed(hash, name, 0) != nil {
			holding = append(holding, g)
		}
	}
	for len(holding) > 0 && err == nil {
		holding, err = look(context.Background(), s, "intern", func(st *state) []*group { return st.learn(id, hash, holding) })
	}
	return id
}
