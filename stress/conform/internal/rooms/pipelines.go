package rooms

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// pipelines binds a pipeline cache over the fake Vulkan driver.
type pipelines struct {
	world   *outside.World
	cfg     pipelinefile.Config
	open    atomic.Pointer[pipelinefile.Cache]
	shaders outside.Register[string, string] // source by name
}

func openPipelines(c *engine.Call) (engine.Component, error) {
	w := c.World
	p := &pipelines{world: w}
	p.cfg = pipelinefile.Config{
		FrontEnd: frontEnd{}, Now: w.Clock.Now, Hash: fixedHash(c), Linger: c.Duration("linger", 0),
		Limit: engine.Parsed(c, "limit", limit.Limit{}, parseBytes),
	}
	switch merge := c.Or("merge", "on"); merge {
	case "on":
	case "off":
		p.cfg.NoMerge = true
	default:
		return nil, fault.Invalidf("conform: pipelines", "merge=%s, want on or off", merge)
	}
	return p, p.Reopen(c.Ctx)
}

// Reopen opens the cache for the machine as the script has it now.
func (p *pipelines) Reopen(ctx context.Context) error {
	cfg := p.cfg
	cfg.Identity = vulkanOf(p.world)
	cfg.Driver = vulkan{&p.world.Driver, &cfg.Identity}
	ctx, err := watched(ctx, p.world)
	if err != nil {
		return err
	}
	opened, err := pipelinefile.Open(ctx, cfg)
	if err != nil {
		return err
	}
	for name, source := range p.shaders.All() {
		if err := opened.Register(name, []byte(source)); err != nil {
			return errors.Join(err, opened.Close(ctx))
		}
	}
	p.open.Store(opened)
	return nil
}

func (p *pipelines) now() *pipelinefile.Cache { return p.open.Load() }

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
	return engine.Verbs{
		"shader":      engine.Does(2, p.shader),
		"unshader":    engine.Does(1, p.unshader),
		"get":         {Least: 1, Most: 1, Options: engine.CreatorOptions + "opts spec raw lease", Flags: engine.CreatorFlags, Run: p.get},
		"save":        engine.Does(1, p.save),
		"load":        {Least: 1, Most: 1, Run: p.load},
		"spirv":       engine.Count(func() int { return p.now().SPIRV() }),
		"live":        engine.Count(func() int { return p.now().Len() }),
		"clear":       engine.Does(0, func(*engine.Call) error { p.now().Clear(); return nil }),
		"drivercache": {Run: p.driverCache},
		"count":       {Least: 1, Most: 1, Run: p.count},
	}
}

func (p *pipelines) shader(c *engine.Call) error {
	err := p.now().Register(c.Arg(0), []byte(c.Arg(1)))
	if err == nil {
		p.shaders.Set(c.Arg(0), c.Arg(1))
	}
	return err
}

func (p *pipelines) unshader(c *engine.Call) error {
	p.shaders.Take(c.Arg(0))
	return p.now().Unregister(c.Arg(0))
}

// request reads a shader's name with opts=, spec= and raw=.
func request(c *engine.Call) pipelinefile.Request {
	r := pipelinefile.Request{
		Shader: c.Arg(0), Words: engine.Parsed(c, "raw", nil, words),
		Options: engine.Parsed(c, "opts", 0, func(text string) (uint64, error) { return strconv.ParseUint(text, 0, 64) }),
	}
	for i, value := range engine.Parsed(c, "spec", nil, words) {
		r.Constants = append(r.Constants, pipelinefile.Constant{ID: uint32(i), Value: uint64(value)})
	}
	return r
}

// words reads a list of words of 32 bits; the empty one is not nil.
func words(text string) ([]uint32, error) {
	return listOf(text, func(word string) (uint32, error) {
		n, err := strconv.ParseUint(word, 0, 32)
		return uint32(n), err
	})
}

func (p *pipelines) get(c *engine.Call) (script.Result, error) {
	r := request(c)
	creator := c.Creator(c.Arg(0))
	l, origin := engine.Must2(p.now().Get(context.WithValue(c.Ctx, makingKey{}, making{c, creator}), r))
	name, got := r.Shader, l.Pipeline().(pipeline)
	c.Lease(lease{func() any { return l.Pipeline().(pipeline).value }, l.End})
	if same := r.Words == nil && got.module.Shader == r.Shader || r.Words != nil && slices.Equal(got.module.Words, r.Words); !same {
		name = got.value.Text // another's
	}
	return script.Say(name).With("by", string(origin)), nil
}

func (p *pipelines) save(c *engine.Call) error {
	path, inMemory := engine.Must2(c.World.Files.Path(c.Arg(0)))
	if !inMemory {
		_, err := p.now().Save(c.Ctx, path)
		return err
	}
	file, _ := engine.Must2(p.now().SaveBytes(c.Ctx))
	return c.World.Files.Write(c.Arg(0), file)
}

func (p *pipelines) load(c *engine.Call) (script.Result, error) {
	path, inMemory := engine.Must2(c.World.Files.Path(c.Arg(0)))
	var l pipelinefile.Loaded
	if inMemory {
		file, err := c.World.Files.Read(c.Arg(0))
		if errors.Is(err, fault.ErrNotFound) {
			return missed(fault.Absent, ""), nil
		}
		l = engine.Must(p.now().LoadBytes(c.Ctx, engine.Must(file, err)))
	} else {
		l = engine.Must(p.now().Load(c.Ctx, path))
	}
	if l.Reason != "" {
		return missed(l.Reason, l.Field), nil
	}
	return engine.OK().With("entries", strconv.Itoa(l.Entries)).With("blob", engine.Word(l.Blob, "yes", "no")), nil
}

func (p *pipelines) driverCache(*engine.Call) (script.Result, error) {
	return script.Say(engine.Word(p.now().DriverCache(), "on", "off")), nil
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
