package rooms

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// runtime is the one that the sessions of a case share, or those of one artefact
// cache of the script.
type runtime struct {
	*kiln.Runtime
	cache *artefactCache // over the runtime's artefacts
}

func (runtime) Verbs() engine.Verbs { return nil }

func runtimeOf(c *engine.Call) (runtime, error) {
	cfg := kiln.Config{Lookup: c.World.Env.Lookup, Listen: heard, Linger: -1, Logger: slog.New(slog.DiscardHandler)}
	var cache *artefactCache
	if name, given := c.Option("cache"); given {
		cache = engine.At[*artefactCache](c, name)
		cfg.Artefacts, cfg.Linger = cache.cache, 0 // the cache says it
	}
	shared, err := c.Shared(fmt.Sprintf("runtime over %p", cache), func() (engine.Component, error) {
		r, err := kiln.Open(cfg)
		if err != nil {
			return nil, err
		}
		refuse(c.World, r.Refusals(), "KILN_SESSION_", "KILN_BUCKET")
		return runtime{r, cmp.Or(cache, &artefactCache{cache: r.Artefacts(), blobs: true})}, nil
	})
	if err != nil {
		return runtime{}, err
	}
	return shared.(runtime), nil
}

// session binds a session of a runtime.
type session struct {
	door    *kiln.Session
	session *sessioncache.Session // the room below it
	runtime runtime
	cached  bool // every name is an artefact of a cache of the script
	linger  time.Duration
	below   outside.Counts // how the artefact cache answered where the name was absent
}

func openSession(c *engine.Call) (engine.Component, error) {
	r, err := runtimeOf(c)
	if err != nil {
		return nil, err
	}
	cfg := kiln.SessionConfig{
		Name: c.Arg(0), Policy: c.Or("policy", ""), Hash: fixedHash(c),
		Groups: engine.Parsed(c, "groups", limit.Limit{}, limit.Parse), Bytes: engine.Parsed(c, "bytes", limit.Limit{}, parseBytes),
	}
	cfg.Bucket = engine.Parsed(c, "bucket", cfg.Bucket, shapegroups.ParseBucketing)
	p := &session{runtime: r, linger: c.Duration("linger", 0)}
	_, p.cached = c.Option("cache")
	p.door = engine.Must(r.Session(cfg))
	p.session = p.door.Cache()
	return p, nil
}

func (p *session) Close(ctx context.Context) error { return p.door.Close(ctx) }

// eventKey is where the context of a call has the place for its event.
type eventKey struct{}

// heard is told how the calls of all sessions ended.
func heard(e kiln.Event) {
	if at, ok := e.Context.Value(eventKey{}).(*kiln.Event); ok {
		*at = e
	}
}

func (p *session) Verbs() engine.Verbs {
	return engine.Verbs{
		"set":       {Least: 3, Most: 3, Options: "owner lane bytes cost", Run: p.set},
		"get":       {Least: 2, Most: 2, Options: "owner lane lease", Run: p.get},
		"run":       {Least: 2, Most: 2, Options: engine.CreatorOptions + "owner lane lease key", Flags: engine.CreatorFlags, Run: p.run},
		"groups":    engine.Count(p.session.Groups),
		"objects":   engine.Count(p.session.Len),
		"bytes":     engine.Count(p.session.Bytes),
		"has":       {Least: 1, Most: 1, Run: p.has},
		"setgroups": setLimit(p.session.SetGroups, limit.Parse),
		"setbytes":  setLimit(p.session.SetBytes, parseBytes),
		"cap":       {Run: p.capacity},
		"reset":     {Least: 0, Most: 1, Options: "owner", Run: p.reset},
		"hold":      {Options: "owner", Run: p.hold},
		"announce":  engine.Does(1, p.announce),
		"map":       {Least: 1, Most: 1, Run: p.mapShape},
		"padding":   {Run: p.padding},
		"advice":    {Options: "policy groups", Run: p.advice},
		"count":     {Least: 1, Most: 1, Run: p.count},
	}
}

// options reads owner= and lane=. Any text names a lane.
func options(c *engine.Call) sessioncache.Options {
	o := sessioncache.Options{Owner: c.Or("owner", "")}
	if lane, ok := c.Option("lane"); ok {
		o.Lane = sessioncache.Lane(number("lane " + lane))
	}
	return o
}

func (p *session) set(c *engine.Call) (script.Result, error) {
	shape := engine.Must(shapegroups.Parse(c.Arg(0)))
	bytes := c.Size("bytes", 0)
	if bytes > 1<<62 {
		return script.Result{}, fault.Invalidf("conform: set", "bytes=%s", c.Or("bytes", ""))
	}
	v := c.World.Value(c.Arg(2), int64(bytes), c.Cost())
	return engine.Done(p.session.Set(c.Ctx, shape, c.Arg(1), valueOf(v), options(c)))
}

func valueOf(v *outside.Value) sessioncache.Value {
	return sessioncache.Value{Any: v, Bytes: v.Bytes, Cost: v.Cost, Free: v.Release}
}

func (p *session) get(c *engine.Call) (script.Result, error) {
	shape := engine.Must(shapegroups.Parse(c.Arg(0)))
	ref, ok := p.session.Lookup(shape, c.Arg(1), options(c).Lane)
	if !ok {
		return script.Say("absent"), nil
	}
	if name, wanted := c.Option("lease"); wanted {
		l, ok := ref.Acquire()
		if !ok {
			return script.Say("absent"), nil
		}
		c.Keep(name, lease{l.Value, l.End})
	}
	return script.Say(ref.Value().(*outside.Value).Text), nil
}

