package engine

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/internal/race"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// frame is one goroutine's way through statements. Owned by that goroutine.
type frame struct {
	run    *run
	who    string // the thread or process, empty for the script itself
	begun  func() // called when a creator of the running statement begins
	judged bool   // a statement without an arrow must not be an error
	erred  bool   // in a loop nobody judged an error
	calm   bool   // watching: no reading again, no events
}

// do runs one statement and judges it. The result is that of its last part.
func (x *frame) do(s *script.Statement, v script.Vars) script.Result {
	switch {
	case x.run.stopped():
		return script.Say("error", "stopped")
	case s.Err != nil:
		return x.fail(s, s.Err.Err.Error(), "a statement of the language")
	case s.Thread != "":
		return x.dispatch(s, v)
	case s.Loop != nil:
		return x.loop(s, v)
	case s.Each != nil:
		return x.each(s, v)
	case s.Watch != nil:
		return x.run.watch(x, s.Watch, v)
	}
	if first, _, _ := strings.Cut(s.Text, " "); first == "await" {
		return x.await(s, v)
	}
	text, p, err := read(s, v)
	if err != nil {
		return x.fail(s, err.Error(), "a statement of the language")
	}
	return x.plain(s.Line, text, p)
}

// read reads a plain statement.
func read(s *script.Statement, v script.Vars) (text string, p script.Plain, err error) {
	if text, err = script.Expand(s.Text, v); err == nil {
		p, err = script.ParsePlain(text)
	}
	return text, p, err
}

func (x *frame) fail(s *script.Statement, got, want string) script.Result {
	x.run.fail(s.Line, got, want)
	return script.Say("error", "stopped")
}

// loop runs the body for each item. In a thread, where only await judges what
// has no arrow, the first error stands for the whole loop.
func (x *frame) loop(s *script.Statement, v script.Vars) script.Result {
	list, err := script.Expand(s.Loop.List, v)
	if err != nil {
		return x.fail(s, err.Error(), "a list")
	}
	items, err := script.Items(list)
	if err != nil {
		return x.fail(s, err.Error(), "a list")
	}
	result := OK()
	var wrong script.Result
	var turns []time.Duration
	for _, item := range items {
		begin := time.Now()
		for i := range s.Loop.Body {
			body := &s.Loop.Body[i]
			result = x.do(body, v.WithI(item))
			if x.run.stopped() {
				return result
			}
			if !x.erred && !x.judged && result.Failed() && body.Loop == nil && !strings.Contains(body.Text, " -> ") {
				wrong, x.erred = result, true
			}
		}
		if s.Loop.As != "" {
			turns = append(turns, time.Since(begin))
		}
	}
	if len(turns) > 0 {
		slices.Sort(turns)
		x.run.medians.Set(s.Loop.As, turns[len(turns)/2])
	}
	if x.erred {
		return wrong
	}
	return result
}

// judgesItself tells whether the result of a statement, of a loop its last
// one's, was judged by an arrow already.
func judgesItself(s *script.Statement) bool {
	for s.Loop != nil {
		s = &s.Loop.Body[len(s.Loop.Body)-1]
	}
	return strings.Contains(s.Text, " -> ")
}

// order is a plain statement with who answers it.
type order struct {
	verb   Verb
	name   string // by which counters are known
	call   *Call
	within time.Duration
	alloc  uint64 // bytes it may allocate, 0 for any
}

// plain finds who answers, asks, and judges.
func (x *frame) plain(line int, text string, p script.Plain) script.Result {
	o, err := x.resolve(line, text, p)
	if err != nil {
		x.run.fail(line, err.Error(), "a statement of the language")
		return script.Say("error", "stopped")
	}
	first := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		result, complaint := x.ask(line, o, p.Expect)
		if !x.calm {
			x.run.note(event{who: x.who, line: line, text: text, got: result.String()})
		}
		switch {
		case x.run.stopped():
			return result
		case complaint != "":
			x.run.fail(line, complaint, p.Expect.String())
			return result
		case !closedReason(result):
			x.run.fail(line, result.String(), "a reason out of the closed set")
			return result
		case p.Expect.Match(result), !x.judged && !p.Expect.Given():
			return result
		case x.calm || !o.counter() || time.Since(first) > counterLimit:
			x.run.fail(line, result.String(), p.Expect.String())
			return result
		}
		time.Sleep(pause)
	}
}

func (o order) counter() bool {
	return listed(counters, o.name) || o.name == "driver" && o.call.Arg(0) == "calls"
}

// ask runs the verb once under the statement's limits. The limit is watched
// from outside, so that the statement stays in its own goroutine.
func (x *frame) ask(line int, o order, want script.Expectation) (result script.Result, complaint string) {
	watchdog := time.AfterFunc(o.within, func() {
		x.run.fail(line, fmt.Sprintf("no answer after %v", o.within), want.String())
	})
	defer watchdog.Stop()
	var before, after runtime.MemStats
	if o.alloc > 0 {
		runtime.ReadMemStats(&before)
	}
	result, complaint = x.answer(o)
	if o.alloc > 0 {
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > o.alloc && !race.Enabled {
			complaint = fmt.Sprintf("%s, having allocated %d bytes of %d", result, n, o.alloc)
		}
	}
	return result, complaint
}

