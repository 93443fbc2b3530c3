package rooms

import (
	"context"
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

// constantCache binds the constant caches of one process.
type constantCache struct {
	cache    *constants.Cache
	owners   outside.Register[string, *ownership] // by their name in the script
	removals outside.Register[tensor, []string]
	contexts outside.Register[place, bool]              // that were used
	built    outside.Register[string, *constants.Lease] // artefacts' values; the engine ends them
	mu       struct {
		sync.Mutex
		room [4096]byte // where data= lies, each time at the same address
	}
}

// tensor is where a callback was registered.
type tensor struct {
	kind  constants.Kind
	index int
	key   constants.Key
}

// place is a context of a device.
type place struct {
	kind    constants.Kind
	index   int
	context string
}

// ownership is an owner with what the script wants of the value to come.
type ownership struct {
	owner      *constants.Promise
	bytes      uint64
	lease, ref string
}

func openConstants(c *engine.Call) (engine.Component, error) {
	settings := settingsOf(c.World, "CONSTANT_TENSOR_CACHE_CAPACITY")
	x := &constantCache{}
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
	cfg.Hash, cfg.Linger = fixedHash(c), c.Duration("linger", 0)
	x.cache = engine.Must(constants.Open(cfg))
	return x, nil
}

func (x *constantCache) Close(ctx context.Context) error { return x.cache.Close(ctx) }

func (x *constantCache) Verbs() engine.Verbs {
	const where = "dev context data "
	return engine.Verbs{
		"get":    {Least: 1, Most: 2, Options: where + "bytes as lease ref cost", Run: x.get},
		"fulfil": {Least: 2, Most: 2, Options: "bytes lease ref", Run: x.fulfil},
		"fail": engine.Does(2, func(c *engine.Call) error {
			x.ownerOf(c.Arg(0)).owner.Fail(&outside.CreatorError{Text: c.Arg(1)})
			return nil
		}),
		"abandon": engine.Does(1, func(c *engine.Call) error { x.ownerOf(c.Arg(0)).owner.Abandon(); return nil }),
		"remove":  {Least: 1, Most: 2, Options: where, Run: x.remove},
		"setcap":  {Least: 2, Most: 2, Run: x.setCapacity},
		"cap":     {Least: 1, Most: 1, Run: x.capacity},
		"switch":  {Least: 0, Most: 1, Run: x.turn},
		"size":    {Options: "dev context", Run: x.size},
		"fired":   {Least: 1, Most: 2, Options: where, Run: x.fired},
		"count":   {Least: 1, Most: 1, Run: x.count},
		"compile": {Least: 2, Most: 3, Options: where + engine.CreatorOptions, Flags: engine.CreatorFlags, Run: x.compile},
		"execute": {Least: 1, Most: 1, Run: x.execute},
	}
}

// device reads KIND:INDEX.
func device(text string) (constants.Kind, int) {
	word, number, _ := strings.Cut(text, ":")
	index, err := strconv.Atoi(number)
	if err != nil {
		err = fault.Invalidf("conform: device", "%q, want KIND:INDEX", text)
	}
	return engine.Must(constants.ParseKind(word)), engine.Must(index, err)
}

// engineOf gives the engine of dev= and context=.
func (x *constantCache) engineOf(c *engine.Call) (*constants.Engine, tensor) {
	kind, index := device(c.Or("dev", "cpu:0"))
	context := c.Or("context", "")
	e := engine.Must(x.cache.Engine(kind, index, context))
	x.contexts.Set(place{kind, index, context}, true)
	return e, tensor{kind: kind, index: index}
}

// key reads BACKEND KEY from word i on, or BACKEND with data=.
func (x *constantCache) key(c *engine.Call, i int) constants.Key {
	wrong := func(format string, args ...any) constants.Key {
		return engine.Must(constants.Key{}, fault.Invalidf("conform: "+c.Name, format, args...))
	}
	backend, err := strconv.ParseUint(c.Arg(i), 10, 64)
	if err != nil {
		return wrong("the backend is %q, want a number", c.Arg(i))
	}
	text, ok := c.Option("data")
	switch {
	case ok == (c.Len() > i+1):
		return wrong("want either a key or data=")
	case !ok:
		return constants.Key{Backend: backend, ID: constants.Versioned(c.Arg(i+1), 0)}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	n := copy(x.mu.room[:], text)
	if n < len(text) {
		return wrong("%d bytes of data, want at most %d", len(text), n)
	}
	return constants.Key{Backend: backend, ID: constants.Content(x.mu.room[:n])}
}

func (x *constantCache) removed(at tensor) func(constants.Removal) {
	return func(why constants.Removal) {
		x.removals.Change(at, func(all []string) []string { return append(all, string(why)) })
	}
}

func (x *constantCache) get(c *engine.Call) (script.Result, error) {
	key := x.key(c, 0)
	e, at := x.engineOf(c)
	bytes := c.Size("bytes", 1)
	cost := c.Cost()
	at.key = key
	name, canOwn := c.Option("as")
	out, err := e.GetOrAdd(c.Ctx, key, int64(bytes), constants.Options{Cost: cost, Removed: x.removed(at), CanOwn: canOwn})
	switch {
	case err != nil:
		return script.Result{}, err
	case out.Bypass != "":
		return script.Say("bypass").With("reason", string(out.Bypass)), nil
	case out.Owner != nil:
		x.owners.Set(name, &ownership{out.Owner, bytes, c.Or("lease", ""), c.Or("ref", "")})
		return script.Say("owner"), nil
	}
	text := textOf(out.Lease)
	if ref, ok := c.Option("ref"); ok {
		c.Keep(ref, hold(out.Lease))
	}
	c.Lease(lease{out.Lease.Value, out.Lease.End})
	return script.Say("hit", text), nil
}

func textOf(l *constants.Lease) string { return l.Value().(*outside.Value).Text }

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
	if h.ref != nil {
		if v, ok := h.ref.Use(); ok {
			return v.(*outside.Value).Text, true
		}
	}
	return "", false
}

func (h heldTensor) End() {
	if h.ref != nil {
		h.ref.Drop()
	}
}

func (x *constantCache) ownerOf(name string) *ownership {
	o := x.owners.Get(name)
	if o == nil {
		return engine.Must(o, fault.Invalidf("conform: owner", "nobody owns as %q", name))
	}
	return o
}

func (x *constantCache) fulfil(c *engine.Call) (script.Result, error) {
	o := x.ownerOf(c.Arg(0))
	bytes := c.Size("bytes", o.bytes)
	v := c.World.Value(c.Arg(1), int64(min(bytes, 1<<62)), 0)
	l := engine.Must(o.owner.Fulfil(v, int64(bytes), v.Release))
	if name := c.Or("ref", o.ref); name != "" {
		c.Keep(name, hold(l))
	}
	if name := c.Or("lease", o.lease); name != "" {
		c.Keep(name, lease{l.Value, l.End})
	} else {
		l.End()
	}
	return engine.OK(), nil
}

func (x *constantCache) remove(c *engine.Call) (script.Result, error) {
	key := x.key(c, 0)
	e, _ := x.engineOf(c)
	there, err := e.Remove(c.Ctx, key)
	if err == nil && !there {
		return script.Say("absent"), nil
	}
	return engine.Done(err)
}

// fired gives the reasons a key's callbacks got, on every device unless dev= is given.
func (x *constantCache) fired(c *engine.Call) (script.Result, error) {
	key := x.key(c, 0)
	want := func(tensor) bool { return true }
	if dev, ok := c.Option("dev"); ok {
		kind, index := device(dev)
		want = func(at tensor) bool { return at.kind == kind && at.index == index }
	}
	var reasons []string
	for at, list := range x.removals.All() {
		if at.key == key && want(at) {
			reasons = append(reasons, list...)
		}
	}
	if len(reasons) == 0 {
		return script.Say("none"), nil
	}
	return script.Say(reasons...), nil
}

func (x *constantCache) count(c *engine.Call) (script.Result, error) {
	stats := x.cache.Stats()
	n, ok := stats.Bypasses[constants.Bypass(c.Arg(0))]
	if why, again := strings.CutPrefix(c.Arg(0), "again_"); again {
		n, ok = stats.Again[why]
	}
	if !ok {
		return script.Result{}, fault.Invalidf("conform: count", "%q is no reason of a bypass or of a second computation", c.Arg(0))
	}
	return engine.Number(int64(n)), nil
}
