package cpu

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/guard"
)

const (
	// worthWaking is how long a launch takes on one core for which helpers are woken. That
	// takes 0.03 to 0.1 ms each time.
	worthWaking = 640 * time.Microsecond
	// worthAgain is that of later launches of the same run, and of each further helper.
	worthAgain = 200 * time.Microsecond
	// worthSharing is that for helpers who are awake.
	worthSharing = 20 * time.Microsecond
	// lookout is how long a helper looks for the next launch before it ends.
	lookout = 100 * time.Microsecond
	// breath is how long a helper stays at most, but for the turn that it has in hand: where
	// no core is ever idle, Go's scheduler looks for readable sockets every 10 ms only.
	breath = 2 * time.Millisecond
	// turn bounds what is taken at a time. Then other goroutines may have a helper's core.
	turn = 500 * time.Microsecond
)

// crew counts who computes on a device.
type crew struct {
	queues  atomic.Int32
	busy    atomic.Int32 // queues with a run under way
	helpers atomic.Int32
	cores   atomic.Int32 // when spare looked: asking Go for them takes a lock of its scheduler

	mu struct {
		sync.Mutex
		idle []*scratch // that no helper has: at most one a queue
	}
}

// take gives a helper memory of those before it: a collector's pool would lose it now and then,
// a quarter of a megabyte each.
func (c *crew) take() *scratch {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.mu.idle) - 1
	if last < 0 {
		return new(scratch)
	}
	s := c.mu.idle[last]
	c.mu.idle = c.mu.idle[:last]
	return s
}

func (c *crew) give(s *scratch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.idle = append(c.mu.idle, s)
}

// computing is who computes on any device of the process: several runtimes have one each.
var computing atomic.Int32

// count counts a queue among those that are busy, or a helper; -1 no longer.
func count(who *atomic.Int32, by int32) {
	who.Add(by)
	computing.Add(by)
}

// crowded reports whether there are helpers in place of queues that are busy.
func (c *crew) crowded() bool { return c.room() < 0 }

// spare is how many more helpers there may be.
func (c *crew) spare() int {
	c.cores.Store(int32(runtime.GOMAXPROCS(0)))
	return max(0, int(c.room()))
}

// room is how many more may compute: each in place of a queue, and on a core of its own.
func (c *crew) room() int32 {
	return min(c.queues.Load()-c.busy.Load()-c.helpers.Load(), c.cores.Load()-computing.Load())
}

// team runs the launches of a queue: its worker and, in place of queues that have nothing to
// do, helpers. Which of them runs a block changes none of its bits (SPEC E8).
type team struct {
	crew    *crew
	own     scratch // the worker's
	running bool    // from the worker's first launch to Finish
	woken   bool    // helpers were, in this run
	helpers atomic.Int32
	left    atomic.Bool  // there are blocks that nobody has begun: for helpers that look out
	working atomic.Int32 // goroutines that run blocks; changes under the lock
	all     sync.WaitGroup

	mu struct {
		sync.Mutex
		launch
		none sync.Cond // nobody runs blocks
	}
}

// launch is one of which helpers take a part.
type launch struct {
	ctx     context.Context
	blocks  blocks
	next, n int // the first block that nobody has begun; all
	most    int // blocks at a time
	err     error
}

// blocks are those of a launch. They may run in any order, on any goroutine, several at once.
type blocks interface {
	run(ctx context.Context, first, end int, with *scratch) error
}

// join makes the team part of the crew, until close.
func (t *team) join(c *crew) {
	t.crew, t.mu.none.L = c, &t.mu
	c.queues.Add(1)
}

func (t *team) close() {
	t.finish()
	t.crew.queues.Add(-1)
	t.all.Wait()
}

// begin makes the queue a busy one, until finish.
func (t *team) begin() {
	if !t.running {
		t.running = true
		count(&t.crew.busy, 1)
	}
}

func (t *team) finish() {
	if t.running {
		t.running, t.woken = false, false
		count(&t.crew.busy, -1)
	}
}

// run runs n blocks, which take that long on one core. When it returns none runs any more.
func (t *team) run(ctx context.Context, b blocks, n int, takes time.Duration) (err error) {
	more := t.wanted(n, takes)
	if takes < worthSharing || t.helpers.Load() == 0 && more == 0 {
		return b.run(ctx, 0, n, &t.own)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.mu.launch
	*l = launch{ctx: ctx, blocks: b, n: n, most: max(1, int(time.Duration(n)*turn/takes))}
	t.left.Store(true)
	defer func() {
		t.await()
		err = l.err
		*l = launch{}
	}()
	for l.next < n {
		t.wake(more)
		t.turn(&t.own)
		more = t.wanted(n-l.next, time.Duration(float64(takes)*float64(n-l.next)/float64(n)))
	}
	return nil
}

// await waits until nobody runs blocks. Most turns end soon: a worker that slept meanwhile would
// have to be woken. The lock is held, but while it waits.
func (t *team) await() {
	t.mu.Unlock()
	for began := time.Now(); t.working.Load() > 0 && time.Since(began) < lookout; {
	}
	t.mu.Lock()
	for t.working.Load() > 0 {
		t.mu.none.Wait()
	}
}

// wake starts so many helpers.
func (t *team) wake(more int) {
	for range more {
		t.woken = true
		t.helpers.Add(1)
		count(&t.crew.helpers, 1)
		t.all.Go(t.help)
	}
}

// wanted is how many helpers to wake for what is left of a launch, in place of those that took a
// breath too.
func (t *team) wanted(n int, takes time.Duration) int {
	if takes < worthAgain || takes < worthWaking && !t.woken {
		return 0
	}
	most := min(n-1, int(takes/worthAgain)) - int(t.helpers.Load())
	if most <= 0 {
		return 0
	}
	return min(most, t.crew.spare())
}

// turn runs some blocks of the launch that nobody has begun, if there are any. The lock is
// held, but while they run. Who yields after it has none in hand: nobody waits for it.
func (t *team) turn(with *scratch) {
	l := &t.mu.launch
	if l.next == l.n {
		return
	}
	first := l.next
	l.next += max(1, min((l.n-first)/2/(1+int(t.helpers.Load())), l.most))
	end := l.next
	t.left.Store(end < l.n)
	t.working.Add(1)
	t.mu.Unlock()
	guard.Guard(func() error { return l.blocks.run(l.ctx, first, end, with) }, func(err error) {
		t.mu.Lock() // after a Goexit too
		if err != nil && l.err == nil {
			l.err, l.next = err, l.n
			t.left.Store(false)
		}
		if t.working.Add(-1) == 0 {
			t.mu.none.Signal()
		}
	})
}

// help takes turns in launches while there are some.
func (t *team) help() {
	defer count(&t.crew.helpers, -1)
	defer t.helpers.Add(-1)
	with := t.crew.take()
	defer t.crew.give(with)
	began := time.Now()
	for seen, now := began, began; !t.crew.crowded() && now.Sub(seen) < lookout && now.Sub(began) < breath; now = time.Now() {
		if !t.left.Load() {
			continue
		}
		func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.turn(with)
		}()
		runtime.Gosched()
		seen = time.Now()
	}
}

// scratch is memory that whoever runs blocks keeps from one to the next.
type scratch struct {
	packed []float32 // right-hand side of one product of a batch
	keys   []float32
	values []float32
	scores []float32
	// edge is zeros and then -Inf: the start of a row of scores, so that those behind the
	// sequence become -Inf.
	edge []float32
}
