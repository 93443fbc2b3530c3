package rooms

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// compile makes an artefact that uses the constant; it holds the value it was
// built with, cached or not.
func (x *constantCache) compile(c *engine.Call) (script.Result, error) {
	key := x.key(c, 1)
	e, at := x.engineOf(c)
	name := c.Arg(2)
	creator := c.Creator(name)
	at.key = key
	opts := constants.Options{Cost: creator.Cost, Removed: x.removed(at)}
	var l *constants.Lease
	var cached bool
	err := apart(func() (err error) {
		l, cached, err = e.Get(c.Ctx, key, creator.Bytes, opts, func(ctx context.Context) (constants.Value, error) {
			v, err := c.World.Create(ctx, creator, name, outside.Hooks{Begun: c.Begun}, c.Tally())
			if err != nil {
				return constants.Value{}, err
			}
			return constants.Value{Any: v, Bytes: v.Bytes, Free: v.Release}, nil
		})
		return err
	})
	engine.Check(err)
	c.Keep("artefact "+c.Name+" "+c.Arg(0), lease{l.Value, l.End}) // in use to the case's end, or until it is compiled anew
	x.built.Set(c.Arg(0), l)
	return script.Say().With("cached", engine.Word(cached, "yes", "no")), nil
}

// apart runs fn on a goroutine of its own, for rooms that compute on their
// caller's: one that user code ends is ErrGoexit.
func apart(fn func() error) error {
	ended := make(chan error, 1)
	actors.Go(func() { guard.Guard(fn, func(err error) { ended <- err }) })
	return <-ended
}

func (x *constantCache) execute(c *engine.Call) (script.Result, error) {
	l := x.built.Get(c.Arg(0))
	if l == nil {
		return script.Result{}, &fault.Error{Op: "conform: execute", Key: c.Arg(0), Err: fmt.Errorf("compile it first: %w", fault.ErrNotFound)}
	}
	return script.Say(textOf(l)), nil
}
