package rooms

import (
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

func (x *constantCache) setCapacity(c *engine.Call) (script.Result, error) {
	mib := engine.Must(parseMiB(c.Arg(1)))
	if strings.Contains(c.Arg(0), ":") {
		kind, index := device(c.Arg(0))
		return engine.Done(x.cache.SetDeviceCapacity(c.Ctx, kind, index, mib))
	}
	kind := engine.Must(constants.ParseKind(c.Arg(0)))
	return engine.Done(x.cache.SetCapacity(c.Ctx, kind, mib))
}

// parseMiB reads a capacity; the C API's numbers go up to 2^64-1.
func parseMiB(text string) (limit.Limit, error) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return constants.MiB(n), nil
	}
	return limit.Parse(text)
}

func (x *constantCache) capacity(c *engine.Call) (script.Result, error) {
	if !strings.Contains(c.Arg(0), ":") {
		return script.Say(x.cache.Capacity(engine.Must(constants.ParseKind(c.Arg(0)))).String()), nil
	}
	kind, index := device(c.Arg(0))
	mib, err := x.cache.DeviceCapacity(kind, index)
	return script.Say(mib.String()), err
}

func (x *constantCache) turn(c *engine.Call) (script.Result, error) {
	switch c.Arg(0) {
	case "on", "off":
		return engine.Done(x.cache.SetEnabled(c.Ctx, c.Arg(0) == "on"))
	case "":
		return script.Say(engine.Word(x.cache.Enabled(), "on", "off")), nil
	}
	return script.Result{}, fault.Invalidf("conform: switch", "%q, want on, off or nothing", c.Arg(0))
}

// size is that of a device: of all its contexts, unless one is named.
func (x *constantCache) size(c *engine.Call) (script.Result, error) {
	kind, index := device(c.Or("dev", "cpu:0"))
	if name, given := c.Option("context"); given {
		return engine.Number(engine.Must(x.cache.Engine(kind, index, name)).Size()), nil
	}
	var sum int64
	for at := range x.contexts.All() {
		if at.kind == kind && at.index == index {
			sum += engine.Must(x.cache.Engine(kind, index, at.context)).Size()
		}
	}
	return engine.Number(sum), nil
}
