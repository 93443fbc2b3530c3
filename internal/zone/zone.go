// Package zone knows which goroutines run code of users (Free, listeners) that the close
// of a room waits for: a close that such code calls would wait for itself.
package zone

import (
	"runtime"
	"sync"
)

// Zone is the code of users that one close waits for. The zero Zone has none, and so
// has a nil one. Safe for concurrent use. It must not be copied.
type Zone struct {
	Up *Zone // which waits for this one's code, too; nil = none
}

// code is what a goroutine runs: code of a zone, which it runs within other code, or which was
// lent by a goroutine that runs other code.
type code struct {
	zone         *Zone
	outer, lends *code
}

func (c *code) of(z *Zone) bool {
	if c == nil {
		return false
	}
	for at := c.zone; at != nil; at = at.Up {
		if at == z {
			return true
		}
	}
	return c.outer.of(z) || c.lends.of(z)
}

var running sync.Map // *code by the number of its goroutine

func on(number uint64) *code {
	c, _ := running.Load(number)
	found, _ := c.(*code)
	return found
}

// Run runs fn, which may end its goroutine, as code of the zone.
func (z *Zone) Run(fn func()) { run(z, nil, fn) }

func run(z *Zone, lends *code, fn func()) {
	number := goroutine()
	outer := on(number)
	running.Store(number, &code{z, outer, lends})
	defer func() {
		if outer != nil {
			running.Store(number, outer)
		} else {
			running.Delete(number)
		}
	}()
	fn()
}

// Carry has what lend is given run as the code, too, that the caller of the result runs, for one
// who waits for what is lent.
func Carry(lend func(func())) func(func()) {
	return func(fn func()) {
		if lends := on(goroutine()); lends != nil {
			within := fn
			fn = func() { run(nil, lends, within) }
		}
		lend(fn)
	}
}

// Lend has what lend is given run as code of the zone.
func (z *Zone) Lend(lend func(func())) func(func()) {
	return func(fn func()) { lend(func() { z.Run(fn) }) }
}

// Here reports whether the caller is code of the zone. Goroutines that such code has
// started are not known.
func (z *Zone) Here() bool { return z != nil && on(goroutine()).of(z) }

// goroutine is the number of the calling goroutine. Go gives it in a trace alone, which
// takes a microsecond: it is asked for where a goroutine is lent, not for each Free.
func goroutine() (number uint64) {
	var trace [32]byte
	const before = len("goroutine ")
	for _, digit := range trace[before:runtime.Stack(trace[:], false)] {
		if digit < '0' || digit > '9' {
			break
		}
		number = number*10 + uint64(digit-'0')
	}
	return number
}
