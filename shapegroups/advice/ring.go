package advice

import "github.com/kiln-cache/kiln/shapegroups"

// pair is a shape asked and the shape compiled for it.
type pair struct{ asked, compiled shapegroups.Shape }

// ring has the last requests: for each the number of its pair, of which there are far
// fewer than requests. So a request takes two bytes, or four where there are very many
// pairs.
type ring struct {
	low, high []uint16 // of the numbers; high is nil while low is enough
	next      int      // place of the oldest, once there is room for no more
	pairs     []numbered
	numbers   map[pair]uint32
	spare     []uint32 // numbers of no pair
}

type numbered struct {
	pair
	uses int // requests in the ring; 0: it has no number
}

func (r *ring) len() int { return len(r.low) }

// at is a request; 0 is the oldest.
func (r *ring) at(i int) *pair {
	if i += r.next; i >= len(r.low) {
		i -= len(r.low)
	}
	return &r.pairs[r.number(i)].pair
}

func (r *ring) number(place int) uint32 {
	n := uint32(r.low[place])
	if r.high != nil {
		n |= uint32(r.high[place]) << 16
	}
	return n
}

// put adds a request, in place of the oldest where there are most, which is above 0.
func (r *ring) put(p pair, most int) {
	if n := len(r.low); n < most {
		if n == cap(r.low) {
			r.low = append(make([]uint16, 0, min(most, max(2*n, 64))), r.low...)
		}
		r.low = append(r.low, 0)
		if r.high != nil {
			r.high = append(r.high, 0)
		}
		r.set(n, r.take(p))
		return
	}
	old := r.number(r.next)
	r.set(r.next, r.take(p)) // first: perhaps it is the old one
	if r.pairs[old].uses--; r.pairs[old].uses == 0 {
		delete(r.numbers, r.pairs[old].pair)
		r.pairs[old] = numbered{}
		r.spare = append(r.spare, old)
	}
	if r.next++; r.next == most {
		r.next = 0
	}
}

func (r *ring) set(place int, number uint32) {
	if number > 1<<16-1 && r.high == nil {
		r.high = make([]uint16, len(r.low), cap(r.low))
	}
	r.low[place] = uint16(number)
	if r.high != nil {
		r.high[place] = uint16(number >> 16)
	}
}

// take is the number of a pair for one request more.
func (r *ring) take(p pair) uint32 {
	n, known := r.numbers[p]
	if !known {
		if end := len(r.spare) - 1; end >= 0 {
			n, r.spare = r.spare[end], r.spare[:end]
		} else {
			n = uint32(len(r.pairs))
			r.pairs = append(r.pairs, numbered{})
		}
		if r.numbers == nil {
			r.numbers = make(map[pair]uint32)
		}
		r.numbers[p] = n
		r.pairs[n].pair = p
	}
	r.pairs[n].uses++
	return n
}
