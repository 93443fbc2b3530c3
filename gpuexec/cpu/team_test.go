package cpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
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
		if c.queues.Load() != 0 || c.busy.Load() != 0 || c.helpers.Load() != 0 {
			t.Errorf("after all: %d queues, %d busy, %d helpers", c.queues.Load(), c.busy.Load(), c.helpers.Load())
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
	c.helpers.Add(1)
	if c.crowded() {
		t.Error("a helper and a run are too many for two cores")
	}
	all[1].begin()
	if !c.crowded() {
		t.Error("a helper stays beside two runs on two cores")
	}
	c.helpers.Add(-1)
	if c.crowded() || c.spare() != 0 {
		t.Errorf("two runs on two cores: crowded %v, %d spare", c.crowded(), c.spare())
	}
	all[0].finish()
	all[1].finish()
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
			if after.Load() > 0 {
				t.Errorf("helper %v: %d turns began after the fault", helper, after.Load())
			}
		}
	}
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

// E8: blocks have the same bits one by one, in any order, several at once and with any
// scratch memory as all together.
func TestBlocksAreIndependent(t *testing.T) {
	norm, attention := ops.New(ops.LayerNorm, 37, 24), ops.New(ops.Attention, 90, 3, 24, 4)
	norm.Epsilon, attention.Scale = 1e-5, 0.5
	starts, lengths := gpuexec.BytesOf([]int32{0, 1, 33, 33, 90}), gpuexec.BytesOf([]int32{17, 5, 9})
	sets(t, func(t *testing.T, b *Backend) {
		for _, c := range []struct {
			op   ops.Op
			ints []byte // of the argument that has as many
		}{
			{op: ops.New(ops.MatMul, 70, 96, 200)}, {op: ops.New(ops.MatMul, 200, 1100, 130)}, {op: ops.New(ops.GELU, 33, 50)}, {op: norm},
			{op: ops.New(ops.BatchMatMul, 3, 4, 17, 8, 17), ints: lengths}, {op: ops.New(ops.Softmax, 3, 4, 17, 17), ints: lengths},
			{op: attention, ints: starts},
		} {
			d, q, p, args := launchedOp(t, b, c.op, c.ints)
			size, _ := b.Launch(c.op)
			out := view(args[0])
			for _, a := range args { // the last buffer is the result
				if a.Kind == gpuexec.ParamBuffer {
					out = view(a)
				}
			}
			before := bytes.Repeat([]byte{0x7f}, len(out)) // padding is not written
			copy(out, before)
			if err := q.Launch(t.Context(), p, args, size, gpuexec.Size{1, 1, 1}); err != nil {
				t.Fatalf("%s: %v", c.op, err)
			}
			want := slices.Clone(out)
			copy(out, before)
			all, _, err := q.bind(p, args, size[0])
			if err != nil {
				t.Fatal(err)
			}
			order := rand.New(rand.NewPCG(1, 6)).Perm(size[0])
			var wg sync.WaitGroup
			errs := make([]error, 3)
			for i := range errs {
				wg.Go(func() {
					with := new(scratch)
					for at := i; at < len(order) && errs[i] == nil; at += len(errs) {
						errs[i] = all.run(t.Context(), order[at], order[at]+1, with)
					}
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s: %v", c.op, err)
			}
			if !bytes.Equal(out, want) {
				t.Errorf("%s: other bits block by block", c.op)
			}
			q.Close()
			p.Release()
			d.Close()
		}
	})
}

// launchedOp gives a launch of an operation on random numbers, with these as the argument
// that has as many bytes.
func launchedOp(t *testing.T, b *Backend, op ops.Op, ints []byte) (gpuexec.Device, *queue, gpuexec.Program, []gpuexec.DeviceArg) {
	t.Helper()
	if op.Kind == ops.Attention {
		l := newLaunchedOn(t, b, op)
		copy(view(l.args[3]), ints)
		return l.queue.d, l.queue, l.program, l.args
	}
	d, err := b.Open(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	src := source(t, b, op)
	p, err := d.Compile(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 5))
	var args []gpuexec.DeviceArg
	for _, param := range src.Params {
		m, err := d.Alloc(param.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		for i, list := 0, floats(m.Mapped()); i < len(list); i++ {
			list[i] = float32(rnd.NormFloat64())
		}
		if param.Bytes == int64(len(ints)) {
			copy(m.Mapped(), ints)
		}
		args = append(args, gpuexec.DeviceArg{Kind: gpuexec.ParamBuffer, Memory: m, Bytes: param.Bytes})
	}
	return d, newQueue(d.(*device)), p, args
}

// E1: a queue is busy from its first launch until Finish, with launches of every kind; while
// another is, a launch wakes nobody.
func TestLaunchesWakeHelpers(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(before)
	norm, attention := ops.New(ops.LayerNorm, 4000, 384), ops.New(ops.Attention, 512, 12, 32, 1)
	norm.Epsilon, attention.Scale = 1e-5, 0.5
	sets(t, func(t *testing.T, b *Backend) {
		wakesHelpers(t, b, norm, nil)
		if b.set.Name() == "generic" { // has a kernel for gelu, and less of the others takes as long
			wakesHelpers(t, b, ops.New(ops.MatMul, 64, 96, 1536), nil)
			return
		}
		wakesHelpers(t, b, ops.New(ops.MatMul, 512, 384, 384), nil)
		wakesHelpers(t, b, ops.New(ops.GELU, 4000, 1536), nil)
		wakesHelpers(t, b, ops.New(ops.BatchMatMul, 2, 12, 512, 32, 512), gpuexec.BytesOf([]int32{512, 512}))
		wakesHelpers(t, b, attention, gpuexec.BytesOf([]int32{0, 512}))
	})
}

func wakesHelpers(t *testing.T, b *Backend, op ops.Op, ints []byte) {
	t.Helper()
	d, q, p, args := launchedOp(t, b, op, ints)
	other := newQueue(q.d)
	size, _ := b.Launch(op)
	launch := func(name string, wakes bool) {
		t.Helper()
		q.team.all.Wait() // else helpers look out still
		if err := q.Launch(t.Context(), p, args, size, gpuexec.Size{1, 1, 1}); err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		if q.team.woken != wakes || !q.team.running {
			t.Errorf("%s, %s: helpers woken: %v; running: %v", op, name, q.team.woken, q.team.running)
		}
		if err := q.Finish(t.Context()); err != nil || q.team.running || q.team.woken {
			t.Errorf("%s, %s: %v; running after Finish: %v", op, name, err, q.team.running)
		}
	}
	launch("alone", true)
	other.team.begin()
	launch("beside another", false)
	other.team.finish()
	launch("alone again", true)
	other.Close()
	q.Close()
	p.Release()
	d.Close()
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
