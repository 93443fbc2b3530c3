// Package guard runs user code so that a panic or a runtime.Goexit in it harms
// nothing else (SPEC F3), and what reads a mapped file so that a page that is gone does not.
//
// The functions keep no state and are safe for concurrent use.
package guard

import (
	"runtime/debug"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
)

// Guard calls fn and then done with its error. A panic in fn becomes a
// *fault.PanicError, a runtime.Goexit becomes fault.ErrGoexit (SPEC F3). done is
// called exactly once; after a Goexit it runs while the goroutine ends. How a Goexit
// is told from a panic is an idiom of golang.org/x/sync/singleflight.
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

// Guarded runs fn and returns its error; a panic becomes a *fault.PanicError. After
// a runtime.Goexit in fn it does not return.
func Guarded(fn func() error) (err error) {
	Guard(fn, func(e error) { err = e })
	return err
}

// Call runs fn, and calls failed with the error of Guard if fn did not return. A panic
// of failed goes no further.
func Call(fn func(), failed func(error)) {
	Guard(func() error { fn(); return nil }, func(err error) {
		if err != nil {
			defer func() { _ = recover() }() // of failed, which logs by a user's handler
			failed(err)
		}
	})
}

// Reading runs read, which reads memory that is mapped from a file. Where a page of it is gone,
// because the file was cut or its disk failed, it says so, and the process goes on. Other faults,
// and panics, are as ever.
func Reading(memory []byte, read func() error) (gone bool, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		failed := recover()
		if failed == nil {
			return
		}
		from := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
		if at, ok := failed.(interface{ Addr() uintptr }); !ok || at.Addr() < from || at.Addr()-from >= uintptr(len(memory)) {
			panic(failed)
		}
		gone = true
	}()
	return false, read()
}

// Each calls fn for every item in order. If fn calls runtime.Goexit for an item, the
// later items get their call while the goroutine ends.
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
