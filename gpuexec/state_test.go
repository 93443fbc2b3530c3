package gpuexec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/fault"
)

// script drives a state with jobs by name and reads its effects as text.
type script struct {
	s    *state[string]
	left *int
}

// counted is a left for that many things more.
func counted(left *int) func() bool {
	return func() bool { *left--; return *left >= 0 }
}

// step runs one event, as in "submit a", "done a 1", "lost 1", "strand 2" or "up 2 lost".
func (c script) step(line string) string {
	words := append(strings.Fields(line), "", "")
	number := func(at int) uint64 {
		n, _ := strconv.ParseUint(words[at], 10, 64)
		return n
	}
	var out []effect[string]
	var texts []string
	switch name := words[1]; words[0] {
	case "submit":
		var after []string
		for _, other := range words[2:] {
			if other != "" && other != "after" {
				after = append(after, other)
			}
		}
		out = c.s.submit(name, strings.HasPrefix(name, "own"), after, nil)
	case "withdraw":
		var waited bool
		waited, out = c.s.withdraw(name, nil)
		texts = append(texts, fmt.Sprint(waited))
	case "done":
		var waited bool
		waited, out = c.s.done(name, number(2), nil)
		texts = append(texts, fmt.Sprint(waited))
	case "lost":
		out = c.s.lost(number(1), nil)
	case "up":
		out = c.s.up(number(1), 1, words[2] == "lost", nil)
	case "close":
		out = c.s.close(nil)
	case "strand":
		*c.left = int(number(1))
		out = c.s.strand(nil)
		*c.left = math.MaxInt
	default:
		return "no such event"
	}
	for _, x := range out {
		switch x.do {
		case run:
			texts = append(texts, "run "+x.job)
		case fail:
			texts = append(texts, "fail "+x.job+" "+short(x.err))
		case reopen:
			texts = append(texts, fmt.Sprint("reopen ", x.gen))
		case ready:
			texts = append(texts, "ready")
		}
	}
	return strings.Join(texts, ", ")
}

func short(err error) string {
	switch {
	case errors.Is(err, fault.ErrClosed):
		return "closed"
	case errors.Is(err, fault.ErrDeviceLost):
		return "lost"
	case errors.Is(err, fault.ErrOverloaded):
		return "overloaded"
	}
	return err.Error()
}

// E1: nothing is kept of a job that has left, of those that it waited for neither.
func TestNothingIsKeptOfWhoLeft(t *testing.T) {
	left := math.MaxInt
	s := newState[string](3, counted(&left))
	s.up(1, 1, false, nil)
	s.submit("a", false, nil, nil)
	s.submit("b", false, nil, nil)
	s.submit("c", false, []string{"a", "b"}, nil)
	s.submit("d", false, []string{"b"}, nil)
	s.withdraw("c", nil)
	if len(s.after) != 1 || s.after["b"].Len() != 1 {
		t.Errorf("others wait for %d jobs, want 1", len(s.after))
	}
	s.withdraw("d", nil)
	if len(s.after) != 0 || len(s.held) != 0 {
		t.Errorf("others wait for %d jobs, %d wait", len(s.after), len(s.held))
	}
}

// E1: each event in each phase, as testdata/state.txt has it.
func TestState(t *testing.T) {
	text, err := os.ReadFile("testdata/state.txt")
	if err != nil {
		t.Fatal(err)
	}
	var c script
	name, steps := "", 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if what, begins := strings.CutPrefix(line, "case "); begins {
			left := math.MaxInt
			name, c = what, script{newState[string](2, counted(&left)), &left}
			continue
		}
		event, want, isStep := strings.Cut(line, ":")
		if strings.HasPrefix(line, "#") || !isStep {
			continue
		}
		steps++
		if got := c.step(event); got != strings.TrimSpace(want) {
			t.Errorf("%s: %s gives %q, want %q", name, event, got, strings.TrimSpace(want))
		}
	}
	if steps == 0 {
		t.Error("no step was run")
	}
}

