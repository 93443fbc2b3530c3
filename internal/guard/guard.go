// Package guard runs user code so that a panic or a runtime.Goexit in it harms
// nobody else (SPEC F3).
//
// The functions keep no state and are safe for concurrent use.
package guard

import (
	"runtime/debug"

	"github.com/kiln-cache/kiln/fault"
)

// Guard calls fn, which is user code, and turns a panic or a runtime.Goexit in
// it into an error for done (SPEC F3). done is called exactly once, also when
// the goroutine is on its way out. Source of the Goexit test: the idiom of
// golang.org/x/sync/singleflight.
func Guard(fn func() error, done func(error)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			done(&fault.PanicError{Value: v, Stack: debug.Stack()})
			return
		}
		done(fault.ErrGoexit)
	}()
	err := fn()
	returned = true
	done(err)
}

// Guarded is Guard for who goes on with the error: that of fn, or its panic. After
// a runtime.Goexit in fn it does not return.
func Guarded(fn func() error) (err error) {
	Guard(fn, func(e error) { err = e })
	return err
}

// Call is Guard for a function that returns nothing: failed is called only if fn
// did not return.
func Call(fn func(), failed func(error)) {
	Guard(func() error { fn(); return nil }, func(err error) {
		if err != nil {
			failed(err)
		}
	})
}

// Each calls fn for every item in order, also for those behind one whose fn has
// called runtime.Goexit: then on the way out of the goroutine.
func Each[T any](items []T, fn func(T)) {
	next := 0
	defer func() {
		if next < len(items) {
			Each(items[next:], fn)
		}
	}()
	for next < len(items) {
		item := items[next]
		next++
		fn(item)
	}
}
