package engine

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// Times that the language fixes.
const (
	dispatchLimit = 100 * time.Millisecond // the script goes on at the latest after this
	blockedFor    = 50 * time.Millisecond
	watchPause    = 50 * time.Microsecond
)

// pending is a statement on its way in a thread or another process.
type pending struct {
	begun, done chan struct{}
	once        sync.Once
	end         sync.Once
	result      script.Result // valid once done is closed
	judged      bool          // by an arrow of its own; likewise
}

func newPending() *pending {
	return &pending{begun: make(chan struct{}), done: make(chan struct{})}
}

func (p *pending) begin() { p.once.Do(func() { close(p.begun) }) }

func (p *pending) finish(r script.Result) {
	p.end.Do(func() {
		p.result = r
		close(p.done)
	})
}

// member is one thread: a goroutine with an ordered queue of jobs.
type member struct {
	jobs chan func()
	last *pending // guarded by the run's mu
}

// queued is more jobs than a thread that is blocked gets within a statement's limit:
// the script goes on after dispatchLimit each time.
const queued = 1024

func (r *run) push(m *member, p *pending, job func()) {
	r.mu.Lock()
	m.last = p
	r.mu.Unlock()
	m.jobs <- job
}

// work runs a member's jobs until there are no more.
func (r *run) work(m *member) {
	for {
		select {
		case job := <-m.jobs:
			job()
		case <-r.quiet:
			return
		}
	}
}

// group is the threads of one name; the first active ones belong to its latest
// statement.
type group struct {
	members []*member
	active  int
}

// threads gives the members that a statement behind this name runs in.
func (r *run) threads(name string, n int) []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.mu.groups[name]
	if g == nil {
		g = &group{active: 1}
		r.mu.groups[name] = g
	}
	if n > 0 {
		g.active = n
	}
	for len(g.members) < g.active {
		m := &member{jobs: make(chan func(), queued)}
		g.members = append(g.members, m)
		r.spawn(func() { r.work(m) })
	}
	return g.members[:g.active]
}

// dispatch hands a statement to threads or processes and goes on when each has
// returned or its creator has begun.
func (x *frame) dispatch(s *script.Statement, v script.Vars) script.Result {
	text, err := script.Expand(s.Thread, v)
	if err != nil {
		return x.fail(s, err.Error(), "a thread")
	}
	name, n, err := script.SplitThread(text)
	if err != nil {
		return x.fail(s, err.Error(), "a thread")
	}
	inner := *s
	inner.Thread = ""
	var waiting []*pending
	if ps := x.run.processes.Get(name); ps != nil {
		if n > 0 {
			return x.fail(s, name+" is a process; its number is said by process", "a statement of the language")
		}
		waiting, err = ps.send(x.run, &inner, v)
		if err != nil {
			return x.fail(s, err.Error(), "a living process")
		}
	} else {
		waiting = x.run.release(&inner, v, name, n)
	}
	late := time.After(dispatchLimit)
	for _, p := range waiting {
		select {
		case <-p.begun:
		case <-p.done:
		case <-late:
			return OK()
		case <-x.run.failed:
			return OK()
		}
	}
	return OK()
}

// release runs a statement in the threads of a group, all let go at once.
func (r *run) release(s *script.Statement, v script.Vars, name string, n int) []*pending {
	members := r.threads(name, n)
	waiting := make([]*pending, len(members))
	var arrived atomic.Int64
	together := make(chan struct{})
	for t, m := range members {
		p := newPending()
		waiting[t] = p
		who := name
		if len(members) > 1 {
			who = fmt.Sprintf("%s*%d", name, t)
		}
		r.push(m, p, func() {
			defer p.finish(script.Say("error", "stopped"))
			if arrived.Add(1) == int64(len(members)) {
				close(together)
			}
			select {
			case <-together:
			case <-r.failed:
				return
			}
			x := frame{run: r, who: who, begun: p.begin}
			result := x.do(s, v.WithT(t))
			p.judged = judgesItself(s) && !x.erred
			p.finish(result)
		})
	}
	return waiting
}