// run is one request: it takes the group for the time of the statement.
func (p *session) run(c *engine.Call) (script.Result, error) {
	shape := engine.Must(shapegroups.Parse(c.Arg(0)))
	key, keyed := c.Option("key")
	if !keyed {
		key = c.Arg(1)
	}
	creator := c.Creator(key, p.runtime.cache.name)
	if keyed || p.cached {
		return p.artefact(c, shape, keyed, key, creator)
	}
	return p.direct(c, shape, key, creator)
}

// answer says what a request got, and leases it where the script wants that.
func answer(c *engine.Call, v *outside.Value, event string, acquire func() (lease, bool)) (script.Result, error) {
	if name, wanted := c.Option("lease"); wanted {
		l, ok := acquire()
		if !ok {
			return script.Result{}, fault.Invalidf("conform: run", "what %s leases was freed under an open handle", c.Arg(1))
		}
		c.Keep(name, l)
	}
	return script.Say(v.Text).With("by", event), nil
}

// artefact has the name stand for an artefact of the content key.
func (p *session) artefact(c *engine.Call, shape shapegroups.Shape, keyed bool, key string, creator outside.Creator) (script.Result, error) {
	g := engine.Must(p.door.Group(c.Ctx, shape.Dims()...))
	defer g.Close()
	if !keyed {
		key = strings.Join([]string{c.Name, g.Shape().String(), c.Arg(1), c.Or("lane", "shared")}, " ")
	}
	var event kiln.Event
	o, linger := options(c), kiln.Option{} // which says nothing: the cache's counts
	if p.linger > 0 {
		linger = kiln.Linger(p.linger)
	}
	q := p.runtime.cache.request(c, key, creator, c.Tallies(p.runtime.cache.name)...)
	ctx := context.WithValue(c.Ctx, eventKey{}, &event)
	v := engine.Must(kiln.Get(ctx, g, c.Arg(1), recipe(q), kiln.Owner(o.Owner), kiln.OnLane(o.Lane), linger))
	answered := event.Kind
	if answered == kiln.Miss {
		answered = event.Artefact
		p.below.Add(string(answered))
	}
	return answer(c, v, string(answered), func() (lease, bool) {
		l, ok := kiln.Acquire[*outside.Value](g, c.Arg(1), kiln.OnLane(o.Lane))
		return lease{func() any { return l.Value() }, l.End}, ok
	})
}

// recipe is what a request asks for.
func recipe(q artefacts.Request) kiln.Recipe[*outside.Value] {
	made := func(b artefacts.Built, err error) (kiln.Made[*outside.Value], error) {
		v, _ := b.Value.(*outside.Value)
		return kiln.Made[*outside.Value]{Value: v, Bytes: b.Bytes, Cost: b.Cost, Free: b.Free, Blob: b.Blob, Requires: b.Requires}, err
	}
	r := kiln.Recipe[*outside.Value]{Key: q.Key, Backend: q.Backend,
		Make: func(ctx context.Context) (kiln.Made[*outside.Value], error) { return made(q.Create(ctx)) }}
	if q.Load != nil {
		r.Load = func(ctx context.Context, blob []byte) (kiln.Made[*outside.Value], error) {
			return made(q.Load(ctx, blob))
		}
	}
	return r
}

// direct has the name own what its creator makes.
func (p *session) direct(c *engine.Call, shape shapegroups.Shape, key string, creator outside.Creator) (script.Result, error) {
	g := engine.Must(p.session.Group(c.Ctx, shape))
	defer g.Close()
	parts := p.runtime.cache.request(c, key, creator, c.Tallies(p.runtime.cache.name)...)
	o := options(c)
	o.Linger = p.linger
	ref, event := engine.Must2(g.Get(c.Ctx, c.Arg(1), o, func(ctx context.Context) (sessioncache.Value, error) {
		built, err := parts.Create(ctx)
		if err != nil {
			return sessioncache.Value{}, err
		}
		return valueOf(built.Value.(*outside.Value)), nil
	}))
	return answer(c, ref.Value().(*outside.Value), string(event), func() (lease, bool) {
		l, ok := ref.Acquire()
		return lease{l.Value, l.End}, ok
	})
}

func (p *session) has(c *engine.Call) (script.Result, error) {
	return howMany(shapesOf(c), p.session.Has)
}

func shapesOf(c *engine.Call) (shapes []shapegroups.Shape) {
	for _, text := range c.Keys(0) {
		shapes = append(shapes, engine.Must(shapegroups.Parse(text)))
	}
	return shapes
}

// count adds what the session answered by name and what the artefact cache
// answered below it; of the latter the session knows only that it missed.
func (p *session) count(c *engine.Call) (script.Result, error) {
	engine.Must(p.session.Stream(c.Ctx)) // a turn, so that all requests are counted
	stats := p.session.Stats()
	counts := map[string]uint64{"hit": stats.Hits, "miss": stats.Misses, "joined": stats.Joined, "failed": stats.Failures,
		"thrash": stats.Thrash, "persistent_hit": 0, "kernel_hit": 0, "nested_hit": 0}
	for event, below := range p.below.All() {
		if event != string(artefacts.Miss) {
			counts[event] += uint64(below)
			counts["miss"] -= uint64(below)
		}
	}
	return counted(counts, c.Arg(0), "%q is no event of a session")
}
