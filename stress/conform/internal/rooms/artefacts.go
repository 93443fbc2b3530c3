package rooms

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// artefactCache binds an artefact cache over a fake backend.
type artefactCache struct {
	name  string // in the script
	cache *artefacts.Cache
	below *backing // nil: no store
	blobs bool     // the backend can give and take them

	events outside.Register[string, []string]
}

func openArtefacts(c *engine.Call) (engine.Component, error) {
	settings := settingsOf(c.World, "PRIMITIVE_CACHE_CAPACITY")
	a := &artefactCache{name: c.Arg(0), blobs: c.Or("blobs", "yes") == "yes"}
	cfg := artefacts.Config{
		Entries: engine.Parsed(c, "cap", settings.ArtefactCapacity.Value, limit.Parse), Bytes: engine.Parsed(c, "bytes", limit.Limit{}, parseBytes),
		Hash: fixedHash(c), Linger: c.Duration("linger", 0), Now: c.World.Clock.Now, Listen: a.listen,
	}
	if name, ok := c.Option("store"); ok {
		a.below = &backing{store: engine.At[*store](c, name)}
		cfg.Store = a.below
	}
	a.cache = engine.Must(artefacts.Open(cfg))
	return a, nil
}

func (a *artefactCache) listen(key string, o artefacts.Outcome) {
	a.events.Change(key, func(all []string) []string { return append(all, string(o.Event)) })
}

func (a *artefactCache) Close(ctx context.Context) error {
	err := a.cache.Close(ctx)
	if a.below != nil {
		err = errors.Join(err, a.below.Close(ctx))
	}
	return err
}

func (a *artefactCache) Verbs() engine.Verbs {
	const callOptions = engine.CreatorOptions + "owner lease unhashable"
	return engine.Verbs{
		"get":        {Least: 1, Most: 1, Options: callOptions, Flags: engine.CreatorFlags, Run: a.get},
		"force":      {Least: 1, Most: 1, Options: callOptions, Flags: engine.CreatorFlags, Run: a.force},
		"peek":       {Least: 1, Most: 1, Options: "lease", Run: a.peek},
		"has":        {Least: 1, Most: 1, Run: a.has},
		"len":        engine.Count(a.cache.Len),
		"bytes":      engine.Count(a.cache.Bytes),
		"kernels":    engine.Count(a.cache.Kernels),
		"cap":        {Run: a.capacity},
		"setcap":     {Least: 0, Most: 1, Options: "bytes", Run: a.setCapacity},
		"events":     {Least: 1, Most: 1, Run: a.eventsOf},
		"count":      {Least: 1, Most: 1, Run: a.count},
		"drop-owner": engine.Does(1, func(c *engine.Call) error { return a.cache.Reset(c.Arg(0)) }),
		"blob":       {Least: 1, Most: 1, Options: "to", Run: a.blob},
		"fromblob":   {Least: 2, Most: 2, Options: callOptions, Flags: engine.CreatorFlags, Run: a.fromBlob},
		"settle":     engine.Does(0, func(c *engine.Call) error { return a.cache.Settle(c.Ctx) }),
	}
}

// request asks for a key with a fake creator, which may ask for more. Each tally
// counts it.
func (a *artefactCache) request(c *engine.Call, key string, creator outside.Creator, tallies ...*outside.Tally) artefacts.Request {
	r := artefacts.Request{Key: key, Owner: c.Or("owner", ""), Backend: testBackend}
	hooks := a.hooks(c, tallies...)
	r.Create = func(ctx context.Context) (artefacts.Built, error) {
		v, err := c.World.Create(ctx, creator, key, hooks, tallies...)
		if err != nil {
			return artefacts.Built{}, err
		}
		return a.built(v), nil
	}
	if a.blobs {
		r.Load = func(_ context.Context, blob []byte) (artefacts.Built, error) {
			for _, t := range tallies {
				t.Loads.Add(key)
			}
			return a.load(c, key, creator, blob)
		}
	}
	return r
}

// hooks join a fake creator to this cache.
func (a *artefactCache) hooks(c *engine.Call, tallies ...*outside.Tally) outside.Hooks {
	return outside.Hooks{
		Begun: c.Begun,
		Nest: func(ctx context.Context, part string) error {
			l, _, err := a.cache.Get(ctx, a.request(c, part, c.CreatorOf(part, a.name), tallies...))
			if err == nil {
				l.End()
			}
			return err
		},
		Kernel: func(ctx context.Context, kernel string) error {
			_, err := a.cache.Kernel(ctx, artefacts.Request{Key: kernel, Create: func(context.Context) (artefacts.Built, error) {
				return artefacts.Built{Value: kernel, Bytes: 1}, nil
			}})
			return err
		},
	}
}

func (a *artefactCache) built(v *outside.Value) artefacts.Built {
	b := artefacts.Built{Value: v, Bytes: v.Bytes, Cost: v.Cost, Free: v.Release}
	if a.blobs {
		b.Blob = func(context.Context) ([]byte, error) { return encodeBlob(v) }
		b.Requires = []string{} // it runs on every machine
	}
	return b
}

// fakeBlob is what the fake driver's blobs carry, behind their digest.
type fakeBlob struct {
	Text  string
	Bytes int64
	Cost  time.Duration
}

func encodeBlob(v *outside.Value) ([]byte, error) {
	text, err := json.Marshal(fakeBlob{v.Text, v.Bytes, v.Cost})
	sum := sha256.Sum256(text)
	return append(sum[:], text...), err
}

