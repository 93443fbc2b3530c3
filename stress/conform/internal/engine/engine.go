package engine

import (
	"slices"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// Engine runs cases. Set its fields before the first Run; then it is safe for
// concurrent use, though counters of goroutines and allocations are the whole
// process's and want one case at a time.
type Engine struct {
	Kinds      map[string]Kind
	Statements Verbs      // beside those of the language's engine: key, same
	Process    []string   // command line of a script's process, whose main calls Serve
	Parked     func() int // goroutines that a pool keeps for later, which are no leak; may be nil
}

// The results of a case.
const (
	Pass = "pass"
	Fail = "fail"
	Skip = "skip"
)

// Outcome is what became of a case.
type Outcome struct {
	File    string   `json:"file"`
	Case    string   `json:"case"`
	Rules   []string `json:"rules"`
	Result  string   `json:"result"`
	Line    int      `json:"line"`
	Got     string   `json:"got"`
	Want    string   `json:"want"`
	Seconds float64  `json:"seconds"`
	Events  []string `json:"events,omitempty"` // what led to a failure
}

// Run runs one case in a directory of its own.
func (e *Engine) Run(file string, c *script.Case) Outcome {
	o := Outcome{File: file, Case: c.ID, Rules: c.Rules, Result: Pass, Line: c.Line}
	missing := slices.DeleteFunc(slices.Clone(c.Needs), func(need string) bool { return e.Kinds[need].Open != nil })
	if len(missing) > 0 {
		o.Result, o.Got = Skip, "needs "+strings.Join(missing, ", ")
		return o
	}
	begin := time.Now()
	failure := e.run(file, c)
	o.Seconds = time.Since(begin).Seconds()
	if failure != nil {
		o.Result, o.Got, o.Want, o.Events = Fail, failure.Got, failure.Want, failure.Events
		if failure.Line > 0 {
			o.Line = failure.Line
		}
	}
	return o
}

func (e *Engine) run(file string, c *script.Case) *Failure {
	dir, remove, err := tempDir()
	if err != nil {
		return &Failure{Line: c.Line, Got: err.Error(), Want: "a temporary directory"}
	}
	defer remove()
	r := newRun(e, file, dir)
	done := make(chan struct{})
	r.spawn(func() {
		defer close(done)
		x := frame{run: r, judged: true, begun: func() {}}
		for i := range c.Statements {
			if r.stopped() {
				return
			}
			x.do(&c.Statements[i], script.Vars{})
		}
	})
	select {
	case <-done:
	case <-r.failed:
	}
	r.finish()
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.mu.failure; f != nil && f.Line == 0 && len(c.Statements) > 0 {
		f.Line = c.Statements[len(c.Statements)-1].Line
	}
	return r.mu.failure
}

func (e *Engine) statement(name string) (Verb, bool) {
	if v, ok := statements[name]; ok {
		return v, true
	}
	v, ok := e.Statements[name]
	return v, ok
}

// open opens a component; what had the name closes first.
func open(c *Call) (script.Result, error) {
	name := c.Arg(0)
	kind, ok := c.run.engine.Kinds[c.Arg(1)]
	if !ok {
		return Done(c.slip(c.refuse("there is no kind %s", c.Arg(1))))
	}
	if _, taken := c.run.engine.statement(name); taken {
		return script.Result{}, c.refuse("%s is a statement and cannot be a component's name", name)
	}
	for _, o := range c.Options() {
		if !listed(kind.Options, o.Name) {
			return Done(c.slip(c.refuse("%s has no option %s", c.Arg(1), o.Name)))
		}
	}
	if old := c.run.slots.Get(name); old != nil {
		c.run.closeSlot(old)
	}
	s := &slot{name: name}
	c.slot = s
	s.component = Must(kind.Open(c))
	c.run.slots.Set(name, s)
	c.run.mu.Lock()
	defer c.run.mu.Unlock()
	c.run.mu.opened = append(c.run.mu.opened, s)
	return OK(), nil
}
