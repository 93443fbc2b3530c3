package table

// MoveBy has every table move its nodes by so many slots a call until the result is called.
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
