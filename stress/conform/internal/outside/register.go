package outside

import (
	"maps"
	"sync"
)

// Register keeps values by name. The zero value is empty. Safe for concurrent use.
type Register[K comparable, V any] struct {
	mu sync.Mutex
	of map[K]V
}

// Change puts to(v) in place of a name's value v, the zero value if it has none,
// and gives it.
func (r *Register[K, V]) Change(name K, to func(V) V) V {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[K]V{}
	}
	v := to(r.of[name])
	r.of[name] = v
	return v
}

// Set gives a name that value, and returns the one that it had.
func (r *Register[K, V]) Set(name K, v V) (before V) {
	r.Change(name, func(was V) V { before = was; return v })
	return before
}

// Lookup gives a name's value.
func (r *Register[K, V]) Lookup(name K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.of[name]
	return v, ok
}

// Get is Lookup with the zero value for a name that has none.
func (r *Register[K, V]) Get(name K) V {
	v, _ := r.Lookup(name)
	return v
}

// Take gives a name's value, which it has no longer.
func (r *Register[K, V]) Take(name K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.of[name]
	delete(r.of, name)
	return v, ok
}

// Empty forgets all names.
func (r *Register[K, V]) Empty() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of = nil
}

// All gives every name with its value, as a copy.
func (r *Register[K, V]) All() map[K]V {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.of)
}

// Counts counts by key. The zero value is empty. Safe for concurrent use.
type Counts struct{ Register[string, int] }

// Add counts one of a key.
func (c *Counts) Add(key string) { c.Change(key, func(n int) int { return n + 1 }) }

// Sum is how many of these keys were counted.
func (c *Counts) Sum(keys ...string) (n int) {
	for _, k := range keys {
		n += c.Get(k)
	}
	return n
}
