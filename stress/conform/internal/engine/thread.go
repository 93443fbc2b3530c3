package engine

import (
	"fmt"
	"maps"
	"slices"
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
	mu     sync.Mutex
	more   *sync.Cond // of mu: a job has come, or the end
	jobs   []func()
	closed bool
	last   *pending
}

func newMember() *member {
	m := &member{}
	m.more = sync.NewCond(&m.mu)
	return m
}

func (m *member) push(p *pending, job func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.jobs = append(m.jobs, job)
	m.last = p
	m.more.Signal()
}

func (m *member) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.more.Signal()
}

// work runs jobs until the member is closed and none is left.
func (m *member) work() {
	for job := m.next(); job != nil; job = m.next() {
		job()
	}
}

// next waits for a job; nil is the end.
func (m *member) next() (job func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.jobs) == 0 && !m.closed {
		m.more.Wait()
	}
	if len(m.jobs) > 0 {
		job, m.jobs = m.jobs[0], m.jobs[1:]
	}
	return job
}

func (m *member) lastPending() *pending {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
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
		m := newMember()
		g.members = append(g.members, m)
		r.spawn(m.work)
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
	if ps := x.run.processesOf(name); ps != nil {
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
		m.push(p, func() {
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
	if ps := r.processesOf(name); ps != nil {
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
		lasts = append(lasts, m.lastPending())
	}
	return lasts, nil
}

// await waits for all statements of a thread or process; the expectation is
// compared with the last result of each, {t} in it being that one's number.
func (x *frame) await(s *script.Statement, v script.Vars) script.Result {
	read := func(t int) (string, script.Plain, error) {
		text, err := script.Expand(s.Text, v.WithT(t))
		if err != nil {
			return text, script.Plain{}, err
		}
		p, err := script.ParsePlain(text)
		if err == nil && len(p.Words) != 2 {
			err = fmt.Errorf("want: await NAME")
		}
		return text, p, err
	}
	_, p, err := read(0)
	if err != nil {
		return x.fail(s, err.Error(), "a statement of the language")
	}
	name := p.Words[1].Text
	lasts, err := x.run.lasts(name)
	if err != nil {
		return x.fail(s, err.Error(), "a thread or process")
	}
	o := order{within: statementLimit, call: &Call{World: x.run.world, options: p.Options}, name: "await"}
	if x.run.processesOf(name) != nil {
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
		text, p, err := read(t)
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
	r.mu.Lock()
	processes := slices.Collect(maps.Values(r.mu.processes))
	var all []*pending
	for _, g := range r.mu.groups {
		for _, m := range g.members {
			all = append(all, m.lastPending())
		}
	}
	r.mu.Unlock()
	for _, ps := range processes {
		all = append(all, ps.lasts(r)...)
	}
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

// endThreads lets the thread goroutines go.
func (r *run) endThreads() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.mu.groups {
		for _, m := range g.members {
			m.close()
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
