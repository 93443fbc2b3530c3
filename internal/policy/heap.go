package policy

// The heaps that a group may be in, at most one of each kind.
const (
	byResidence = iota // its class's, while resident; else the policy's memory
	byShadow           // duel's shadow directory by use counts
	heapKinds
)

// rank orders groups by decayed use count; equal counts by last request, and
// no two groups were last asked for at one time.
type rank struct {
	count
	last uint64
}

func (g *Group) rank() rank { return rank{g.count, g.last} }

func (r rank) below(s rank) bool {
	return r.count.below(s.count) || r.last < s.last && !s.count.below(r.count)
}

type ranked struct {
	rank
	group *Group
}

// heap gives the group of lowest rank. It is lazy: a request raises a group's
// rank and leaves the heap alone, so that using a group costs nothing here.
//
// INVARIANT: a rank in items is never above the group's own, because ranks only
// rise; so the lowest item whose rank is up to date is the lowest of all.
type heap struct {
	kind  int
	items []ranked
}

func (h *heap) len() int { return len(h.items) }

func (h *heap) push(g *Group) {
	h.items = append(h.items, ranked{g.rank(), g})
	h.up(len(h.items) - 1)
}

// renew puts g, if it is there, where its rank belongs now: lowest has less to do then.
func (h *heap) renew(g *Group) {
	if i := g.slots[h.kind] - 1; i >= 0 {
		h.items[i].rank = g.rank()
		h.down(i)
	}
}

func (h *heap) has(g *Group) bool { return g.slots[h.kind] != 0 }

func (h *heap) remove(g *Group) {
	i := g.slots[h.kind] - 1
	end := len(h.items) - 1
	moved := h.items[end]
	h.items[end] = ranked{}
	h.items = h.items[:end]
	g.slots[h.kind] = 0
	if i < end {
		h.items[i] = moved
		moved.group.slots[h.kind] = i + 1
		h.up(i)
		h.down(moved.group.slots[h.kind] - 1)
	}
}

// lowest is the group of lowest rank, nil if there is none.
func (h *heap) lowest() *Group {
	if len(h.items) == 0 {
		return nil
	}
	for {
		top := &h.items[0]
		if now := top.group.rank(); top.rank != now {
			top.rank = now
			h.down(0)
			continue
		}
		return top.group
	}
}

func (h *heap) up(i int) {
	item := h.items[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !item.below(h.items[parent].rank) {
			break
		}
		h.set(i, h.items[parent])
		i = parent
	}
	h.set(i, item)
}

func (h *heap) down(i int) {
	item := h.items[i]
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			break
		}
		if child+1 < len(h.items) && h.items[child+1].below(h.items[child].rank) {
			child++
		}
		if !h.items[child].below(item.rank) {
			break
		}
		h.set(i, h.items[child])
		i = child
	}
	h.set(i, item)
}

func (h *heap) set(i int, item ranked) {
	h.items[i] = item
	item.group.slots[h.kind] = i + 1
}
