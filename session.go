package kiln

import (
	"context"
	"log/slog"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Shape is the input shape of a run: a list of dimensions for each input.
type Shape = shapegroups.Shape

// ShapeOf makes the shape of inputs, as Session.Group does.
func ShapeOf(inputs ...[]int64) (Shape, error) { return shapegroups.Of(inputs...) }

// Bucketing maps the shape that is asked for to the shape that is compiled.
type Bucketing = shapegroups.Bucketing

// ParseBucketing reads exact, multiple:N, pow2 or geometric:K.
func ParseBucketing(text string) (Bucketing, error) { return shapegroups.ParseBucketing(text) }

// Floor is what other sessions cannot take of a session.
type Floor = sessioncache.Floor

// Lane binds a name to a worker whose value no other worker may use. The zero
// Lane is the one that all share; Worker gives those of workers.
type Lane = sessioncache.Lane

// Worker is the lane of worker n, counted from 0.
func Worker(n uint32) Lane { return sessioncache.Worker(n) }

// NameID is an interned name: looking it up costs no hash.
type NameID = sessioncache.NameID

// SessionStats is a snapshot of one session.
type SessionStats = sessioncache.Stats

// SessionConfig of a Session. The zero value is usable: fields that are not given
// follow the environment.
type SessionConfig struct {
	// Name is that of the predictor, executor or tenant, in logs, errors and events. Sessions
	// may have the same: then the floors of their artefacts add up.
	Name string

	Groups Limit // shape groups; default KILN_SESSION_GROUPS, else 64. 0 disables caching; no bound is Unlimited
	Bytes  Limit // of all values; default unlimited

	// Pool is what this session and others may hold together; default the pool of
	// Config.SessionBytes, if there is one.
	Pool *sessioncache.Pool
	// Floor is what other sessions cannot take of this one, where sessions share a bound:
	// Config.SessionBytes, ArtefactBytes or MemoryLimit. A session with a floor in bytes
	// needs a Name: the artefacts that it uses count to the same floor, under that name
	// as their owner.
	Floor Floor

	Policy string    // which group goes first: fifo, lru, sieve or duel; default KILN_SESSION_POLICY, else duel
	Keep   string    // always, or worth: keep a new group only if it is worth what has to go; default always
	Bucket Bucketing // default KILN_BUCKET, else exact
	Saved  []byte    // what SavePolicy of the room below gave in an earlier run; empty begins anew

	// Evicted, if not nil, is told which groups had to go and why; see
	// sessioncache.Config.
	Evicted func(compiled Shape, why sessioncache.Cause)

	Hash   func(string) uint64 // places keys in tables; nil = a seeded hash of the process
	Logger *slog.Logger        // nil = the runtime's
}

// Session is the cache of one predictor, executor or tenant: input shape, then
// name, then value. Names of all sessions share artefacts by key; nothing else is
// shared. Make it with Runtime.Session and Close it, or leave that to the
// runtime. Safe for concurrent use.
type Session struct {
	room    *sessioncache.Session
	runtime *Runtime
	name    string
	owner   string // of its artefacts, where a floor is to count them; else empty
	leave   func() // gives its floor among the artefacts back, once
	record  *recorder

	life context.Context // ends when Close begins
	end  context.CancelFunc
}

// Session opens a session. ErrInvalid names what is wrong with the config.
// ErrTooLarge: the floors of all sessions are more than Config.SessionBytes or
// Config.ArtefactBytes.
func (r *Runtime) Session(cfg SessionConfig) (*Session, error) {
	if r.none() {
		return nil, errNoRuntime
	}
	return r.session(r.room(cfg))
}

func (r *Runtime) session(cfg sessioncache.Config) (*Session, error) {
	r.mu.Lock()
	if r.mu.over {
		r.mu.Unlock()
		return nil, errClosed
	}
	r.opening.sessions.Add(1) // Close waits for those who are under way
	r.mu.Unlock()
	defer r.opening.sessions.Done()
	s, err := r.tenant(cfg)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	over := r.mu.over
	if !over {
		r.mu.sessions[s] = struct{}{}
	}
	r.mu.Unlock()
	if over {
		_ = s.Close(context.Background()) // it is empty: nothing can go wrong, and nothing is waited for
		return nil, errClosed
	}
	return s, nil
}

// room is the config of the room below: what is not given, the environment says.
func (r *Runtime) room(c SessionConfig) sessioncache.Config {
	if c.Policy == "" {
		c.Policy = r.settings.SessionPolicy.Value
	}
	if c.Bucket.IsZero() {
		c.Bucket, _ = ParseBucketing(r.settings.Bucket.Value) // the environment's reader takes no other
	}
	return sessioncache.Config{
		Name: c.Name, Groups: c.Groups.Or(r.settings.SessionGroups.Value), Bytes: c.Bytes, Pool: c.Pool, Floor: c.Floor,
		Policy: c.Policy, Keep: c.Keep, Saved: c.Saved, Bucket: c.Bucket, Hash: c.Hash, Logger: c.Logger,
		Evicted: c.Evicted,
	}
}

// Name is SessionConfig.Name.
func (s *Session) Name() string {
	if s == nil {
		return ""
	}
	return s.name
}

// Group gives what is cached for an input shape: a list of dimensions for each
// input. It is one request, which the policy is told of; a group that is new is
// registered, for which another may have to go. Close it when the request is done.
// ErrInvalid: no such shape; ErrClosed.
func (s *Session) Group(ctx context.Context, inputs ...[]int64) (*Group, error) {
	shape, err := shapegroups.Of(inputs...)
	if err != nil {
		return nil, failedOn("kiln: group", "", err)
	}
	room, err := s.in().Group(ctx, shape)
	if err != nil {
		return nil, s.failedOn("kiln: group", shape.String(), err)
	}
	return &Group{room: room, session: s, listen: s.runtime.cfg.Listen}, nil
}

// Intern gives the id of a name, for LookupID and Refer. Ids are never given
// back: intern the names of a model, not names made up for each request.
func (s *Session) Intern(name string) NameID { return s.in().Intern(name) }

// Announce tells which shapes the waiting requests need, soonest first, in place
// of what was announced before. Their groups stay while any other can go.
func (s *Session) Announce(shapes ...Shape) error {
	return s.failedOn("kiln: announce", "", s.in().Announce(shapes...))
}

// Hold makes one later Reset of the owner do nothing. Holds add up. ErrInvalid: the
// owner is empty; ErrClosed.
func (s *Session) Hold(owner string) error {
	return s.failedOn("kiln: hold", owner, s.in().Hold(owner))
}

// Reset removes the names of one owner from every group, and nothing else. A Hold
// absorbs it. Values are freed once nobody uses them, which may be later.
// ErrInvalid: the owner is empty; ErrClosed, or the context's error.
func (s *Session) Reset(ctx context.Context, owner string) error {
	return s.failedOn("kiln: reset", owner, s.in().Reset(ctx, owner))
}

// ResetAll removes every group and name, and waits until what nobody uses is freed,
// however long that takes; ctx ends the waiting only. It heeds no Hold. ErrCycle, and
// nothing is changed: a Free of the session, or its Evicted, calls it.
func (s *Session) ResetAll(ctx context.Context) error {
	return s.failedOn("kiln: reset all", "", s.in().ResetAll(ctx))
}

// SetGroups changes the capacity in groups; lowering it evicts the surplus.
// ErrInvalid, and nothing is changed: the capacity is negative, not given or below
// the session's floor. ErrClosed, or the context's error.
func (s *Session) SetGroups(ctx context.Context, groups Limit) error {
	return s.failedOn("kiln: set groups", "", s.in().SetGroups(ctx, groups))
}

// SetBytes changes the capacity in bytes; lowering it evicts the surplus. Errors are
// those of SetGroups.
func (s *Session) SetBytes(ctx context.Context, bytes Limit) error {
	return s.failedOn("kiln: set bytes", "", s.in().SetBytes(ctx, bytes))
}

// Cache is the room below: the list of groups and names, advice, the recorded stream
// of shapes, the saved policy, and look-ups by full key. What is put there without a
// key is seen here as if Set had put it.
func (s *Session) Cache() *sessioncache.Session { return s.in() }

// Stats counts what the session did and holds. It waits for nothing: counts that
// the policy keeps may lag behind until the session's next turn.
func (s *Session) Stats() SessionStats { return s.in().Stats() }

// Close ends the session. It is empty at once, and callers that wait get their value
// or ErrClosed. Artefacts that are being made belong to all sessions: a Make goes on
// until it ends, its linger time is over, or the runtime closes. Close waits until
// every value of the session that nobody uses is freed; ctx ends only the waiting.
// Groups and leases go on serving what they hold. Called by a Free of the session or its
// Evicted, or with the context of a creator of its Cache, Close does not wait for itself,
// but answers ErrCycle; the session ends. It knows no other circle: Frees of two sessions that close each other
// wait until ctx ends.
func (s *Session) Close(ctx context.Context) error {
	if s == nil || s.room == nil {
		return nil
	}
	s.runtime.mu.Lock()
	delete(s.runtime.mu.sessions, s)
	s.runtime.crew.join() // until the room closes by the crew: Runtime.Close waits for either
	s.runtime.mu.Unlock()
	defer s.runtime.crew.back()
	s.end()
	s.leave()
	return failedOn("kiln: close session", s.name, s.room.Close(ctx))
}

// within is ctx, which ends with errSession when the session closes, until it is left.
func (s *Session) within(ctx context.Context) (until context.Context, leave func()) {
	until, cancel := context.WithCancelCause(guard.Context(ctx))
	stop := context.AfterFunc(s.life, func() { cancel(errSession) })
	if s.life.Err() != nil {
		cancel(errSession)
	}
	return until, func() {
		stop()
		cancel(nil)
	}
}

// failedOn is failedOn, unless there is no session.
func (s *Session) failedOn(op, name string, err error) error {
	if err != nil && (s == nil || s.room == nil) {
		err = errNoSession
	}
	return failedOn(op, name, err)
}

// in is the room below: of a nil Session, or one that Runtime.Session did not give,
// a room that is closed.
func (s *Session) in() *sessioncache.Session {
	if s == nil || s.room == nil {
		return closedRoom()
	}
	return s.room
}

var closedRoom = sync.OnceValue(func() *sessioncache.Session {
	room, _ := sessioncache.Open(sessioncache.Config{}) // the zero Config is good
	_ = room.Close(context.Background())                // it is empty
	return room
})

// none reports a nil Group, and one that Session.Group did not give.
func (g *Group) none() bool { return g == nil || g.room == nil }

// noGroup is what a call on such a group answers.
func noGroup(op string) error {
	return fault.Invalidf(op, "the group is nil or zero: want one that Session.Group gave")
}