// plain is the executor's queue as one would explain it.
type plain struct {
	capacity, workers int
	up, closed        bool
	gen               uint64
	waits             []int
	held              []int          // in order of arrival
	after             map[int][]int  // of those held: what they wait for
	runs              map[int]uint64 // the generation it runs on
	answered          map[int]string
}

// answer notes the one answer that each job gets.
func (p *plain) answer(t *rapid.T, j int, how string) {
	if p.answered[j] != "" {
		t.Fatalf("answered twice: %s, then %s", p.answered[j], how)
	}
	p.answered[j] = how
}

// forget takes a job that waits out.
func (p *plain) forget(j int) {
	is := func(other int) bool { return other == j }
	p.waits, p.held = slices.DeleteFunc(p.waits, is), slices.DeleteFunc(p.held, is)
}

// release has those that waited for j alone wait for a worker.
func (p *plain) release(j int) {
	p.held = slices.DeleteFunc(p.held, func(other int) bool {
		p.after[other] = slices.DeleteFunc(p.after[other], func(n int) bool { return n == j })
		ready := len(p.after[other]) == 0
		if ready {
			p.waits = append(p.waits, other)
		}
		return ready
	})
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
func (p *plain) apply(t *rapid.T, out []effect[int]) {
	for _, x := range out {
		switch {
		case x.do == run:
			if len(p.waits) == 0 || p.waits[0] != x.job || !p.up || p.closed {
				t.Fatal("not the first of those that wait is run")
			}
			p.waits = p.waits[1:]
			p.runs[x.job] = p.gen
			if p.busy() > p.workers {
				t.Fatalf("%d run on %d workers", p.busy(), p.workers)
			}
		case x.do == fail:
			p.forget(x.job)
			p.answer(t, x.job, short(x.err))
		}
	}
}

// E1: whatever happens in whatever order, each job is answered at most once, in
// order of arrival, none runs before those that it waits for have ended, never more run
// than there are workers, and no worker idles while a job waits for one.
func TestStateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &plain{capacity: rapid.IntRange(0, 3).Draw(t, "queue"), workers: rapid.IntRange(1, 3).Draw(t, "workers"),
			up: true, gen: 1, after: make(map[int][]int), runs: make(map[int]uint64), answered: make(map[int]string)}
		left := math.MaxInt
		s := newState[int](p.capacity, counted(&left))
		p.apply(t, s.up(1, p.workers, false, nil))
		var all, out []int
		pick := func(t *rapid.T, from []int) int {
			if len(from) == 0 {
				t.Skip("none")
			}
			return rapid.SampledFrom(from).Draw(t, "job")
		}
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				j, own := len(all), rapid.Bool().Draw(t, "own")
				all = append(all, j)
				var after []int
				for range rapid.IntRange(0, 3).Draw(t, "after") {
					if n := rapid.IntRange(0, j).Draw(t, "other"); n < j && p.answered[n] == "" {
						after = append(after, n)
					}
				}
				full := len(p.waits)+len(p.held) >= p.capacity && (p.busy() == p.workers || len(after) > 0)
				if len(after) > 0 {
					p.held, p.after[j] = append(p.held, j), slices.Clone(after)
				} else {
					p.waits = append(p.waits, j)
				}
				p.apply(t, s.submit(j, own, after, nil))
				want := ""
				switch {
				case p.closed:
					want = "closed"
				case !p.up:
					want = "lost"
				case full && !own:
					want = "overloaded"
				}
				if p.answered[j] != want {
					t.Fatalf("submitted: %q, want %q", p.answered[j], want)
				}
			},
			"withdraw": func(t *rapid.T) {
				j := pick(t, all)
				waits := slices.Contains(p.waits, j) || slices.Contains(p.held, j)
				waited, effects := s.withdraw(j, nil)
				if waited != waits {
					t.Fatal("withdraw says otherwise")
				}
				if waits {
					p.forget(j)
					p.answer(t, j, "withdrawn")
					p.release(j)
				}
				p.apply(t, effects)
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
					p.release(j)
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
				gone := rapid.Bool().Draw(t, "lost meanwhile")
				if s.phase == phaseDown && s.stranded() {
					t.Skip("some are still to be answered")
				}
				p.apply(t, s.up(p.gen, p.workers, gone, nil))
				if p.up || p.closed {
					return
				}
				if p.up = !gone; gone {
					p.gen++
				}
			},
			"close": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") > 0 {
					t.Skip("not yet")
				}
				p.apply(t, s.close(nil))
				p.closed = true
			},
			"strand": func(t *rapid.T) {
				left = rapid.IntRange(0, 20).Draw(t, "at most")
				effects := s.strand(nil)
				left = math.MaxInt
				if p.up && !p.closed && len(effects) > 0 {
					t.Fatal("a job is answered for a device that runs")
				}
				p.apply(t, effects)
			},
			"": func(t *rapid.T) {
				if p.closed || !p.up {
					for _, j := range all {
						if _, waits := s.places[j]; p.answered[j] == "" && !waits && s.held[j] == nil {
							t.Fatal("a job is lost")
						}
					}
					if s.stranded() != (len(p.waits)+len(p.held) > 0) || s.waiting() == 0 && len(s.after) != 0 {
						t.Fatalf("%d and %d wait: stranded %v, %d waited for", len(p.waits), len(p.held), s.stranded(), len(s.after))
					}
					return
				}
				if s.queue.Len() != len(p.waits) || len(s.held) != len(p.held) || len(p.waits) > 0 && p.busy() < p.workers {
					t.Fatalf("%d and %d wait, want %d and %d; %d of %d workers run", s.queue.Len(), len(s.held), len(p.waits), len(p.held), p.busy(), p.workers)
				}
				if len(p.held) == 0 && len(s.after) != 0 {
					t.Fatal("a job that nothing waits for is remembered")
				}
			},
		})
	})
}

