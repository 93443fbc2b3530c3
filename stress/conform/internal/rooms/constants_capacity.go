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
	mib, err := parseMiB(c.Arg(1))
	if err != nil {
		return script.Result{}, err
	}
	if strings.Contains(c.Arg(0), ":") {
		kind, index, err := device(c.Arg(0))
		if err != nil {
			return script.Result{}, err
		}
		return engine.Done(x.cache.SetDeviceCapacity(c.Ctx, kind, index, mib))
	}
	kind, err := constants.ParseKind(c.Arg(0))
	if err != nil {
		return script.Result{}, err
	}
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
		kind, err := constants.ParseKind(c.Arg(0))
		if err != nil {
			return script.Result{}, err
		}
		return script.Say(x.cache.Capacity(kind).String()), nil
	}
	kind, index, err := device(c.Arg(0))
	if err != nil {
		return script.Result{}, err
	}
	mib, err := x.cache.DeviceCapacity(kind, index)
	return script.Say(mib.String()), err
}

func (x *constantCache) turn(c *engine.Call) (script.Result, error) {
	switch c.Arg(0) {
	case "on", "off":
		return engine.Done(x.cache.SetEnabled(c.Ctx, c.Arg(0) == "on"))
	case "":
		if x.cache.Enabled() {
			return script.Say("on"), nil
		}
		return script.Say("off"), nil
	}
	return script.Result{}, fault.Invalidf("conform: switch", "%q, want on, off or nothing", c.Arg(0))
}

// size is that of a device: of all its contexts, unless one is named.
func (x *constantCache) size(c *engine.Call) (script.Result, error) {
	kind, index, err := device(c.Or("dev", "cpu:0"))
	if err != nil {
		return script.Result{}, err
	}
	var names []string
	if name, ok := c.Option("context"); ok {
		names = []string{name}
	} else {
		x.mu.Lock()
		for name := range x.mu.contexts[tensor{kind: kind, index: index}] {
			names = append(names, name)
		}
		x.mu.Unlock()
	}
	var sum int64
	for _, name := range names {
		e, err := x.cache.Engine(kind, index, name)
		if err != nil {
			return script.Result{}, err
		}
		sum += e.Size()
	}
	return script.Say(strconv.FormatInt(sum, 10)), nil
}
