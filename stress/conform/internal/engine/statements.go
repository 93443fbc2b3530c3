package engine

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// statements are the statements of the language that need no component; await,
// for, watch, flip-each and truncate-each are the frame's own.
var statements Verbs

func init() {
	statements = Verbs{
		"open":   {Least: 2, Most: 2, Options: "*", Run: open},
		"go":     {Least: 1, Most: 1, Run: told(func(c *Call) error { c.World.Go(c.Arg(0)); return nil })},
		"cancel": {Least: 1, Most: 1, Run: told(func(c *Call) error { c.World.Cancel(c.Arg(0)); return nil })},
		"env": {Options: "*", Run: told(func(c *Call) error {
			return c.settings("NAME=VALUE", func(name, value string) error { c.World.Env.Set(name, value); return nil })
		})},
		"clock":   {Least: 1, Most: 1, Run: told(advance)},
		"sleep":   {Least: 1, Most: 1, Run: sleep},
		"use":     {Least: 1, Most: 1, Run: use},
		"end":     {Least: 1, Most: 1, Run: endLease},
		"ratio":   {Least: 2, Most: 2, Run: ratio},
		"blocked": {Least: 1, Most: 1, Run: blocked},
		"identity": {Options: "*", Run: told(func(c *Call) error {
			return c.settings("FIELD=VALUE", c.World.Identify)
		})},
		"freed":   {Least: 1, Most: 1, Run: func(c *Call) (script.Result, error) { return Number(c.World.Freed.Get(c.Arg(0))), nil }},
		"refused": {Least: 0, Most: 1, Run: refused},
		"leaks":   {Run: func(c *Call) (script.Result, error) { return Number(c.run.leaks()), nil }},
		"process": {Least: 1, Most: 1, Run: startProcess},
		"kill":    {Least: 1, Most: 1, Run: processVerb(syscall.SIGKILL, gone)},
		"stop":    {Least: 1, Most: 1, Run: processVerb(sigStop, nil)},
		"cont":    {Least: 1, Most: 1, Run: processVerb(sigCont, nil)},
		"exited":  {Least: 1, Most: 1, Run: processVerb(0, gone)},
		"fault":   {Least: 0, Most: 1, Options: "*", Run: setFaults},
		"io":      {Least: 1, Most: 1, Run: countIO},
		"driver":  {Least: 0, Most: 2, Options: "create merge deliver blob", Run: driver},
	}
	maps.Copy(statements, fileStatements)
}

// slip fails the case: the script says something that the language has not.
func (c *Call) slip(err error) error {
	if err != nil {
		c.run.fail(c.line, err.Error(), "a statement of the language")
	}
	return err
}

// told is a statement about the outside that the case's processes share.
func told(do func(*Call) error) func(*Call) (script.Result, error) {
	return func(c *Call) (script.Result, error) {
		err := do(c)
		if err == nil {
			c.announce()
		}
		return Done(err)
	}
}

// settings hands each option over.
func (c *Call) settings(want string, set func(name, value string) error) error {
	if len(c.Options()) == 0 {
		return c.slip(c.refuse("want %s", want))
	}
	for _, o := range c.Options() {
		if err := set(o.Name, o.Value); err != nil {
			return c.slip(err)
		}
	}
	return nil
}

func refused(c *Call) (script.Result, error) {
	variables := []string{c.Arg(0)}
	if c.Arg(0) == "" {
		variables = slices.Collect(maps.Keys(c.World.Refused.All()))
	}
	return Number(c.World.Refused.Sum(variables...)), nil
}

func advance(c *Call) error {
	d, err := time.ParseDuration(strings.TrimPrefix(c.Arg(0), "+"))
	if err != nil {
		return c.slip(c.refuse("%s: want a duration such as +90s", c.Arg(0)))
	}
	c.World.Clock.Advance(d)
	return nil
}

func sleep(c *Call) (script.Result, error) {
	d, err := time.ParseDuration(c.Arg(0))
	if err != nil {
		return Done(c.slip(c.refuse("%s: want a duration such as 20ms", c.Arg(0))))
	}
	select {
	case <-time.After(d):
		return OK(), nil
	case <-c.Ctx.Done():
		return script.Result{}, c.Ctx.Err()
	}
}

func use(c *Call) (script.Result, error) {
	l, ok := c.run.leases.Lookup(c.Arg(0))
	if !ok {
		return script.Result{}, c.refuse("there is no lease %s", c.Arg(0))
	}
	text, resident := l.Value()
	if !resident {
		return script.Say("gone"), nil
	}
	return script.Say(text), nil
}

func endLease(c *Call) (script.Result, error) {
	l, ok := c.run.leases.Take(c.Arg(0))
	if !ok {
		return script.Result{}, c.refuse("there is no lease %s", c.Arg(0))
	}
	l.End()
	return OK(), nil
}

func startProcess(c *Call) (script.Result, error) {
	name, n, err := script.SplitThread(c.Arg(0))
	if err != nil {
		return Done(c.slip(err))
	}
	return Done(c.slip(c.run.startProcesses(name, max(1, n))))
}

func setFaults(c *Call) (script.Result, error) {
	switch {
	case c.Arg(0) == "off" && len(c.Options()) == 0:
		c.World.Faults.Off()
		return OK(), nil
	case c.Len() > 0:
		return Done(c.slip(c.refuse("want OP=ERR or off")))
	}
	return Done(c.settings("OP=ERR or off", c.World.Faults.Set))
}

func countIO(c *Call) (script.Result, error) {
	if c.Arg(0) == "reset" {
		c.World.Faults.Reset()
		return OK(), nil
	}
	n, err := c.World.Faults.Count(c.Arg(0))
	return Number(n), c.slip(err)
}

func driver(c *Call) (script.Result, error) {
	const want = "create=refuse, merge=fail, deliver=fail, blob=TEXT, ok or calls NAME"
	switch word := c.Arg(0); {
	case word == "ok" && c.Len() == 1 && len(c.Options()) == 0:
		c.World.Driver.OK()
		return OK(), nil
	case word == "calls" && c.Len() == 2:
		n, err := c.World.Driver.Calls(c.Arg(1))
		return Number(n), c.slip(err)
	case word != "":
		return Done(c.slip(c.refuse("want %s", want)))
	}
	return Done(c.settings(want, c.World.Driver.Set))
}

// octal reads a mode as 0700.
func octal(text string) (fs.FileMode, error) {
	m, err := strconv.ParseUint(text, 8, 32)
	if err != nil || m > 0o7777 {
		return 0, fmt.Errorf("%s: want a mode such as 0700", text)
	}
	return fs.FileMode(m), nil
}