// F6, E1: those that waited for a run go on in further turns where they are many; one that
// leaves between these, or is lost, does not run.
func TestManyWaitForOne(t *testing.T) {
	for _, lost := range []bool{false, true} {
		left := math.MaxInt
		s := newState[int](9, counted(&left))
		text := func(out []effect[int]) (all string) {
			for _, x := range out {
				all += fmt.Sprint([]string{"run ", "fail ", "reopen ", "ready "}[x.do], x.job, ";")
			}
			return all
		}
		s.up(1, 2, false, nil)
		s.submit(0, false, nil, nil)
		for j := range 5 {
			s.submit(1+j, false, []int{0, 0}[:1+j%2], nil)
		}
		left = 3 // 1, and 2, which waits twice
		_, out := s.done(0, 1, nil)
		left = math.MaxInt
		if got := text(out); got != "run 1;run 2;" || s.over.Len() != 1 {
			t.Fatalf("%q, %d to go on with", got, s.over.Len())
		}
		if waited, _ := s.withdraw(4, nil); !waited {
			t.Error("4 does not wait")
		}
		if lost {
			out = s.strand(s.lost(1, nil))
			if got := text(out); !strings.HasPrefix(got, "fail 1;fail 2;reopen 0;") || strings.Count(got, "fail") != 4 || s.over.Len() != 0 || s.waiting() != 0 {
				t.Errorf("lost: %q, %d wait", got, s.waiting())
			}
			continue
		}
		_, out = s.done(1, 1, nil)
		if got := text(out); got != "run 3;" {
			t.Errorf("%q", got)
		}
		_, out = s.done(2, 1, nil)
		if got := text(out); got != "run 5;" || s.waiting() != 0 || s.over.Len() != 0 {
			t.Errorf("%q, %d wait", got, s.waiting())
		}
	}
}

