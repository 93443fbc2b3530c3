package rooms

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

func pipelinesKind() engine.Kind {
	return engine.Kind{Options: "hash merge limit linger", Open: openPipelines}
}

// pipelines binds a pipeline cache over the fake Vulkan driver.
type pipelines struct {
	world *outside.World
	cfg   pipelinefile.Config

	mu      sync.Mutex
	open    *pipelinefile.Cache
	shaders map[string]string // source by name
}

func openPipelines(c *engine.Call) (engine.Component, error) {
	w := c.World
	p := &pipelines{world: w, shaders: map[string]string{}}
	p.cfg = pipelinefile.Config{
		FrontEnd: frontEnd{},
		Now:      w.Clock.Now,
	}
	switch merge := c.Or("merge", "on"); merge {
	case "on":
	case "off":
		p.cfg.NoMerge = true
	default:
		return nil, fault.Invalidf("conform: pipelines", "merge=%s, want on or off", merge)
	}
	var err error
	if p.cfg.Linger, err = c.Duration("linger", 0); err != nil {
		return nil, err
	}
	if text, ok := c.Option("limit"); ok {
		if p.cfg.Limit, err = parseBytes(text); err != nil {
			return nil, err
		}
	}
	if p.cfg.Hash, err = fixedHash(c); err != nil {
		return nil, err
	}
	return p, p.Reopen(c.Ctx)
}

// Reopen opens the cache for the machine as the script has it now.
func (p *pipelines) Reopen(ctx context.Context) error {
	cfg := p.cfg
	cfg.Identity = vulkanOf(p.world)
	cfg.Driver = vulkan{p.world.Driver, &cfg.Identity}
	disk, err := vfs.Machine()
	if err != nil {
		return err
	}
	ctx = vfs.With(ctx, func(root string) vfs.FS { return vfs.Watch(disk(root), p.world.Faults.Op) })
	opened, err := pipelinefile.Open(ctx, cfg)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, source := range p.shaders {
		if err := opened.Register(name, []byte(source)); err != nil {
			return errors.Join(err, opened.Close(ctx))
		}
	}
	p.open = opened
	return nil
}

