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
