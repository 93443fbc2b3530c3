package rooms

import (
	"context"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

func setLimit(set func(context.Context, limit.Limit) error, parse func(string) (limit.Limit, error)) engine.Verb {
	return engine.Does(1, func(c *engine.Call) error { return set(c.Ctx, engine.Must(parse(c.Arg(0)))) })
}

func (p *session) capacity(*engine.Call) (script.Result, error) {
	have := p.session.Capacity()
	return script.Say().With("groups", have.Groups.String()).With("bytes", have.Bytes.String()), nil
}

func (p *session) reset(c *engine.Call) (script.Result, error) {
	owner, ok := c.Option("owner")
	switch {
	case ok && c.Len() == 0:
		return engine.Done(p.session.Reset(c.Ctx, owner))
	case !ok && c.Arg(0) == "all":
		return engine.Done(p.session.ResetAll(c.Ctx))
	}
	return script.Result{}, fault.Invalidf("conform: reset", "want owner=O or all")
}

func (p *session) hold(c *engine.Call) (script.Result, error) {
	return engine.Done(p.session.Hold(c.Or("owner", "")))
}

func (p *session) announce(c *engine.Call) error {
	if c.Arg(0) == "none" {
		return p.session.Announce()
	}
	return p.session.Announce(shapesOf(c)...)
}

// mapShape answers in the form that it was asked in.
func (p *session) mapShape(c *engine.Call) (script.Result, error) {
	asked := engine.Must(shapegroups.Parse(c.Arg(0)))
	compiled := engine.Must(p.session.Map(asked))
	if strings.HasPrefix(c.Arg(0), "[") {
		return script.Say(compiled.String()), nil
	}
	return engine.Number(compiled.Dims()[0][0]), nil
}

func (p *session) padding(c *engine.Call) (script.Result, error) {
	_, err := p.session.Stream(c.Ctx) // a turn, so that all requests are counted
	stats := p.session.Stats()
	return script.Say().With("useful", strconv.FormatInt(stats.Useful, 10)).With("padded", strconv.FormatInt(stats.Padded, 10)), err
}

func (p *session) advice(c *engine.Call) (script.Result, error) {
	groups := c.Int("groups", sessioncache.DefaultGroups)
	r, err := p.session.Advice(c.Ctx, c.Or("policy", ""), groups)
	return script.Say().With("distinct", strconv.Itoa(r.Distinct)).With("hits", strconv.Itoa(r.Hits)), err
}
