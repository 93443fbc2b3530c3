package cpu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// teams gives teams of one crew, and as many cores.
func teams(t *testing.T, n int) []*team {
	t.Helper()
	before := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	c, all := new(crew), make([]*team, n)
	for i := range all {
		all[i] = new(team)
		all[i].join(c)
	}
	t.Cleanup(func() {
		for _, x := range all {
			x.close()
		}
		if c.queues.Load() != 0 || c.busy.Load() != 0 || c.helpers.Load() != 0 || computing.Load() != 0 {
			t.Errorf("after all: %d queues, %d busy, %d helpers, %d in all", c.queues.Load(), c.busy.Load(), c.helpers.Load(), computing.Load())
		}
	})
	return all
}

// blocksFunc is blocks of a test.
type blocksFunc func(ctx context.Context, first, end int, with *scratch) error

func (f blocksFunc) run(ctx context.Context, first, end int, with *scratch) error {
	return f(ctx, first, end, with)
}

// meeting is blocks that do not end before n goroutines run some at once.
type meeting struct {
	n   int32
	in  atomic.Int32
	met chan struct{}
}

func meetingOf(n int32) *meeting { return &meeting{n: n, met: make(chan struct{})} }

func (m *meeting) run(context.Context, int, int, *scratch) error {
	if m.in.Add(1) == m.n {
		close(m.met)
	}
	<-m.met
	return nil
}

// E1, E8: where all other queues have nothing to do, each of their cores takes part in a long
// launch.
func TestSpareCoresHelp(t *testing.T) {
	for _, cores := range []int{2, 3, 5} {
		all := teams(t, cores)
		all[0].begin()
		m := meetingOf(int32(cores))
		if err := all[0].run(t.Context(), m, 100, time.Second); err != nil {
			t.Fatal(err)
		}
		all[0].finish()
		all[0].all.Wait() // a helper that looks out still takes the place of one of the next crew
	}
}

// Every block runs once, and the launch ends when all have, by any number of helpers and at
// any time at which they come and go.
func TestEveryBlockRunsOnce(t *testing.T) {
	all := teams(t, 4)
	x := all[0]
	rnd := rand.New(rand.NewPCG(1, 1))
	for round := range 3000 {
		n := 1 + rnd.IntN(300)
		ran, running := make([]atomic.Int32, n), new(atomic.Int32)
		x.begin()
		err := x.run(t.Context(), blocksFunc(func(_ context.Context, first, end int, with *scratch) error {
			running.Add(1)
			defer running.Add(-1)
			for i := first; i < end; i++ {
				ran[i].Add(1)
			}
			if round%40 == 0 && with != &x.own {
				time.Sleep(3 * lookout) // longer than the worker waits without sleep
			}
			return nil
		}), n, time.Duration(rnd.IntN(3000))*time.Microsecond)
		if err != nil || running.Load() != 0 {
			t.Fatalf("round %d: %v, and %d goroutines run blocks still", round, err, running.Load())
		}
		if x.left.Load() {
			t.Fatalf("round %d: helpers look for blocks in a launch that has ended", round)
		}
		for i := range ran {
			if ran[i].Load() != 1 {
				t.Fatalf("round %d: block %d of %d ran %d times", round, i, n, ran[i].Load())
			}
		}
		if rnd.IntN(4) == 0 {
			x.finish()
		}
		if rnd.IntN(20) == 0 {
			time.Sleep(2 * lookout)
		}
	}
}

// A turn is the taker's share of half of what is left, so that all end together, and at most
// half a millisecond of it.
func TestTurnsAreShares(t *testing.T) {
	all := teams(t, 2)
	x := all[0]
	for _, c := range []struct {
		takes time.Duration
		most  int
	}{{worthWaking, 250}, {10 * time.Millisecond, 50}} {
		x.all.Wait()
		x.begin()
		var longest, last atomic.Int32
		err := x.run(t.Context(), blocksFunc(func(_ context.Context, first, end int, _ *scratch) error {
			for n := int32(end - first); ; {
				if before := longest.Load(); before >= n || longest.CompareAndSwap(before, n) {
					break
				}
			}
			if end == 1000 {
				last.Store(int32(end - first))
			}
			return nil
		}), 1000, c.takes)
		if err != nil || int(longest.Load()) != c.most || last.Load() != 1 {
			t.Errorf("%v: %v; the longest turn has %d blocks, want %d, the last has %d, want 1", c.takes, err, longest.Load(), c.most, last.Load())
		}
		x.finish()
	}
}

