// Package flight has a core that is not called state, and no goroutine of its own.
package flight

import "sync"

type Desk[K comparable] struct {
	mu     sync.Mutex
	listed map[K]bool
}

func (d *Desk[K]) Join(key K) bool { return d.listed[key] }

func (d *Desk[K]) Begin(key K) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listed[key] = true
}
