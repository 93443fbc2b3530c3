package gpuexec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// script drives a state with jobs by name and reads its effects as text.
type script struct {
	s    *state
	jobs map[string]*job
}

func newScript(capacity, workers int) *script {
	return &script{newState(capacity, workers), make(map[string]*job)}
}

func (c *script) job(name string) *job {
	if c.jobs[name] == nil {
		c.jobs[name] = &job{own: strings.HasPrefix(name, "own")}
	}
	return c.jobs[name]
}

func (c *script) name(j *job) string {
	for name, known := range c.jobs {
		if known == j {
			return name
		}
	}
	return "?"
}

// step runs one event, as in "submit a", "done a 1" or "lost 1".
func (c *script) step(line string) string {
	var verb, name string
	var gen uint64
	if n, _ := fmt.Sscanf(line, "%s %d", &verb, &gen); n < 2 {
		fmt.Sscanf(line, "%s %s %d", &verb, &name, &gen)
	}
	var out []effect
	said := ""
	switch verb {
	case "submit":
		out = c.s.submit(c.job(name), nil)
	case "withdraw":
		said = fmt.Sprint(c.s.withdraw(c.job(name)))
	case "done":
		var waited bool
		waited, out = c.s.done(c.job(name), gen, nil)
		said = fmt.Sprint(waited)
	case "lost":
		out = c.s.lost(gen, nil)
	case "up":
		out = c.s.up(gen, nil)
	case "close":
		out = c.s.close(nil)
	}
	texts := []string{}
	if said != "" {
		texts = append(texts, said)
	}
	for _, x := range out {
		switch {
		case x.run != nil:
			texts = append(texts, "run "+c.name(x.run))
		case x.fail != nil:
			texts = append(texts, "fail "+c.name(x.fail)+" "+short(x.err))
		case x.restart != nil:
			texts = append(texts, fmt.Sprint("restart ", *x.restart))
		case x.up:
			texts = append(texts, "up")
		}
	}
	if verb == "lost" || verb == "close" {
		slices.Sort(texts) // what runs has no order
	}
	return strings.Join(texts, ", ")
}

func short(err error) string {
	switch {
	case errors.Is(err, ErrClosed):
		return "closed"
	case errors.Is(err, ErrDeviceLost):
		return "lost"
	case errors.Is(err, ErrOverloaded):
		return "overloaded"
	}
	return err.Error()
}

// E1: each event in each phase.
func TestState(t *testing.T) {
	for name, lines := range map[string]string{
		"order of arrival":  `submit a: run a / submit b: / submit c: / done a 1: true, run b / done b 1: true, run c / done c 1: true`,
		"a full queue":      `submit a: run a / submit b: / submit c: / submit d: fail d overloaded / submit own: / done a 1: true, run b / submit e: fail e overloaded`,
		"withdrawn":         `submit a: run a / submit b: / submit c: / withdraw b: true / withdraw b: false / withdraw a: false / done a 1: true, run c`,
		"lost":              `submit a: run a / submit b: / lost 1: fail a lost, fail b lost, restart 2 / lost 1: / lost 2: / submit c: fail c lost / done a 1: false / up 1: / up 2: up / up 2: / submit d: run d / done a 1: false / submit e: / done d 2: true, run e`,
		"closed":            `submit a: run a / submit b: / close: fail a closed, fail b closed / close: / submit c: fail c closed / done a 1: false / lost 1: / up 2:`,
		"closed while down": `submit a: run a / lost 1: fail a lost, restart 2 / close: / up 2: / submit b: fail b closed`,
	} {
		c := newScript(2, 1)
		for _, line := range strings.Split(lines, " / ") {
			event, want, _ := strings.Cut(line, ":")
			if got := c.step(strings.TrimSpace(event)); got != strings.TrimSpace(want) {
				t.Errorf("%s: %s gives %q, want %q", name, event, got, strings.TrimSpace(want))
			}
		}
	}
}

// plain is the executor's queue as one would explain it.
type plain struct {
	capacity, workers int
	up, closed        bool
	gen               uint64
	waits             []*job
	runs              map[*job]uint64 // the generation it runs on
	answered          map[*job]string
}

