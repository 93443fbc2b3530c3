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

	running sync.Map // the numbers of the goroutines
}

// Run runs fn, which may end its goroutine, as code of the zone.
func (z *Zone) Run(fn func()) {
	number := goroutine()
	for ; z != nil; z = z.Up {
		if _, again := z.running.LoadOrStore(number, nil); !again {
			defer z.running.Delete(number)
		}
	}
	fn()
}

// Lend has what lend is given run as code of the zone.
func (z *Zone) Lend(lend func(func())) func(func()) {
	return func(fn func()) { lend(func() { z.Run(fn) }) }
}

// Here reports whether the caller is code of the zone. Goroutines that such code has
// started are not known.
func (z *Zone) Here() bool {
	if z == nil {
		return false
	}
	_, here := z.running.Load(goroutine())
	return here
}

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
