package gpuexec

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/touched"
)

// waitingJobs is a shell whose one worker is busy and whose queue the jobs fill.
func waitingJobs(jobs ...*job) *shell {
	s := &shell{Executor: &Executor{life: context.Background()}, end: func() {}, desk: new(desk), device: &generation{n: 1, jobs: make(chan *job, 1)}}
	s.state = newState[*job](len(jobs), func() bool { s.touched.Add(1); return s.touched.Left() })
	s.start = s.starting()
	s.state.up(1, 1, false, nil)
	for _, j := range append([]*job{newJob(context.Background(), nil, nil)}, jobs...) {
		s.handle(submitMsg{j})
	}
	return s
}

// F6, E1: what a sequence of very many launches pinned, or many long ones, is not let go in the turn
// that refuses or cancels them or answers them at the end. Their callers know the outcome
// when it has been let go, and runs that wait for them at once.
func TestEndsLongSequencesBesideTheTurn(t *testing.T) {
	for what, ends := range map[string]struct {
		things int
		err    error
		do     func(s *shell, jobs []*job)
	}{
		"cancelled": {touched.Most + 1, context.Canceled, func(s *shell, jobs []*job) {
			for _, j := range jobs {
				s.handle(withdrawMsg{j})
			}
		}},
		"refused": {touched.Most + 1, fault.ErrOverloaded, func(_ *shell, jobs []*job) {
			full := waitingJobs()
			for _, j := range jobs {
				full.handle(submitMsg{j})
			}
		}},
		"closed": {touched.Most + 1, fault.ErrClosed, func(s *shell, _ []*job) { s.handle(closeMsg{}) }},
		"many":   {touched.Most / 10, fault.ErrClosed, func(s *shell, _ []*job) { s.handle(closeMsg{}) }},
	} {
		actorstest.Bubble(t, func(t *testing.T) {
			over := make(chan struct{})
			jobs := make([]*job, 50)
			var ended atomic.Int64
			for i := range jobs {
				j := newJob(context.Background(), nil, nil)
				j.things, j.answered = ends.things, make(chan struct{})
				j.ended = func() {
					select {
					case <-j.answered:
						t.Errorf("%s: the caller of job %d is told before its end", what, i)
					default:
					}
					if what == "many" && i < 5 {
						ended.Add(1)
						return
					}
					select {
					case <-over:
						ended.Add(1)
					case <-time.After(time.Second):
						t.Errorf("%s: job %d ended in the turn", what, i)
					}
				}
				jobs[i] = j
			}
			s := waitingJobs(jobs...)
			ends.do(s, jobs)
			for i, j := range jobs {
				if !errors.Is(j.err, ends.err) {
					t.Errorf("%s: runs behind job %d see %v, want %v", what, i, j.err, ends.err)
				}
			}
			if n := s.touched.Most(); n > touched.Most {
				t.Errorf("%s: a turn touched %d things", what, n)
			}
			close(over)
			s.ends.Wait()
			synctest.Wait()
			for i, j := range jobs {
				select {
				case <-j.answered:
				default:
					t.Errorf("%s: the caller of job %d is not told", what, i)
				}
			}
			if ended.Load() != int64(len(jobs)) {
				t.Errorf("%s: %d of %d ended", what, ended.Load(), len(jobs))
			}
		})
	}
}

// F8, E1: Submit answers that the executor was closed when the launches are the caller's again,
// also where the executor ends before that.
func TestSubmitWaitsForTheEndOfItsLaunches(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		place := newJob(context.Background(), nil, nil)
		s := waitingJobs(place)
		s.handle(withdrawMsg{place})
		s.Executor.gone = make(chan struct{})
		s.ref = actors.Spawn(actors.Config{}, s.handle)
		goOn, answered := make(chan struct{}), make(chan error, 1)
		j := newJob(context.Background(), nil, func() { <-goOn })
		j.things = touched.Most + 1
		go func() { answered <- s.do(t.Context(), j) }()
		synctest.Wait()
		if _, err := actors.Ask(t.Context(), s.ref, func(r actors.Reply[*generation]) message { return closeMsg{r} }); err != nil {
			t.Error(err)
		}
		if err := s.ref.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		select {
		case err := <-answered:
			t.Errorf("%v while the launches are in use", err)
			answered <- err
		default:
		}
		close(goOn)
		s.ends.Wait()
		close(s.Executor.gone)
		if err := <-answered; !errors.Is(err, fault.ErrClosed) {
			t.Error(err)
		}
	})
}

// F6, F4: nor are all kernels that wait for a caller let go in the turn of Close.
func TestForgoesKernelsInShortTurns(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		s := waitingJobs()
		s.unclaimed = make(map[string]unclaimed)
		released := 0
		for i := range touched.Most + 500 {
			k := &Kernel{exec: s.Executor, source: Source{Key: strconv.Itoa(i)}}
			k.cell.Init(func() { released++ })
			s.unclaimed[k.source.Key] = unclaimed{kernel: k}
		}
		s.ref = actors.Spawn(actors.Config{}, s.handle)
		if _, err := actors.Ask(t.Context(), s.ref, func(r actors.Reply[*generation]) message { return closeMsg{r} }); err != nil {
			t.Fatal(err)
		}
		if err := s.ref.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := s.touched.Most(); n > touched.Most || released != touched.Most+500 {
			t.Errorf("a turn touched %d things, %d kernels were released", n, released)
		}
	})
}

// F8, E1: a compile of a lost device that ends before the turns that give it up have come to it is
// answered for: they do not find it any more.
func TestCompileThatEndsBeforeItIsGivenUp(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		s := waitingJobs()
		s.ref = actors.Spawn(actors.Config{Name: "later turns"}, func(message) {})
		flights := make([]*compiling, touched.Most+2)
		for i := range flights {
			f := &compiling{source: Source{Key: strconv.Itoa(i)}, desk: s.desk}
			f.Begin(t.Context(), s.Executor, f.source.Key)
			s.desk.Begin(f.source.Key, f, 0)
			flights[i] = f
		}
		s.strand()
		flights = slices.DeleteFunc(flights, func(f *compiling) bool { return f.Finished() })
		if len(flights) == 0 {
			t.Fatal("one turn gives up all")
		}
		s.handle(compiledMsg{flights[0], nil, nil})
		if !flights[0].Finished() {
			t.Error("a compile that has ended is not answered for")
		}
		if err := s.ref.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
