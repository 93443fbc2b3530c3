// Package locks has one.
package locks

import "sync"

var last struct {
	sync.Mutex
	n int
}

func Next() int {
	last.Lock()
	defer last.Unlock()
	last.n++
	return last.n
}

type Lock struct{ held bool }

// Name is internal, though a string is not.
type Name = string