// lasts gives the last statement of each thread or process of a name.
func (r *run) lasts(name string) ([]*pending, error) {
	if ps := r.processes.Get(name); ps != nil {
		return ps.lasts(r), nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.mu.groups[name]
	if g == nil {
		return nil, fmt.Errorf("there is no thread or process %s", name)
	}
	var lasts []*pending
	for _, m := range g.members[:g.active] {
		lasts = append(lasts, m.last)
	}
	return lasts, nil
}

// await waits for all statements of a thread or process; the expectation is
// compared with the last result of each, {t} in it being that one's number.
func (x *frame) await(s *script.Statement, v script.Vars) script.Result {
	_, p, err := read(s, v.WithT(0))
	if err == nil && len(p.Words) != 2 {
		err = fmt.Errorf("want: await NAME")
	}
	if err != nil {
		return x.fail(s, err.Error(), "a statement of the language")
	}
	name := p.Words[1].Text
	lasts, err := x.run.lasts(name)
	if err != nil {
		return x.fail(s, err.Error(), "a thread or process")
	}
	o := order{within: statementLimit, call: &Call{World: x.run.world, options: p.Options}, name: "await"}
	if x.run.processes.Get(name) != nil {
		o.within = processLimit
	}
	if err := x.check(&o); err != nil {
		return x.fail(s, err.Error(), "a statement of the language")
	}
	late := time.After(o.within)
	result := OK()
	for t, last := range lasts {
		if last == nil { // a process that was given nothing yet
			continue
		}
		select {
		case <-last.done:
		case <-x.run.failed:
			return result
		case <-late:
			return x.fail(s, fmt.Sprintf("%s still running after %v", name, o.within), p.Expect.String())
		}
		text, p, err := read(s, v.WithT(t))
		if err != nil {
			return x.fail(s, err.Error(), "a statement of the language")
		}
		result = last.result
		x.run.note(event{who: x.who, line: s.Line, text: text, got: result.String()})
		if !p.Expect.Match(result) && (x.judged && !last.judged || p.Expect.Given()) {
			got := result.String()
			if len(lasts) > 1 {
				got = fmt.Sprintf("%s of %s*%d", got, name, t)
			}
			return x.fail(s, got, p.Expect.String())
		}
	}
	return result
}

// blocked tells whether the statements of a name are still running a while on.
func blocked(c *Call) (script.Result, error) {
	lasts, err := c.run.lasts(c.Arg(0))
	if err != nil {
		return script.Result{}, c.refuse("%w", err)
	}
	time.Sleep(blockedFor)
	for t, p := range lasts {
		if p == nil || closed(p.done) {
			r := script.Say("error", "returned").With("thread", fmt.Sprint(t))
			if p != nil {
				r = r.With("result", p.result.String())
			}
			return r, nil
		}
	}
	return OK(), nil
}

// drain waits until every statement given to threads and processes has ended;
// the limits of the statements bound it.
func (r *run) drain() {
	var all []*pending
	for _, ps := range r.processes.All() {
		all = append(all, ps.lasts(r)...)
	}
	r.mu.Lock()
	for _, g := range r.mu.groups {
		for _, m := range g.members {
			all = append(all, m.last)
		}
	}
	r.mu.Unlock()
	for _, p := range all {
		if p == nil {
			continue
		}
		select {
		case <-p.done:
		case <-r.failed:
			return
		}
	}
}

// watch evaluates a statement again and again until the case ends.
func (r *run) watch(x *frame, s *script.Statement, v script.Vars) script.Result {
	if !strings.Contains(s.Text, " -> ") {
		return x.fail(s, "no expectation", "watch STATEMENT -> EXPECTATION")
	}
	ended := make(chan struct{})
	r.mu.Lock()
	r.mu.watches = append(r.mu.watches, ended)
	r.mu.Unlock()
	eye := frame{run: r, who: "watch", judged: true, calm: true, begun: func() {}}
	eye.do(s, v)
	r.spawn(func() {
		defer close(ended)
		for !r.stopped() {
			select {
			case <-r.quiet:
				eye.do(s, v) // the case's last state counts as well
				return
			default:
				eye.do(s, v)
				time.Sleep(watchPause)
			}
		}
	})
	return OK()
}

func (r *run) endWatches() {
	close(r.quiet)
	r.mu.Lock()
	watches := r.mu.watches
	r.mu.Unlock()
	for _, ended := range watches {
		select {
		case <-ended:
		case <-r.failed:
			return
		}
	}
}
