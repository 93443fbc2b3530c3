package lease

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/internal/guard"
)

const (
	// patience is how long a Free may keep what was thrown after it waiting; twice that
	// where it began while the bin was watched already.
	patience = 50 * time.Millisecond
	// mostStuck is how many may take longer at a time and still keep nothing waiting:
	// each of them has a goroutine.
	mostStuck = 64
)

// Bin frees what is thrown into it, in that order, on one goroutine that it
// borrows while there is something to free. What frees is user code: a panic in it
// is told and hurts nobody, and after a runtime.Goexit the rest is freed on another
// goroutine, as it is where a Free is stuck. Throwing waits for nothing, so it is
// right in a turn, under a lock, and in what frees. Safe for concurrent use.
type Bin[T any] struct {
	InOrder bool // set before use: what frees tells, so nothing goes ahead of what is stuck

	lend   func(func())
	free   func(T)
	failed func(error)

	mu struct {
		sync.Mutex
		waiting []thrown[T]
		taken   uint64 // things taken out so far
		busy    []busy // in the order taken out
		// INVARIANT: one of the workers that are not stuck takes things out; one that
		// is not stuck any more, and is not the only one, leaves.
		workers, stuck int
		fences         []fence // reached while what comes before is stuck
		watched        bool    // a timer runs: it looks whether more than seen were taken
		seen           uint64
	}
}

// thrown is a thing to free, or a fence.
type thrown[T any] struct {
	thing T
	fence func()
	all   bool // the fence is one for what is stuck, too
}

// busy is a thing that is being freed.
type busy struct {
	number uint64 // among those taken out
	stuck  bool
}

// fence waits for what was taken out before.
type fence struct {
	taken  uint64 // the last of that
	passed func()
}

// Init makes a zero Bin ready. lend runs a function on another goroutine, free
// frees one thing, failed is told of a panic in it.
func (b *Bin[T]) Init(lend func(fn func()), free func(T), failed func(error)) {
	b.lend, b.free, b.failed = lend, free, failed
}

// Throw has things freed soon.
func (b *Bin[T]) Throw(things ...T) {
	if len(things) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range things {
		b.mu.waiting = append(b.mu.waiting, thrown[T]{thing: t})
	}
	b.startLocked()
}

// Offer is Throw of one thing, unless that many wait already: then it reports false.
func (b *Bin[T]) Offer(t T, most int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mu.waiting) >= most {
		return false
	}
	b.mu.waiting = append(b.mu.waiting, thrown[T]{thing: t})
	b.startLocked()
	return true
}

// MostUntold is how many evictions wait for a listener at most: others it is not told of.
// Tests have another one.
var MostUntold = 1 << 16

// Fence has passed called when everything thrown before is freed. It must not be
// waited for in what frees.
func (b *Bin[T]) Fence(passed func()) { b.fence(passed, true) }

// Soon is Fence, but does not wait for a Free that is stuck: one that takes longer
// than others are to wait for it. Where so many are that they keep others waiting, it does
// not wait for those, either.
func (b *Bin[T]) Soon(passed func()) { b.fence(passed, false) }

func (b *Bin[T]) fence(passed func(), all bool) {
	b.mu.Lock()
	if !all && b.fullLocked() {
		b.mu.Unlock()
		passed()
		return
	}
	b.mu.waiting = append(b.mu.waiting, thrown[T]{fence: passed, all: all})
	b.startLocked()
	b.mu.Unlock()
}

// fullLocked reports whether as much is stuck as may be: nothing comes to a fence then.
func (b *Bin[T]) fullLocked() bool { return b.mu.workers == b.mu.stuck && b.mu.stuck > mostStuck }