// decodeBlob reads what encodeBlob wrote.
func decodeBlob(blob []byte) (b fakeBlob, ok bool) {
	if len(blob) < sha256.Size {
		return b, false
	}
	text := blob[sha256.Size:]
	sum := sha256.Sum256(text)
	return b, bytes.Equal(sum[:], blob[:sha256.Size]) && json.Unmarshal(text, &b) == nil
}

// load is the fake driver with a stored blob.
func (a *artefactCache) load(c *engine.Call, key string, creator outside.Creator, blob []byte) (artefacts.Built, error) {
	switch creator.Load {
	case outside.LoadAbort:
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			return artefacts.Built{}, err
		}
		select {} // the signal is on its way
	case outside.LoadRefuse:
		return artefacts.Built{}, refusal(key, fault.DriverRefused)
	}
	if len(blob) < sha256.Size {
		return artefacts.Built{}, refusal(key, fault.Truncated)
	}
	b, ok := decodeBlob(blob)
	if !ok {
		return artefacts.Built{}, refusal(key, fault.Checksum)
	}
	return a.built(c.World.Value(b.Text, b.Bytes, b.Cost)), nil
}

func refusal(key string, why fault.Reason) error {
	return &fault.Error{Op: "conform: driver", Key: key, Reason: why, Err: fault.ErrRefused}
}

// ask makes one call that may compute.
func (a *artefactCache) ask(c *engine.Call, do func(context.Context, artefacts.Request) (*artefacts.Lease, artefacts.Outcome, error)) (script.Result, error) {
	creator := c.Creator(c.Arg(0))
	r := a.request(c, c.Arg(0), creator, c.Tally())
	r.Unhashable = c.Or("unhashable", "")
	l, outcome := engine.Must2(do(c.Ctx, r))
	c.Lease(lease{l.Value, l.End})
	result := script.Say(l.Value().(*outside.Value).Text).With("by", string(outcome.Event))
	return engine.Because(result, outcome.Reason, outcome.Field), nil
}

func (a *artefactCache) get(c *engine.Call) (script.Result, error)   { return a.ask(c, a.cache.Get) }
func (a *artefactCache) force(c *engine.Call) (script.Result, error) { return a.ask(c, a.cache.Force) }

func (a *artefactCache) fromBlob(c *engine.Call) (script.Result, error) {
	blob := engine.Must(c.World.Files.Read(c.Arg(1)))
	return a.ask(c, func(ctx context.Context, r artefacts.Request) (*artefacts.Lease, artefacts.Outcome, error) {
		return a.cache.FromBlob(ctx, r, blob)
	})
}

func (a *artefactCache) blob(c *engine.Call) (script.Result, error) {
	blob := engine.Must(a.cache.Blob(c.Ctx, c.Arg(0)))
	return engine.OK().With("bytes", strconv.Itoa(len(blob))), c.World.Files.Write(c.Or("to", ""), blob)
}

func (a *artefactCache) peek(c *engine.Call) (script.Result, error) {
	l, outcome := engine.Must2(a.cache.Peek(c.Ctx, c.Arg(0)))
	if l == nil {
		return script.Say("miss").With("reason", string(outcome.Reason)), nil
	}
	c.Lease(lease{l.Value, l.End})
	return script.Say(l.Value().(*outside.Value).Text), nil
}

func (a *artefactCache) has(c *engine.Call) (script.Result, error) {
	return howMany(c.Keys(0), a.cache.Has)
}

func (a *artefactCache) capacity(*engine.Call) (script.Result, error) {
	entries, size := a.cache.Capacity()
	return script.Say(entries.String()).With("bytes", size.String()), nil
}

func (a *artefactCache) setCapacity(c *engine.Call) (script.Result, error) {
	var entries limit.Limit
	if c.Len() == 1 {
		entries = engine.Must(limit.Parse(c.Arg(0)))
	}
	return engine.Done(a.cache.SetCapacity(entries, engine.Parsed(c, "bytes", limit.Limit{}, parseBytes)))
}

func (a *artefactCache) eventsOf(c *engine.Call) (script.Result, error) {
	if events := a.events.Get(c.Arg(0)); len(events) > 0 {
		return script.Say(events...), nil
	}
	return script.Say("none"), nil
}

func (a *artefactCache) count(c *engine.Call) (script.Result, error) {
	stats, word := a.cache.Stats(), c.Arg(0)
	if n, ok := stats.Events[artefacts.Event(word)]; ok {
		return engine.Number(int64(n)), nil
	}
	again := stats.Again
	if n, ok := map[string]uint64{ // F10
		"again_evicted": again.Evicted, "again_cleared": again.Cleared, "again_failed": again.Failed,
		"again_forced": again.Forced, "again_refused": again.Refused,
	}[word]; ok {
		return engine.Number(int64(n)), nil
	}
	return countReason(word, func(r fault.Reason) int64 { return int64(stats.Reasons[r]) })
}

// countReason reads the counter of a reason of R1.
func countReason(word string, of func(fault.Reason) int64) (script.Result, error) {
	if r := fault.Reason(word); slices.Contains(fault.Reasons(), r) {
		return engine.Number(of(r)), nil
	}
	return script.Result{}, fault.Invalidf("conform: count", "%q is no event and no reason", word)
}
