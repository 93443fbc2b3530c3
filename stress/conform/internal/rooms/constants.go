package rooms

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

func constantsKind() engine.Kind {
	return engine.Kind{Options: "policy hash", Open: openConstants}
}

// constantCache binds the constant caches of one process.
type constantCache struct {
	cache *constants.Cache

	mu struct {
		sync.Mutex
		owners   map[string]*ownership // by their name in the script
		removals map[tensor][]constants.Removal
		contexts map[tensor]map[string]bool  // contexts in use, by device
		built    map[string]*constants.Lease // artefacts' values; the engine ends them
		room     [4096]byte                  // where data= lies, each time at the same address
	}
}

// tensor is where a callback was registered.
type tensor struct {
	kind  constants.Kind
	index int
	key   constants.Key
}

// ownership is an owner with what the script wants of the value to come.
type ownership struct {
	owner      *constants.Promise
	bytes      uint64
	lease, ref string
}

func openConstants(c *engine.Call) (engine.Component, error) {
	settings := env.Read(c.World.Lookup)
	for _, r := range settings.Refusals {
		if strings.HasSuffix(r.Name, "_CONSTANT_TENSOR_CACHE_CAPACITY") {
			c.World.Refuse(r.Name)
		}
	}
	x := &constantCache{}
	x.mu.owners = map[string]*ownership{}
	x.mu.removals = map[tensor][]constants.Removal{}
	x.mu.contexts = map[tensor]map[string]bool{}
	x.mu.built = map[string]*constants.Lease{}
	var cfg constants.Config
	for kind, set := range map[constants.Kind]env.Constants{constants.CPU: settings.CPUConstants.Value, constants.GPU: settings.GPUConstants.Value} {
		cfg.Capacity[kind] = set.Capacity
		if set.Policy == env.Cost {
			cfg.Policy[kind] = constants.Cost
		}
		if policy, ok := c.Option("policy"); ok {
			cfg.Policy[kind] = constants.Policy(policy)
		}
	}
	var err error
	if cfg.Hash, err = fixedHash(c); err != nil {
		return nil, err
	}
	x.cache, err = constants.Open(cfg)
	return x, err
}

// fixedHash is the placing hash of hash=N, or nil where that was not given.
func fixedHash(c *engine.Call) (func(string) uint64, error) {
	if _, ok := c.Option("hash"); !ok {
		return nil, nil
	}
	n, err := c.Int("hash", 0)
	return func(string) uint64 { return uint64(n) }, err
}

func (x *constantCache) Close(ctx context.Context) error { return x.cache.Close(ctx) }

func (x *constantCache) Verbs() engine.Verbs {
	const where = "dev context data "
	verbs := engine.TallyVerbs()
	maps.Copy(verbs, engine.Verbs{
		"get":     {Least: 1, Most: 2, Options: where + "bytes as lease ref cost", Run: x.get},
		"fulfil":  {Least: 2, Most: 2, Options: "bytes lease ref", Run: x.fulfil},
		"fail":    {Least: 2, Most: 2, Run: x.fail},
		"abandon": {Least: 1, Most: 1, Run: x.abandon},
		"remove":  {Least: 1, Most: 2, Options: where, Run: x.remove},
		"setcap":  {Least: 2, Most: 2, Run: x.setCapacity},
		"cap":     {Least: 1, Most: 1, Run: x.capacity},
		"switch":  {Least: 0, Most: 1, Run: x.turn},
		"size":    {Options: "dev context", Run: x.size},
		"fired":   {Least: 1, Most: 2, Options: where, Run: x.fired},
		"count":   {Least: 1, Most: 1, Run: x.count},
		"compile": {Least: 2, Most: 3, Options: where + engine.CreatorOptions, Flags: engine.CreatorFlags, Run: x.compile},
		"execute": {Least: 1, Most: 1, Run: x.execute},
	})
	return verbs
}