// A helper that has had a turn looks out anew: it is there for the next one.
func TestHelpersStayAfterATurn(t *testing.T) {
	all := teams(t, 2)
	x := all[0]
	stayed := false
	for round := 0; round < 1000 && !stayed; round++ { // a turn may last until the helper's breath
		x.all.Wait()
		x.begin()
		m := meetingOf(2)
		var turns atomic.Int32 // of the first helper
		if err := x.run(t.Context(), blocksFunc(func(ctx context.Context, first, end int, with *scratch) error {
			if m.in.Load() < 2 {
				_ = m.run(ctx, first, end, with)
				if with == &x.own {
					for x.helpers.Load() > 0 && turns.Load() < 2 {
						runtime.Gosched()
					}
					stayed = turns.Load() == 2
					return nil
				}
				for began := time.Now(); time.Since(began) < lookout; {
					runtime.Gosched()
				}
			}
			if with != &x.own {
				turns.Add(1)
			}
			return nil
		}), 100, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		x.finish()
	}
	if !stayed {
		t.Error("no helper has a second turn")
	}
}

// E1: after a turn a helper gives its core to others that can run, before it takes the next.
func TestHelpersYield(t *testing.T) {
	x := teams(t, 2)[0]
	for judged := false; !judged; { // a helper that waits for a core may end before
		x.all.Wait()
		x.begin()
		m := meetingOf(2)
		var turns atomic.Int32 // of the helper
		var spins, ran atomic.Bool
		if err := x.run(t.Context(), blocksFunc(func(ctx context.Context, first, end int, with *scratch) error {
			begins := m.in.Load() < 2
			if begins {
				_ = m.run(ctx, first, end, with)
			}
			if with == &x.own {
				for spins.Store(true); begins && x.helpers.Load() > 0 && turns.Load() < 4; { // and so keeps its core
				}
				return nil
			}
			switch turns.Add(1) {
			case 1:
				for !spins.Load() {
					runtime.Gosched()
				}
			case 2:
				go ran.Store(true)
			case 4: // one of two times, Go's scheduler may have chosen the helper again
				if judged = true; !ran.Load() {
					t.Error("a goroutine that can run waits for a helper that has had two turns")
				}
			}
			return nil
		}), 1000, time.Second); err != nil {
			t.Fatal(err)
		}
		x.finish()
	}
}

// Nobody helps where it is not worth it, where there is one block, and where every core has a
// queue that is busy.
func TestNobodyHelps(t *testing.T) {
	all := teams(t, 3)
	alone := func(name string, n int, takes time.Duration) {
		t.Helper()
		calls := 0
		if err := all[0].run(t.Context(), blocksFunc(func(_ context.Context, first, end int, with *scratch) error {
			if calls++; first != 0 || end != n || with != &all[0].own {
				t.Errorf("%s: blocks %d to %d of %d", name, first, end, n)
			}
			return nil
		}), n, takes); err != nil || calls != 1 {
			t.Errorf("%s: %v after %d calls", name, err, calls)
		}
		if all[0].crew.helpers.Load() != 0 {
			t.Errorf("%s: %d helpers", name, all[0].crew.helpers.Load())
		}
	}
	all[0].begin()
	alone("a short launch", 100, worthWaking-1)
	alone("one block", 1, time.Second)
	all[1].begin()
	all[2].begin()
	alone("all are busy", 100, time.Second)
	all[1].finish()
	all[2].finish()
	runtime.GOMAXPROCS(1)
	alone("one core", 100, time.Second)
}

// A launch has a helper for each 0.2 ms that it takes, not for each core of a large machine.
func TestHelpersAreAsManyAsTheWork(t *testing.T) {
	all := teams(t, 30)
	x := all[0]
	x.begin()
	for _, c := range []struct {
		woken bool
		n     int
		takes time.Duration
		want  int
	}{
		{false, 100, worthWaking - 1, 0}, {false, 100, worthWaking, 3}, {false, 100, 10 * time.Second, 29}, {false, 4, time.Second, 3},
		{true, 100, worthAgain - 1, 0}, {true, 100, worthAgain, 1}, {true, 100, worthWaking - 1, 3},
	} {
		x.woken = c.woken
		if got := x.wanted(c.n, c.takes); got != c.want {
			t.Errorf("%+v: %d helpers", c, got)
		}
	}
	x.finish()
}

// A helper makes room when another queue becomes busy, though there are blocks left.
func TestHelpersMakeRoom(t *testing.T) {
	all := teams(t, 2)
	x, other := all[0], all[1]
	x.begin()
	m := meetingOf(2)
	var alone atomic.Int32
	err := x.run(t.Context(), blocksFunc(func(ctx context.Context, first, end int, with *scratch) error {
		if m.in.Load() < 2 {
			_ = m.run(ctx, first, end, with) // both have begun
			if with != &x.own {
				other.begin()
			}
			return nil
		}
		for with == &x.own && x.helpers.Load() > 0 { // it goes before the worker's second turn
			runtime.Gosched()
		}
		if with == &x.own {
			alone.Add(1)
		} else {
			t.Error("the helper stays beside a queue that is busy")
		}
		return nil
	}), 100, 50*time.Millisecond)
	if err != nil || alone.Load() == 0 {
		t.Errorf("%v; the worker took %d turns alone", err, alone.Load())
	}
	other.finish()
	x.finish()
}

// E1: with more queues than cores, two runs have no helpers beside them on two cores.
func TestHelpersMakeRoomOnFewCores(t *testing.T) {
	all := teams(t, 5)
	runtime.GOMAXPROCS(2)
	c := all[0].crew
	all[0].begin()
	if n := c.spare(); n != 1 {
		t.Errorf("%d cores are spare beside one run on two", n)
	}
	count(&c.helpers, 1)
	if c.crowded() {
		t.Error("a helper and a run are too many for two cores")
	}
	all[1].begin()
	if !c.crowded() {
		t.Error("a helper stays beside two runs on two cores")
	}
	count(&c.helpers, -1)
	if c.crowded() || c.spare() != 0 {
		t.Errorf("two runs on two cores: crowded %v, %d spare", c.crowded(), c.spare())
	}
	all[0].finish()
	all[1].finish()
}

// E1: the devices of several runtimes share the cores: what computes on one of them has no helper
// beside it on another.
func TestHelpersMakeRoomForOtherDevices(t *testing.T) {
	x, other := teams(t, 2)[0], teams(t, 2)[0]
	x.begin()
	if x.crew.spare() != 1 || x.crew.crowded() {
		t.Errorf("one run on two cores: %d are spare, crowded %v", x.crew.spare(), x.crew.crowded())
	}
	count(&x.crew.helpers, 1)
	other.begin()
	if !x.crew.crowded() || other.crew.spare() != 0 {
		t.Errorf("a run and its helper, and another device's run: crowded %v, %d are spare there", x.crew.crowded(), other.crew.spare())
	}
	count(&x.crew.helpers, -1)
	if x.crew.crowded() || x.crew.spare() != 0 || other.crew.spare() != 0 {
		t.Errorf("two devices' runs: crowded %v, %d and %d are spare", x.crew.crowded(), x.crew.spare(), other.crew.spare())
	}
	x.finish()
	if n := other.crew.spare(); n != 1 {
		t.Errorf("beside a device that rests %d cores are spare", n)
	}
	other.finish()
}

// In a long launch too, a helper takes a breath after a while, so that Go's scheduler comes to
// look for sockets. Then the launch has another one.
func TestHelpersTakeABreath(t *testing.T) {
	all := teams(t, 2)
	x := all[0]
	x.begin()
	m, turns := meetingOf(2), 0
	var first *scratch // of the helper
	var gone, stays, another atomic.Bool
	err := x.run(t.Context(), blocksFunc(func(ctx context.Context, begin, end int, with *scratch) error {
		switch {
		case with != &x.own && first == nil:
			first = with
			_ = m.run(ctx, begin, end, with)
			time.Sleep(breath)
		case with != &x.own:
			stays.Store(stays.Load() || !gone.Load())
			another.Store(true)
		case turns == 0:
			turns++
			_ = m.run(ctx, begin, end, with)
			for x.helpers.Load() > 0 && !stays.Load() {
				runtime.Gosched()
			}
			gone.Store(true)
		case turns == 1:
			turns++
			for !another.Load() {
				runtime.Gosched()
			}
		}
		return nil
	}), 10000, 10*time.Second)
	if err != nil || stays.Load() {
		t.Errorf("%v; the helper stays: %v", err, stays.Load())
	}
	x.finish()
}

// F3: runtime.Goexit in a block ends the launch and its goroutine, and nothing else.
func TestGoexitOfBlocks(t *testing.T) {
	for _, helper := range []bool{true, false} {
		all := teams(t, 2)
		x := all[0]
		x.begin()
		m := meetingOf(2)
		var after atomic.Int32
		var err error
		returned, ended := false, make(chan struct{})
		go func() {
			defer close(ended)
			err = x.run(context.Background(), blocksFunc(func(ctx context.Context, first, end int, with *scratch) error {
				if m.in.Load() >= 2 {
					after.Add(1)
					return nil
				}
				_ = m.run(ctx, first, end, with)
				if helper == (with != &x.own) {
					runtime.Goexit()
				}
				for x.left.Load() {
					runtime.Gosched()
				}
				return nil
			}), 1000, time.Second)
			returned = true
		}()
		<-ended
		if returned != helper || helper && !errors.Is(err, fault.ErrGoexit) || after.Load() > 0 {
			t.Errorf("helper %v: returned %v, %v; %d turns began after it", helper, returned, err, after.Load())
		}
		if x.working.Load() != 0 || x.mu.launch.blocks != nil {
			t.Errorf("helper %v: %d goroutines run blocks still", helper, x.working.Load())
		}
		x.finish()
		x.all.Wait()
	}
}

// F3: the error of a block, or a panic in it, is the launch's, whoever runs it. No block begins
// after it, and none runs when the launch has ended.
func TestFaultsOfHelpers(t *testing.T) {
	broken := errors.New("broken")
	all := teams(t, 3)
	x := all[0]
	for _, helper := range []bool{true, false} {
		for _, panics := range []bool{false, true} {
			x.all.Wait() // who looks out still, and ends, would be missed at the meeting
			x.begin()
			m := meetingOf(3)
			var after atomic.Int32
			err := x.run(t.Context(), blocksFunc(func(ctx context.Context, first, end int, with *scratch) error {
				if m.in.Load() >= 3 {
					after.Add(1)
					return nil
				}
				_ = m.run(ctx, first, end, with)
				if helper == (with == &x.own) {
					for x.left.Load() {
						runtime.Gosched()
					}
					return errors.New("a later fault")
				}
				if panics {
					panic(broken)
				}
				return fmt.Errorf("block %d: %w", first, broken)
			}), 1000, time.Second)
			x.finish()
			if panics {
				if p := (*fault.PanicError)(nil); !errors.As(err, &p) || !strings.Contains(err.Error(), "broken") {
					t.Errorf("helper %v: %v, want the panic", helper, err)
				}
			} else if !errors.Is(err, broken) {
				t.Errorf("helper %v: %v", helper, err)
			}
			if after.Load() > 0 || x.left.Load() {
				t.Errorf("helper %v: %d turns began after the fault; helpers look for more: %v", helper, after.Load(), x.left.Load())
			}
		}
	}
}

// F3: the worker has nothing to do any more, and waits for a helper whose turn fails: so does
// the launch.
func TestFaultOfTheLastTurn(t *testing.T) {
	broken := errors.New("broken")
	x := teams(t, 2)[0]
	x.begin()
	m := meetingOf(2)
	if err := x.run(t.Context(), blocksFunc(func(ctx context.Context, first, end int, with *scratch) error {
		if m.in.Load() < 2 {
			_ = m.run(ctx, first, end, with)
			if with != &x.own {
				for x.left.Load() || x.working.Load() > 1 {
					runtime.Gosched()
				}
				return broken
			}
		}
		return nil
	}), 1000, time.Second); !errors.Is(err, broken) {
		t.Errorf("%v, want the helper's", err)
	}
	x.finish()
}

// For the few blocks that are left when a helper has taken its breath nobody is woken.
func TestNobodyIsWokenForTheRest(t *testing.T) {
	const n = 1000
	const rest = n * int(worthAgain) / int(worthWaking)
	x := teams(t, 2)[0]
	x.begin()
	m := meetingOf(2)
	few, gone := make(chan struct{}), false
	if err := x.run(t.Context(), blocksFunc(func(ctx context.Context, first, end int, with *scratch) error {
		if m.in.Load() < 2 {
			_ = m.run(ctx, first, end, with)
			if with != &x.own {
				<-few
				time.Sleep(breath)
			}
			return nil
		}
		switch {
		case with != &x.own || gone && x.helpers.Load() > 0:
			t.Errorf("blocks %d to %d: there is another helper", first, end)
		case !gone && n-end < rest:
			gone = true
			close(few)
			for x.helpers.Load() > 0 {
				runtime.Gosched()
			}
		}
		return nil
	}), n, worthWaking); err != nil || !gone {
		t.Errorf("%v; the helper had its breath: %v", err, gone)
	}
	x.finish()
}

// What helpers ran is not kept: a queue that rests holds no launch.
func TestLaunchesAreNotKept(t *testing.T) {
	all := teams(t, 2)
	all[0].begin()
	if err := all[0].run(t.Context(), meetingOf(2), 10, time.Second); err != nil {
		t.Fatal(err)
	}
	if l := all[0].mu.launch; l.blocks != nil || l.ctx != nil {
		t.Errorf("%+v", l)
	}
}

// Helpers use the memory of those before them, as many pieces as there have been helpers at a
// time.
func TestHelpersShareMemory(t *testing.T) {
	all := teams(t, 3)
	x := all[0]
	x.begin()
	seen := make(map[*scratch]bool)
	var mu sync.Mutex
	for range 50 {
		x.all.Wait()
		m := meetingOf(3)
		if err := x.run(t.Context(), blocksFunc(func(ctx context.Context, first, end int, with *scratch) error {
			mu.Lock()
			seen[with] = true
			mu.Unlock()
			if m.in.Load() < 3 {
				return m.run(ctx, first, end, with)
			}
			return nil
		}), 100, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	x.finish()
	if len(seen) != 3 {
		t.Errorf("%d pieces of memory, want the worker's and one of each of two helpers", len(seen))
	}
}
