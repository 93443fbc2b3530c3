package lease

import (
	"runtime"
	"sync"

	"github.com/kiln-cache/kiln/internal/guard"
)

// Bin frees what is thrown into it, in that order, on one goroutine that it
// borrows while there is something to free. What frees is user code: a panic in it
// is told and hurts nobody, and after a runtime.Goexit the rest is freed on another
// goroutine. Throwing waits for nothing, so it is right in a turn, under a lock,
// and in what frees. Safe for concurrent use.
type Bin[T any] struct {
	lend   func(func())
	free   func(T)
	failed func(error)

	mu struct {
		sync.Mutex
		waiting []thrown[T]
		working bool
	}
}

// thrown is a thing to free, or a fence.
type thrown[T any] struct {
	thing T
	fence func()
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

// Fence has passed called when everything thrown before is freed. It must not be
// waited for in what frees.
func (b *Bin[T]) Fence(passed func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.waiting = append(b.mu.waiting, thrown[T]{fence: passed})
	b.startLocked()
}

func (b *Bin[T]) startLocked() {
	if !b.mu.working {
		b.mu.working = true
		b.lend(b.work)
	}
}

// work frees what waits, until nothing does.
func (b *Bin[T]) work() {
	idle := false
	defer func() {
		if !idle { // this goroutine is on its way out
			b.lend(b.work)
		}
	}()
	for {
		runtime.Gosched() // a caller that waits for the turn that threw this goes first
		b.mu.Lock()
		if len(b.mu.waiting) == 0 {
			b.mu.waiting, b.mu.working = nil, false
			idle = true
			b.mu.Unlock()
			return
		}
		next := b.mu.waiting[0]
		b.mu.waiting[0] = thrown[T]{}
		b.mu.waiting = b.mu.waiting[1:]
		b.mu.Unlock()
		if next.fence != nil {
			next.fence()
			continue
		}
		guard.Call(func() { b.free(next.thing) }, b.failed)
	}
}