// skipLocked takes the fences of Soon out where the bin has become full. It looks at all that
// waits, so it is not for a turn.
func (b *Bin[T]) skipLocked() (skipped []fence) {
	if !b.fullLocked() {
		return nil
	}
	b.mu.waiting = slices.DeleteFunc(b.mu.waiting, func(t thrown[T]) bool {
		soon := t.fence != nil && !t.all
		if soon {
			skipped = append(skipped, fence{passed: t.fence})
		}
		return soon
	})
	return skipped
}

func (b *Bin[T]) startLocked() {
	if b.mu.workers == b.mu.stuck && b.mu.workers <= mostStuck {
		b.mu.workers++
		b.lend(b.work)
		return
	}
	b.watchLocked()
}

// watchLocked has a worker that is stuck relieved after a while.
func (b *Bin[T]) watchLocked() {
	if b.InOrder || b.mu.watched || len(b.mu.waiting) == 0 {
		return
	}
	b.mu.watched, b.mu.seen = true, b.mu.taken
	time.AfterFunc(patience, func() {
		var skipped []fence
		defer func() { passAll(skipped) }()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.mu.watched = false
		if b.mu.taken == b.mu.seen && b.mu.workers == len(b.mu.busy) && len(b.mu.waiting) > 0 {
			for i := range b.mu.busy {
				b.mu.busy[i].stuck = true
			}
			b.mu.stuck = b.mu.workers
			b.startLocked()
			skipped = b.skipLocked()
		}
		b.watchLocked()
	})
}

// work frees what waits, until nothing does.
func (b *Bin[T]) work() {
	var number uint64
	freeing, ended := false, false
	defer func() {
		if ended {
			return
		}
		if freeing { // this goroutine is on its way out
			b.mu.Lock()
			passed := b.freedLocked(number)
			b.mu.Unlock()
			passAll(passed)
		}
		b.lend(b.work)
	}()
	for {
		runtime.Gosched() // a caller that waits for the turn that threw this goes first
		var passed []fence
		b.mu.Lock()
		if freeing {
			passed = b.freedLocked(number)
		}
		next, more := b.takeLocked()
		number, freeing = b.mu.taken, more && next.fence == nil
		b.mu.Unlock()
		passAll(passed)
		switch {
		case !more:
			ended = true
			return
		case next.fence != nil:
			next.fence()
		default:
			guard.Call(func() { b.free(next.thing) }, b.failed)
		}
	}
}

// takeLocked takes the next thing out, or a fence that may be passed; or has the worker
// end.
func (b *Bin[T]) takeLocked() (next thrown[T], more bool) {
	for len(b.mu.waiting) > 0 && b.mu.workers == b.mu.stuck+1 {
		next, b.mu.waiting[0] = b.mu.waiting[0], thrown[T]{}
		b.mu.waiting = b.mu.waiting[1:]
		switch {
		case next.fence == nil:
			b.mu.taken++
			b.mu.busy = append(b.mu.busy, busy{number: b.mu.taken})
			b.watchLocked()
			return next, true
		case !next.all || len(b.mu.busy) == 0:
			return next, true
		}
		b.mu.fences = append(b.mu.fences, fence{b.mu.taken, next.fence})
	}
	if len(b.mu.waiting) == 0 {
		b.mu.waiting = nil
	}
	b.mu.workers--
	return thrown[T]{}, false
}

// freedLocked notes that a thing is freed, and gives the fences that waited for it.
func (b *Bin[T]) freedLocked(number uint64) (passed []fence) {
	at := slices.IndexFunc(b.mu.busy, func(x busy) bool { return x.number == number })
	if b.mu.busy[at].stuck {
		b.mu.stuck--
	}
	b.mu.busy = slices.Delete(b.mu.busy, at, at+1)
	for len(b.mu.fences) > 0 && (len(b.mu.busy) == 0 || b.mu.busy[0].number > b.mu.fences[0].taken) {
		passed, b.mu.fences = append(passed, b.mu.fences[0]), b.mu.fences[1:]
	}
	return passed
}

func passAll(fences []fence) {
	for _, f := range fences {
		f.passed()
	}
}
