// Package zone knows which goroutines run code of users (creators, Free, listeners) that the
// close of a room waits for: a close that such code calls would wait for itself.
package zone

import "sync"

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

// running is the code of the goroutines that run any, in parts, since each creator is noted.
var running [1 << partBits]part

const partBits = 6

type part struct {
	sync.Mutex
	code map[uint64]*code // by goroutine
	_    [48]byte
}

// place is where the code of a goroutine is noted.
func place(goroutine uint64) *part {
	const golden = 0x9e3779b97f4a7c15 // spreads what is alike, by Knuth's multiplication
	return &running[goroutine*golden>>(64-partBits)]
}

// swap notes what a goroutine runs from here on, nil for none, and gives what it ran.
func swap(goroutine uint64, now *code) (before *code) {
	p := place(goroutine)
	p.Lock()
	defer p.Unlock()
	before = p.code[goroutine]
	switch {
	case now == nil:
		delete(p.code, goroutine)
	case p.code == nil:
		p.code = map[uint64]*code{goroutine: now}
	default:
		p.code[goroutine] = now
	}
	return before
}

// here is what the calling goroutine runs.
func here() *code {
	caller := goroutine()
	p := place(caller)
	p.Lock()
	defer p.Unlock()
	return p.code[caller]
}

// Run runs fn, which may end its goroutine, as code of the zone.
func (z *Zone) Run(fn func()) { run(&code{zone: z}, fn) }

func run(c *code, fn func()) {
	caller := goroutine()
	c.outer = swap(caller, c)
	defer func() { swap(caller, c.outer) }()
	fn()
}

// Carry has what lend is given run as the code, too, that the caller of the result runs, for one
// who waits for what is lent.
func Carry(lend func(func())) func(func()) {
	return func(fn func()) {
		if lends := here(); lends != nil {
			within := fn
			fn = func() { run(&code{lends: lends}, within) }
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
func (z *Zone) Here() bool { return z != nil && here().of(z) }
