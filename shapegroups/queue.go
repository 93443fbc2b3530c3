package shapegroups

// Next says which waiting request to serve (SPEC S8). overtaken holds, oldest
// first, how often each waiting request was overtaken so far. Of the oldest and
// up to ahead more, the oldest whose group is resident goes first, unless the
// oldest of all was overtaken ahead times already. The answer is a place in
// overtaken, 0 where no group is resident, -1 where nobody waits; every request
// before it is overtaken once more by it.
func Next(overtaken []int, ahead int, resident func(place int) bool) int {
	if len(overtaken) == 0 {
		return -1
	}
	if overtaken[0] >= ahead {
		return 0
	}
	for i := range overtaken[:min(len(overtaken), ahead+1)] {
		if resident(i) {
			return i
		}
	}
	return 0
}

// Queue is a line of waiting requests served in the order of Next. The zero
// value is an empty line that nobody overtakes in; set Ahead before use. It
// belongs to one goroutine.
type Queue[T any] struct {
	Ahead     int // N of SPEC S8; 0 is the order of arrival
	waiting   []T
	overtaken []int
}

// Push appends a request.
func (q *Queue[T]) Push(request T) {
	q.waiting = append(q.waiting, request)
	q.overtaken = append(q.overtaken, 0)
}

// Len is the number of requests waiting.
func (q *Queue[T]) Len() int { return len(q.waiting) }

// Waiting are the requests waiting, oldest first; valid until the next call.
// They are what a server announces.
func (q *Queue[T]) Waiting() []T { return q.waiting }

// Pop takes the request to serve now out of the line; false if nobody waits.
func (q *Queue[T]) Pop(resident func(T) bool) (request T, ok bool) {
	at := Next(q.overtaken, q.Ahead, func(i int) bool { return resident(q.waiting[i]) })
	if at < 0 {
		return request, false
	}
	request = q.waiting[at]
	for i := range at {
		q.overtaken[i]++
	}
	// The few requests before it move up, so that a long line costs nothing.
	copy(q.waiting[1:at+1], q.waiting[:at])
	copy(q.overtaken[1:at+1], q.overtaken[:at])
	var none T
	q.waiting[0] = none // a served request must not be kept alive by the line
	q.waiting, q.overtaken = q.waiting[1:], q.overtaken[1:]
	return request, true
}