// answer notes the one answer that each job gets.
func (p *plain) answer(t *rapid.T, j *job, how string) {
	if p.answered[j] != "" {
		t.Fatalf("answered twice: %s, then %s", p.answered[j], how)
	}
	p.answered[j] = how
}

func (p *plain) busy() (n int) {
	for _, gen := range p.runs {
		if gen == p.gen {
			n++
		}
	}
	return n
}

// apply carries the effects out on the plain queue and checks that each is legal.
func (p *plain) apply(t *rapid.T, out []effect) {
	for _, x := range out {
		switch {
		case x.run != nil:
			if len(p.waits) == 0 || p.waits[0] != x.run || !p.up || p.closed {
				t.Fatal("not the first of those that wait is run")
			}
			p.waits = p.waits[1:]
			p.runs[x.run] = p.gen
			if p.busy() > p.workers {
				t.Fatalf("%d run on %d workers", p.busy(), p.workers)
			}
		case x.fail != nil:
			p.waits = slices.DeleteFunc(p.waits, func(j *job) bool { return j == x.fail })
			p.answer(t, x.fail, short(x.err))
		}
	}
}

// E1: whatever happens in whatever order, each job is answered at most once, in
// order of arrival, never more run than there are workers, and no worker idles
// while a job waits.
func TestStateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &plain{capacity: rapid.IntRange(0, 3).Draw(t, "queue"), workers: rapid.IntRange(1, 3).Draw(t, "workers"),
			up: true, gen: 1, runs: make(map[*job]uint64), answered: make(map[*job]string)}
		s := newState(p.capacity, p.workers)
		var all, out []*job
		pick := func(t *rapid.T, from []*job) *job {
			if len(from) == 0 {
				t.Skip("none")
			}
			return rapid.SampledFrom(from).Draw(t, "job")
		}
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				j := &job{own: rapid.Bool().Draw(t, "own")}
				all = append(all, j)
				full := len(p.waits) >= p.capacity && p.busy() == p.workers
				p.waits = append(p.waits, j)
				p.apply(t, s.submit(j, nil))
				want := ""
				switch {
				case p.closed:
					want = "closed"
				case !p.up:
					want = "lost"
				case full && !j.own:
					want = "overloaded"
				}
				if p.answered[j] != want {
					t.Fatalf("submitted: %q, want %q", p.answered[j], want)
				}
			},
			"withdraw": func(t *rapid.T) {
				j := pick(t, all)
				i := slices.Index(p.waits, j)
				if s.withdraw(j) != (i >= 0) {
					t.Fatal("withdraw says otherwise")
				}
				if i >= 0 {
					p.waits = slices.Delete(p.waits, i, i+1)
					p.answer(t, j, "withdrawn")
				}
			},
			"done": func(t *rapid.T) {
				out = out[:0]
				for _, j := range all {
					if _, runs := p.runs[j]; runs {
						out = append(out, j)
					}
				}
				j := pick(t, out)
				gen := p.runs[j]
				delete(p.runs, j)
				waited, effects := s.done(j, gen, nil)
				if waited != (p.answered[j] == "") {
					t.Fatalf("waited %v, answered %q", waited, p.answered[j])
				}
				if waited {
					p.answer(t, j, "done")
				}
				p.apply(t, effects)
			},
			"lost": func(t *rapid.T) {
				gen := rapid.Uint64Range(1, p.gen).Draw(t, "generation")
				hits := p.up && !p.closed && gen == p.gen
				p.apply(t, s.lost(gen, nil))
				if hits {
					p.up = false
					p.gen++
				}
			},
			"up": func(t *rapid.T) {
				p.apply(t, s.up(p.gen, nil))
				p.up = true
			},
			"close": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") > 0 {
					t.Skip("not yet")
				}
				p.apply(t, s.close(nil))
				p.closed = true
			},
			"": func(t *rapid.T) {
				if p.closed || !p.up {
					for _, j := range all {
						if p.answered[j] == "" {
							t.Fatal("a job is stranded")
						}
					}
					return
				}
				if len(s.queue) != len(p.waits) || len(p.waits) > 0 && p.busy() < p.workers {
					t.Fatalf("%d wait, want %d; %d of %d workers run", len(s.queue), len(p.waits), p.busy(), p.workers)
				}
			},
		})
	})
}
