package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"

	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// message is one line of JSON between the runner and a process of a script.
type message struct {
	ID int `json:"id,omitempty"` // of a statement and its answers

	Hello *hello  `json:"hello,omitempty"` // first message to the process
	Line  int     `json:"line,omitempty"`
	Text  string  `json:"text,omitempty"`  // statement to run
	I     *string `json:"i,omitempty"`     // item of the loop around it
	World string  `json:"world,omitempty"` // statement about the outside, past the queue; both ways

	Begun   bool           `json:"begun,omitempty"`
	Result  *script.Result `json:"result,omitempty"`
	Failure *Failure       `json:"failure,omitempty"`
}

type hello struct {
	File, Dir string
	T         int
	History   []string // statements about the outside so far
}

// processes are the processes of one name.
type processes struct {
	name    string
	members []*process // INVARIANT: members are replaced under the run's mu
}

// process is another process of the same binary. Safe for concurrent use.
type process struct {
	run    *run
	who    string
	t      int
	cmd    *exec.Cmd
	dead   chan struct{} // closed once it has ended and is accounted for
	stderr tail

	mu struct {
		sync.Mutex
		in       io.WriteCloser
		next     int
		pending  map[int]*pending
		last     *pending
		expected bool // its end was asked for or waited for
		stopped  bool
		how      string // how it ended
	}
}

// startProcesses starts n processes of a name; those that had it end.
func (r *run) startProcesses(name string, n int) error {
	if old := r.processes.Get(name); old != nil {
		for _, p := range r.members(old) {
			p.end()
		}
	}
	ps := &processes{name: name}
	for t := range n {
		p, err := r.start1(name, t, n)
		if err != nil {
			return err
		}
		ps.members = append(ps.members, p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.groups[name] != nil {
		return fmt.Errorf("%s is a thread already", name)
	}
	r.processes.Set(name, ps)
	return nil
}

func (r *run) start1(name string, t, n int) (*process, error) {
	if len(r.engine.Process) == 0 {
		return nil, errors.New("this runner was given no command to start processes with")
	}
	p := &process{run: r, who: name, t: t, dead: make(chan struct{})}
	if n > 1 {
		p.who = fmt.Sprintf("%s*%d", name, t)
	}
	p.mu.pending = map[int]*pending{}
	p.cmd = exec.Command(r.engine.Process[0], r.engine.Process[1:]...)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr = &p.stderr
	r.own.Add(1) // package exec's, which copies what the process says there
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.mu.in = in
	r.spawn(func() { p.listen(out); p.reap() })
	r.mu.Lock()
	h := &hello{File: r.file, Dir: r.world.Dir, T: t, History: append([]string(nil), r.mu.history...)}
	r.mu.Unlock()
	return p, p.write(message{Hello: h})
}

func (p *process) write(m message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.in == nil {
		return os.ErrClosed
	}
	_, err = p.mu.in.Write(append(line, '\n'))
	return err
}

// listen reads answers until the process closes its output, which is at its end.
func (p *process) listen(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line, &m) != nil {
			_, _ = p.stderr.Write(line) // what a library prints
			continue
		}
		if m.Failure != nil {
			for i, e := range m.Failure.Events {
				m.Failure.Events[i] = p.who + " " + e
			}
			p.run.failWith(*m.Failure)
		}
		if m.World != "" {
			p.run.learn(m.World, p)
		}
		p.mu.Lock()
		pending := p.mu.pending[m.ID]
		if m.Result != nil {
			delete(p.mu.pending, m.ID)
		}
		p.mu.Unlock()
		switch {
		case pending == nil:
		case m.Result != nil:
			pending.finish(*m.Result)
		case m.Begun:
			pending.begin()
		}
	}
}

// reap accounts for the process's end. Statements it had not answered are
// `killed` if the script killed it, else `error died`.
func (p *process) reap() {
	err := p.cmd.Wait()
	p.run.own.Add(-1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.in = nil
	p.mu.how = "ended"
	if err != nil {
		p.mu.how = err.Error()
	}
	result := script.Say("error", "died").With("how", p.mu.how)
	if p.mu.expected {
		result = script.Say("killed")
	}
	for id, pending := range p.mu.pending {
		pending.finish(result)
		delete(p.mu.pending, id)
	}
	close(p.dead)
}

func (p *process) alive() bool { return !closed(p.dead) }

// send gives a statement to every process of the name. A dead one is started anew.
func (ps *processes) send(r *run, s *script.Statement, v script.Vars) ([]*pending, error) {
	members := r.members(ps)
	waiting := make([]*pending, len(members))
	for t, p := range members {
		if !p.alive() {
			p.acknowledge()
			fresh, err := r.start1(ps.name, t, len(members))
			if err != nil {
				return nil, err
			}
			r.mu.Lock()
			ps.members[t] = fresh
			r.mu.Unlock()
			p = fresh
		}
		w := newPending()
		w.judged = judgesItself(s)
		m := message{Line: s.Line, Text: s.Text}
		if v.HasI {
			m.I = &v.I
		}
		p.mu.Lock()
		p.mu.next++
		m.ID = p.mu.next
		p.mu.pending[m.ID], p.mu.last = w, w
		p.mu.Unlock()
		waiting[t] = w
		if err := p.write(m); err != nil {
			w.finish(script.Say("error", "died").With("how", err.Error()))
		}
	}
	return waiting, nil
}

func (r *run) members(ps *processes) []*process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(ps.members)
}

func (ps *processes) lasts(r *run) []*pending {
	var lasts []*pending
	for _, p := range r.members(ps) {
		p.mu.Lock()
		lasts = append(lasts, p.mu.last)
		p.mu.Unlock()
	}
	return lasts
}

// acknowledge says that the script knows of the process's end.
func (p *process) acknowledge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.expected = true
}

func (p *process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch s {
	case syscall.SIGKILL:
		p.mu.expected = true
	case sigStop:
		p.mu.stopped = true
	case sigCont:
		p.mu.stopped = false
	}
	return p.cmd.Process.Signal(s)
}

// end lets the process close its components and leave, and kills it if it does
// not or cannot. An end that nobody asked for before fails the case.
func (p *process) end() {
	p.mu.Lock()
	unexpected := !p.alive() && !p.mu.expected
	how, stopped, in := p.mu.how, p.mu.stopped, p.mu.in
	p.mu.expected = true
	p.mu.in = nil
	p.mu.Unlock()
	if unexpected {
		p.run.fail(0, fmt.Sprintf("process %s died: %s\n%s", p.who, how, p.stderr.String()), "a process that lives until it is killed")
	}
	if !p.alive() {
		return
	}
	if in != nil {
		_ = in.Close()
	}
	if !stopped && !p.run.stopped() && closes(p.dead, statementLimit) {
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			p.run.fail(0, fmt.Sprintf("process %s ended with %d\n%s", p.who, code, p.stderr.String()), "an orderly end")
		}
		return
	}
	_ = p.signal(syscall.SIGKILL)
	if !closes(p.dead, statementLimit) {
		p.run.fail(0, "process "+p.who+" outlived SIGKILL", "its end")
	}
}

// endProcesses ends all processes of the case.
func (r *run) endProcesses() {
	for _, p := range r.allProcesses() {
		p.end()
	}
}

func (r *run) allProcesses() (all []*process) {
	for _, ps := range r.processes.All() {
		all = append(all, r.members(ps)...)
	}
	return all
}