// F6, E1: a job joins those that it waits for in parts, and leaves them in parts. Until it has
// looked at all it does not run.
func TestJoinsAndLeavesInParts(t *testing.T) {
	left := math.MaxInt
	s := newState[int](100, counted(&left))
	within := func(most int, event func()) { // of a turn
		t.Helper()
		left = most
		event()
		if left < -4 { // each loop of it has asked once
			t.Errorf("%d things were looked at after the turn was over", -left)
		}
	}
	s.up(1, 1, false, nil)
	s.submit(0, false, nil, nil)
	var others []int
	for j := 1; j <= 30; j++ {
		s.submit(j, false, nil, nil)
		others = append(others, j)
	}
	within(2, func() { s.submit(20, false, others, nil) })
	within(9, func() { s.submit(21, false, others[29:], nil) })
	for j := 1; j <= 2; j++ { // they end before it has looked at the others
		within(0, func() { s.withdraw(j, nil) })
	}
	within(2, func() { s.ready(nil) })
	if s.held[20] == nil || len(s.held[20].rest) > 28 || !s.more() {
		t.Fatalf("it waits for %+v", s.held[20])
	}
	for s.more() {
		within(3, func() { s.ready(nil) })
	}
	if h := s.held[20]; h == nil || h.left != 28 || len(h.rest) != 0 {
		t.Fatalf("it waits for %+v", h)
	}
	within(2, func() { s.withdraw(20, nil) })
	turns := 0
	for ; s.more(); turns++ {
		within(2, func() { s.ready(nil) })
	}
	if turns < 2 || len(s.after) != 1 || s.after[30].Len() != 1 {
		t.Errorf("left in %d turns; of %d jobs others wait", turns, len(s.after))
	}
	within(9, func() { s.withdraw(30, nil) })
	if s.held[21] != nil || s.places[21] == nil || len(s.after) != 0 || s.more() {
		t.Error("the other one does not go on")
	}
}

// E1, C5: a job that was given out to a device whose workers have ended lets go of
// what it pinned.
func TestJobsOfARetiredDevice(t *testing.T) {
	g := &generation{jobs: make(chan *job, 1), over: make(chan struct{})}
	ended := 0
	g.jobs <- newJob(context.Background(), nil, func() { ended++ })
	if err := g.retire(); err != nil || ended != 1 {
		t.Errorf("ended %d times, %v", ended, err)
	}
}

// E1: the last run of a chain keeps none of those before it.
func TestChainIsForgotten(t *testing.T) {
	ended := func(err error) *job {
		j := newJob(context.Background(), nil, nil)
		j.answered = make(chan struct{})
		j.answer(err)
		return j
	}
	for _, err := range []error{nil, fault.ErrTooLarge} {
		j := newJob(context.Background(), nil, nil)
		j.after = []*job{ended(nil), ended(err)}
		if got := j.allowed(); !errors.Is(got, err) || j.after != nil {
			t.Errorf("%v, want %v; %d runs are kept", got, err, len(j.after))
		}
		j.after = []*job{ended(nil)}
		if j.end(); j.after != nil {
			t.Error("one that has ended keeps the run that it waited for")
		}
	}
}

// E1: withdrawing the last or a middle one of the jobs that wait costs the same however
// many do.
func BenchmarkWithdraw(b *testing.B) {
	for _, n := range []int{1e3, 1e4, 1e5} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := newState[int](n+1, func() bool { return true })
			s.up(1, 1, false, nil)
			for j := range n + 1 { // one runs
				s.submit(j, false, nil, nil)
			}
			for j := 1; b.Loop(); j = j%n + 1 {
				if waited, _ := s.withdraw(n/2+j/2, nil); !waited {
					b.Fatal("it does not wait")
				}
				s.submit(n/2+j/2, false, nil, nil)
			}
		})
	}
}

// F4: the linger time of a kernel that was taken, or let go, just when it ended is
// nothing to the next one of its key, which waits for its own.
func TestLingerOfAnotherKernel(t *testing.T) {
	s := shell{Executor: new(Executor), unclaimed: make(map[string]unclaimed)}
	made := func() *Kernel {
		k := &Kernel{source: Source{Key: "k"}}
		k.cell.Init(func() {})
		return k
	}
	before, waits := made(), made()
	s.unclaimed["k"] = unclaimed{kernel: waits}
	s.settled(before, true)
	if s.unclaimed["k"].kernel != waits {
		t.Error("the kernel that waits was let go for another one")
	}
}