func (p *pipelines) now() *pipelinefile.Cache {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (p *pipelines) Close(ctx context.Context) error { return p.now().Close(ctx) }

// Forges knows a pipeline file by how it begins.
func (p *pipelines) Forges(content []byte) bool {
	_, miss := layout.Announced(content[:min(len(content), layout.Preamble)])
	return miss == (layout.Miss{})
}

// Forge rewrites a field; see layout.Forge.
func (p *pipelines) Forge(_ string, content []byte, field, value string) ([]byte, error) {
	if identify(&pipelinefile.Identity{}, field, value) {
		return layout.Impersonate(content, func(id *layout.Identity) {
			identify((*pipelinefile.Identity)(&id.Machine), field, value)
		})
	}
	return layout.Forge(content, field, numberOf(value))
}

func (p *pipelines) Verbs() engine.Verbs {
	verbs := engine.TallyVerbs()
	number := func(get func(*pipelinefile.Cache) int) engine.Verb {
		return engine.Verb{Run: func(*engine.Call) (script.Result, error) { return engine.Number(get(p.now())), nil }}
	}
	maps.Copy(verbs, engine.Verbs{
		"shader":      {Least: 2, Most: 2, Run: p.shader},
		"unshader":    {Least: 1, Most: 1, Run: p.unshader},
		"get":         {Least: 1, Most: 1, Options: engine.CreatorOptions + "opts spec raw lease", Flags: engine.CreatorFlags, Run: p.get},
		"save":        {Least: 1, Most: 1, Run: p.save},
		"load":        {Least: 1, Most: 1, Run: p.load},
		"spirv":       number((*pipelinefile.Cache).SPIRV),
		"live":        number((*pipelinefile.Cache).Len),
		"clear":       {Run: func(*engine.Call) (script.Result, error) { p.now().Clear(); return engine.OK(), nil }},
		"drivercache": {Run: p.driverCache},
		"count":       {Least: 1, Most: 1, Run: p.count},
	})
	return verbs
}

func (p *pipelines) shader(c *engine.Call) (script.Result, error) {
	if err := p.now().Register(c.Arg(0), []byte(c.Arg(1))); err != nil {
		return script.Result{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shaders[c.Arg(0)] = c.Arg(1)
	return engine.OK(), nil
}

func (p *pipelines) unshader(c *engine.Call) (script.Result, error) {
	p.mu.Lock()
	delete(p.shaders, c.Arg(0))
	p.mu.Unlock()
	return engine.Done(p.now().Unregister(c.Arg(0)))
}

// request reads a shader's name with opts=, spec= and raw=.
func request(c *engine.Call) (pipelinefile.Request, error) {
	r := pipelinefile.Request{Shader: c.Arg(0)}
	bad := func(name, word string) (pipelinefile.Request, error) {
		return r, fault.Invalidf("conform: get", "%s: %q, want a number", name, word)
	}
	var err error
	if text, ok := c.Option("opts"); ok {
		if r.Options, err = strconv.ParseUint(text, 0, 64); err != nil {
			return bad("opts", text)
		}
	}
	for i, word := range list(c.Or("spec", "")) {
		n, err := strconv.ParseUint(word, 0, 32)
		if err != nil {
			return bad("spec", word)
		}
		r.Constants = append(r.Constants, pipelinefile.Constant{ID: uint32(i), Value: n})
	}
	if text, ok := c.Option("raw"); ok {
		r.Words = []uint32{}
		for _, word := range list(text) {
			n, err := strconv.ParseUint(word, 0, 32)
			if err != nil {
				return bad("raw", word)
			}
			r.Words = append(r.Words, uint32(n))
		}
	}
	return r, nil
}

// pipelineLease is a lease as a script keeps it.
type pipelineLease struct{ *pipelinefile.Lease }

func (l pipelineLease) Value() (string, bool) { return l.Pipeline().(pipeline).value.Text, true }

func (p *pipelines) get(c *engine.Call) (script.Result, error) {
	r, err := request(c)
	if err != nil {
		return script.Result{}, err
	}
	creator, err := c.Creator(c.Arg(0))
	if err != nil {
		return script.Result{}, err
	}
	l, origin, err := p.now().Get(context.WithValue(c.Ctx, makingKey{}, making{c, creator}), r)
	if err != nil {
		return script.Result{}, err
	}
	c.Lease(pipelineLease{l})
	name, got := r.Shader, l.Pipeline().(pipeline)
	if same := r.Words == nil && got.module.Shader == r.Shader || r.Words != nil && slices.Equal(got.module.Words, r.Words); !same {
		name = got.value.Text // another's
	}
	return script.Say(name).With("by", string(origin)), nil
}

func (p *pipelines) save(c *engine.Call) (script.Result, error) {
	path, inMemory, err := c.World.Files.Path(c.Arg(0))
	if err != nil {
		return script.Result{}, err
	}
	if !inMemory {
		_, err := p.now().Save(c.Ctx, path)
		return engine.Done(err)
	}
	file, _, err := p.now().SaveBytes(c.Ctx)
	if err != nil {
		return script.Result{}, err
	}
	return engine.Done(c.World.Files.Write(c.Arg(0), file))
}

func (p *pipelines) load(c *engine.Call) (script.Result, error) {
	path, inMemory, err := c.World.Files.Path(c.Arg(0))
	if err != nil {
		return script.Result{}, err
	}
	var l pipelinefile.Loaded
	if inMemory {
		file, err := c.World.Files.Read(c.Arg(0))
		if errors.Is(err, fault.ErrNotFound) {
			return missed(fault.Absent, ""), nil
		}
		if err != nil {
			return script.Result{}, err
		}
		l, err = p.now().LoadBytes(c.Ctx, file)
		if err != nil {
			return script.Result{}, err
		}
	} else if l, err = p.now().Load(c.Ctx, path); err != nil {
		return script.Result{}, err
	}
	if l.Reason != "" {
		return missed(l.Reason, l.Field), nil
	}
	blob := "no"
	if l.Blob {
		blob = "yes"
	}
	return engine.OK().With("entries", strconv.Itoa(l.Entries)).With("blob", blob), nil
}

func (p *pipelines) driverCache(*engine.Call) (script.Result, error) {
	if p.now().DriverCache() {
		return script.Say("on"), nil
	}
	return script.Say("off"), nil
}

func (p *pipelines) count(c *engine.Call) (script.Result, error) {
	m := p.now().Stats()
	switch c.Arg(0) {
	case "frontend":
		return engine.Number(m.Compiles), nil
	case "pipelines":
		return engine.Number(m.Pipelines), nil
	}
	return countReason(c.Arg(0), func(r fault.Reason) int64 { return m.Reasons[r] })
}