// device reads KIND:INDEX.
func device(text string) (constants.Kind, int, error) {
	word, number, ok := strings.Cut(text, ":")
	kind, err := constants.ParseKind(word)
	if err != nil {
		return 0, 0, err
	}
	index, err := strconv.Atoi(number)
	if err != nil || !ok {
		return 0, 0, fault.Invalidf("conform: device", "%q, want KIND:INDEX", text)
	}
	return kind, index, nil
}

// engineOf gives the engine of dev= and context=.
func (x *constantCache) engineOf(c *engine.Call) (*constants.Engine, tensor, error) {
	kind, index, err := device(c.Or("dev", "cpu:0"))
	if err != nil {
		return nil, tensor{}, err
	}
	at := tensor{kind: kind, index: index}
	context := c.Or("context", "")
	e, err := x.cache.Engine(kind, index, context)
	if err != nil {
		return nil, at, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.contexts[at] == nil {
		x.mu.contexts[at] = map[string]bool{}
	}
	x.mu.contexts[at][context] = true
	return e, at, nil
}

// key reads BACKEND KEY from word i on, or BACKEND with data=.
func (x *constantCache) key(c *engine.Call, i int) (constants.Key, error) {
	backend, err := strconv.ParseUint(c.Arg(i), 10, 64)
	if err != nil {
		return constants.Key{}, fault.Invalidf("conform: backend", "%q, want a number", c.Arg(i))
	}
	text, ok := c.Option("data")
	switch {
	case ok == (c.Len() > i+1):
		return constants.Key{}, fault.Invalidf("conform: "+c.Name, "want either a key or data=")
	case !ok:
		return constants.Key{Backend: backend, ID: constants.Versioned(c.Arg(i+1), 0)}, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	n := copy(x.mu.room[:], text)
	if n < len(text) {
		return constants.Key{}, fault.Invalidf("conform: data", "%d bytes, want at most %d", len(text), n)
	}
	return constants.Key{Backend: backend, ID: constants.Content(x.mu.room[:n])}, nil
}

func (x *constantCache) removed(at tensor) func(constants.Removal) {
	return func(why constants.Removal) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.mu.removals[at] = append(x.mu.removals[at], why)
	}
}

func (x *constantCache) get(c *engine.Call) (script.Result, error) {
	key, err := x.key(c, 0)
	if err != nil {
		return script.Result{}, err
	}
	e, at, err := x.engineOf(c)
	if err != nil {
		return script.Result{}, err
	}
	bytes, err := c.Size("bytes", 1)
	if err != nil {
		return script.Result{}, err
	}
	cost, err := c.Seconds("cost", outside.Default("").Cost)
	if err != nil {
		return script.Result{}, err
	}
	at.key = key
	name, canOwn := c.Option("as")
	out, err := e.GetOrAdd(c.Ctx, key, int64(bytes), constants.Options{Cost: cost, Removed: x.removed(at), CanOwn: canOwn})
	switch {
	case err != nil:
		return script.Result{}, err
	case out.Bypass != "":
		return script.Say("bypass").With("reason", string(out.Bypass)), nil
	case out.Owner != nil:
		x.mu.Lock()
		defer x.mu.Unlock()
		x.mu.owners[name] = &ownership{out.Owner, bytes, c.Or("lease", ""), c.Or("ref", "")}
		return script.Say("owner"), nil
	}
	text := textOf(out.Lease)
	if ref, ok := c.Option("ref"); ok {
		c.Keep(ref, hold(out.Lease))
	}
	c.Lease(tensorLease{out.Lease})
	return script.Say("hit", text), nil
}

func textOf(l *constants.Lease) string { return l.Value().(*outside.Value).Text }

// tensorLease is a lease as a script keeps it.
type tensorLease struct{ *constants.Lease }

func (l tensorLease) Value() (string, bool) { return textOf(l.Lease), true }

// heldTensor is a held reference, which its callback drops.
type heldTensor struct{ ref *constants.Held } // nil: it was gone before it could be held

// hold keeps a reference beside a lease.
func hold(l *constants.Lease) heldTensor {
	kept := make(chan *constants.Held, 1) // the callback may come before Hold returns
	ref, ok := l.Hold(func(constants.Removal) { (<-kept).Drop() })
	if !ok {
		return heldTensor{}
	}
	kept <- ref
	return heldTensor{ref}
}

func (h heldTensor) Value() (string, bool) {
	if h.ref == nil {
		return "", false
	}
	v, ok := h.ref.Use()
	if !ok {
		return "", false
	}
	return v.(*outside.Value).Text, true
}

func (h heldTensor) End() {
	if h.ref != nil {
		h.ref.Drop()
	}
}

func (x *constantCache) ownerOf(name string) (*ownership, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if o := x.mu.owners[name]; o != nil {
		return o, nil
	}
	return nil, fault.Invalidf("conform: owner", "nobody owns as %q", name)
}

func (x *constantCache) fulfil(c *engine.Call) (script.Result, error) {
	o, err := x.ownerOf(c.Arg(0))
	if err != nil {
		return script.Result{}, err
	}
	bytes, err := c.Size("bytes", o.bytes)
	if err != nil {
		return script.Result{}, err
	}
	v := c.World.Value(c.Arg(1), int64(min(bytes, 1<<62)), 0)
	l, err := o.owner.Fulfil(v, int64(bytes), v.Release)
	if err != nil {
		return script.Result{}, err
	}
	if name := c.Or("ref", o.ref); name != "" {
		c.Keep(name, hold(l))
	}
	if name := c.Or("lease", o.lease); name != "" {
		c.Keep(name, tensorLease{l})
	} else {
		l.End()
	}
	return engine.OK(), nil
}

func (x *constantCache) fail(c *engine.Call) (script.Result, error) {
	o, err := x.ownerOf(c.Arg(0))
	if err == nil {
		o.owner.Fail(&outside.CreatorError{Text: c.Arg(1)})
	}
	return engine.Done(err)
}

func (x *constantCache) abandon(c *engine.Call) (script.Result, error) {
	o, err := x.ownerOf(c.Arg(0))
	if err == nil {
		o.owner.Abandon()
	}
	return engine.Done(err)
}

func (x *constantCache) remove(c *engine.Call) (script.Result, error) {
	key, err := x.key(c, 0)
	if err != nil {
		return script.Result{}, err
	}
	e, _, err := x.engineOf(c)
	if err != nil {
		return script.Result{}, err
	}
	there, err := e.Remove(c.Ctx, key)
	if err == nil && !there {
		return script.Say("absent"), nil
	}
	return engine.Done(err)
}

// fired gives the reasons a key's callbacks got, on every device unless dev= is given.
func (x *constantCache) fired(c *engine.Call) (script.Result, error) {
	key, err := x.key(c, 0)
	if err != nil {
		return script.Result{}, err
	}
	want := func(tensor) bool { return true }
	if dev, ok := c.Option("dev"); ok {
		kind, index, err := device(dev)
		if err != nil {
			return script.Result{}, err
		}
		want = func(at tensor) bool { return at.kind == kind && at.index == index }
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var reasons []string
	for at, list := range x.mu.removals {
		if at.key != key || !want(at) {
			continue
		}
		for _, why := range list {
			reasons = append(reasons, string(why))
		}
	}
	if len(reasons) == 0 {
		return script.Say("none"), nil
	}
	return script.Say(reasons...), nil
}

func (x *constantCache) count(c *engine.Call) (script.Result, error) {
	n, ok := x.cache.Stats().Bypasses[constants.Bypass(c.Arg(0))]
	if !ok {
		return script.Result{}, fault.Invalidf("conform: count", "%q is no reason of a bypass", c.Arg(0))
	}
	return engine.Number(int64(n)), nil
}
