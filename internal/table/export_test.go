package table

// MoveBy has every table move its nodes by this number of slots a call, for each that a node has,
// until the result is called.
func MoveBy(slots int) (back func()) {
	once, by := atOnce, step
	atOnce, step = 0, slots
	return func() { atOnce, step = once, by }
}

// Moving is how many slots are still to be moved.
func (t *Table[V]) Moving() int {
	s := t.slots.Load()
	if s.from == nil {
		return 0
	}
	return len(s.from.at) - t.moved
}

// Slots is how many there are for new nodes.
func (t *Table[V]) Slots() int { return len(t.slots.Load().at) }
