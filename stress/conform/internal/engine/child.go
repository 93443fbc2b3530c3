package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// tail keeps the end of what a process says on its error output. Safe for
// concurrent use.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	const most = 8 << 10
	if len(t.text) > most {
		t.text = append(t.text[:0], t.text[len(t.text)-most:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}

// learn takes over a statement about the outside from a process and tells it to
// the others.
func (r *run) learn(text string, from *process) {
	r.hear(text)
	r.spread(text, from)
}

// spread tells a statement about the outside to all processes and remembers it
// for those that start later.
func (r *run) spread(text string, except *process) {
	r.mu.Lock()
	r.mu.history = append(r.mu.history, text)
	r.mu.Unlock()
	for _, p := range r.allProcesses() {
		if p != except && p.alive() {
			_ = p.write(message{World: text}) // one that is dying does not need it
		}
	}
}

// Serve is a script's process: it runs the statements that come in over in and
// answers over out, until in ends. The result is its exit code.
func (e *Engine) Serve(in io.Reader, out io.Writer) int {
	messages := json.NewDecoder(in)
	var first message
	if err := messages.Decode(&first); err != nil || first.Hello == nil {
		fmt.Fprintln(os.Stderr, "kiln: conform: a process of a script is started by kiln conform only:", err)
		return 2
	}
	h := first.Hello
	r := newRun(e, h.File, h.Dir)
	defer r.cancel()
	var mu sync.Mutex
	send := json.NewEncoder(out)
	r.tell = func(m message) {
		mu.Lock()
		defer mu.Unlock()
		_ = send.Encode(m) // who does not listen any more has killed us
	}
	for _, text := range h.History {
		r.hear(text)
	}
	thread := r.threads("P", 1)[0]
	vars := script.Vars{}.WithT(h.T)
	for {
		var m message
		if err := messages.Decode(&m); err != nil {
			r.finish()
			if !errors.Is(err, io.EOF) || r.stopped() {
				return 1
			}
			return 0
		}
		if m.World != "" {
			r.hear(m.World)
			continue
		}
		p := newPending()
		r.push(thread, p, func() {
			v := vars
			if m.I != nil {
				v = v.WithI(*m.I)
			}
			x := frame{run: r, begun: sync.OnceFunc(func() { r.tell(message{ID: m.ID, Begun: true}) })}
			s := script.ParseStatement(h.File, m.Line, m.Text)
			result := x.do(&s, v)
			p.finish(result)
			r.tell(message{ID: m.ID, Result: &result})
		})
	}
}

// hear applies a statement about the outside that another process made.
func (r *run) hear(text string) {
	p, err := script.ParsePlain(text)
	if err != nil {
		return
	}
	x := frame{run: r, who: "world", begun: func() {}, calm: true}
	o, err := x.resolve(0, text, p)
	if err != nil {
		return
	}
	o.call.heard = true
	_, _ = x.answer(o)
}

// announce makes a statement about the outside known to the case's other
// processes. go and cancel reach also those that are above.
func (c *Call) announce() {
	switch {
	case c.heard:
	case c.run.tell == nil:
		c.run.spread(c.text, nil)
	case strings.HasPrefix(c.text, "go ") || strings.HasPrefix(c.text, "cancel "):
		c.run.tell(message{World: c.text})
	}
}

// processVerb runs a signal on every process of a name.
func processVerb(s syscall.Signal, after func(*process) error) func(*Call) (script.Result, error) {
	return func(c *Call) (script.Result, error) {
		ps := c.run.processes.Get(c.Arg(0))
		if ps == nil {
			return script.Result{}, c.refuse("there is no process %s", c.Arg(0))
		}
		for _, p := range c.run.members(ps) {
			if s != 0 && p.alive() {
				if err := p.signal(s); !errors.Is(err, os.ErrProcessDone) {
					Check(err)
				}
			}
			if after != nil {
				Check(after(p))
			}
		}
		return OK(), nil
	}
}

func gone(p *process) error {
	if !closes(p.dead, statementLimit-time.Second) {
		return fmt.Errorf("process %s is still there: %w", p.who, context.DeadlineExceeded)
	}
	p.acknowledge()
	return nil
}
