// Package priority has a queue whose first item is the one of the highest rank, for
// items whose ranks change and that leave before their turn. It is a binary heap (J. W.
// J. Williams, Algorithm 232, Communications of the ACM 7(6), 1964) that tells its items
// where they are.
package priority

// Queue is a queue of items. Each call costs the logarithm of their number. Not safe for
// concurrent use.
type Queue[T any] struct {
	before func(a, b T) bool
	place  func(T) *int
	items  []T
}

// New makes a queue. before reports whether a comes before b; place is where an item
// keeps its place in the queue, from 1 on: 0 is none.
func New[T any](before func(a, b T) bool, place func(T) *int) Queue[T] {
	return Queue[T]{before: before, place: place}
}

// Len is the number of items.
func (q *Queue[T]) Len() int { return len(q.items) }

// First is the first item, which there must be.
func (q *Queue[T]) First() T { return q.items[0] }

// Items are all items, in no order that matters, until the next change.
func (q *Queue[T]) Items() []T { return q.items }

// Push puts in an item that is not there.
func (q *Queue[T]) Push(item T) {
	q.items = append(q.items, item)
	q.up(len(q.items) - 1)
}

// Pop takes the first item out, which there must be.
func (q *Queue[T]) Pop() T {
	first := q.items[0]
	q.Remove(first)
	return first
}

// Fix finds the place of an item whose rank has changed. One that is not there stays out.
func (q *Queue[T]) Fix(item T) {
	if i := *q.place(item) - 1; i >= 0 {
		q.up(i)
		q.down(*q.place(item) - 1)
	}
}

// Remove takes an item out, if it is there.
func (q *Queue[T]) Remove(item T) {
	i, last := *q.place(item)-1, len(q.items)-1
	if i < 0 {
		return
	}
	var none T
	moved := q.items[last]
	q.items[last], q.items = none, q.items[:last]
	*q.place(item) = 0
	if i < last {
		q.set(i, moved)
		q.Fix(moved)
	}
}

func (q *Queue[T]) set(i int, item T) {
	q.items[i] = item
	*q.place(item) = i + 1
}

// up moves the item at i towards the front, as far as it comes before others.
func (q *Queue[T]) up(i int) {
	item := q.items[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !q.before(item, q.items[parent]) {
			break
		}
		q.set(i, q.items[parent])
		i = parent
	}
	q.set(i, item)
}

// down moves the item at i back, as far as others come before it.
func (q *Queue[T]) down(i int) {
	item := q.items[i]
	for next := 2*i + 1; next < len(q.items); next = 2*i + 1 {
		if next+1 < len(q.items) && q.before(q.items[next+1], q.items[next]) {
			next++
		}
		if !q.before(q.items[next], item) {
			break
		}
		q.set(i, q.items[next])
		i = next
	}
	q.set(i, item)
}