func (x *frame) answer(o order) (result script.Result, complaint string) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case ending:
			result = Answer(v.err)
		default:
			complaint = fmt.Sprintf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	defer o.call.end()
	result, err := o.verb.Run(o.call)
	if err != nil {
		return Answer(err), ""
	}
	return result, ""
}

// resolve finds the verb: a statement's name first, then a component's.
func (x *frame) resolve(line int, text string, p script.Plain) (order, error) {
	c := &Call{Ctx: x.run.ctx, World: x.run.world, run: x.run, line: line, text: text, options: p.Options, begun: x.begun}
	o := order{call: c, within: statementLimit}
	name := p.Words[0].Text
	c.Name = name
	var ok bool
	if o.verb, ok = x.run.engine.statement(name); ok {
		o.name, c.args = name, p.Words[1:]
	} else {
		if c.slot = x.run.slots.Get(name); c.slot == nil {
			return o, fmt.Errorf("%s is no statement and no open component", name)
		}
		if len(p.Words) < 2 {
			return o, fmt.Errorf("%s: want a verb", name)
		}
		o.name, c.args = p.Words[1].Text, p.Words[2:]
		if o.verb, ok = verbOf(c.slot.component, o.name); !ok {
			return o, fmt.Errorf("%s has no verb %s", name, o.name)
		}
	}
	return o, x.check(&o)
}

// check separates flags from words and holds words and options against the table.
func (x *frame) check(o *order) error {
	c := o.call
	for len(c.args) > o.verb.Least && len(c.args) > 0 {
		last := c.args[len(c.args)-1]
		if last.Quoted || !listed(o.verb.Flags, last.Text) || o.verb.Most >= 0 && len(c.args) <= o.verb.Most {
			break
		}
		c.flags = append(c.flags, last.Text)
		c.args = c.args[:len(c.args)-1]
	}
	if n := len(c.args); n < o.verb.Least || o.verb.Most >= 0 && n > o.verb.Most {
		return fmt.Errorf("%s takes %s words, not %d", o.name, arity(o.verb), n)
	}
	seen := map[string]bool{}
	for _, option := range c.options {
		if seen[option.Name] {
			return fmt.Errorf("option %s is given twice", option.Name)
		}
		seen[option.Name] = true
		switch option.Name {
		case "ctx":
			c.Ctx = x.run.world.Context(option.Value)
		case "within":
			d, err := time.ParseDuration(option.Value)
			if err != nil || d <= 0 {
				return fmt.Errorf("within=%s: want a duration such as 50ms", option.Value)
			}
			o.within = d
		case "alloc":
			n, err := ParseSize(option.Value)
			if err != nil || n == 0 {
				return fmt.Errorf("alloc=%s: want a size such as 8MiB", option.Value)
			}
			o.alloc = n
		default:
			if !listed(o.verb.Options, option.Name) {
				return fmt.Errorf("%s has no option %s", o.name, option.Name)
			}
		}
	}
	return nil
}

func arity(v Verb) string {
	switch {
	case v.Most < 0:
		return fmt.Sprintf("at least %d", v.Least)
	case v.Least == v.Most:
		return fmt.Sprint(v.Least)
	}
	return fmt.Sprintf("%d to %d", v.Least, v.Most)
}

// tallies are the verbs that count what a component's creators did.
var tallies = map[string]func(*outside.Tally) *outside.Counts{
	"creations": func(t *outside.Tally) *outside.Counts { return &t.Creations },
	"aborted":   func(t *outside.Tally) *outside.Counts { return &t.Aborted },
	"loads":     func(t *outside.Tally) *outside.Counts { return &t.Loads },
}

// verbOf finds a verb of a component; close, reopen, creates and the tallies are
// everyone's.
func verbOf(c Component, name string) (Verb, bool) {
	switch name {
	case "close":
		return Verb{Run: func(c *Call) (script.Result, error) { return Done(c.slot.component.Close(c.Ctx)) }}, true
	case "creates":
		return Verb{Least: 1, Most: 1, Options: CreatorOptions, Flags: CreatorFlags, Run: creates}, true
	case "reopen":
		r, ok := c.(Reopener)
		return Verb{Run: func(c *Call) (script.Result, error) {
			Check(r.Close(c.Ctx))
			return Done(r.Reopen(c.Ctx))
		}}, ok
	}
	if count, ok := tallies[name]; ok {
		return Verb{Least: 1, Most: 1, Run: func(c *Call) (script.Result, error) {
			return Number(count(c.Tally()).Sum(c.Keys(0)...)), nil
		}}, true
	}
	v, ok := c.Verbs()[name]
	return v, ok
}

func creates(c *Call) (script.Result, error) {
	c.slot.creators.Set(c.Arg(0), c.readCreator(c.Arg(0)))
	return OK(), nil
}

// ratio gives M/N of two measured loops.
func ratio(c *Call) (script.Result, error) {
	m, okM := c.run.medians.Lookup(c.Arg(0))
	n, okN := c.run.medians.Lookup(c.Arg(1))
	if !okM || !okN || n == 0 {
		return script.Result{}, c.refuse("nothing was measured as %s or %s", c.Arg(0), c.Arg(1))
	}
	return script.Say(fmt.Sprintf("%.3f", math.Round(1000*float64(m)/float64(n))/1000)), nil
}
