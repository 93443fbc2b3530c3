package constants

import (
	"container/heap"

	"github.com/kiln-cache/kiln/internal/pressure"
)

// worth is a heap of the resident tensors: the cheapest to make again, by compute
// seconds per byte, is first. Each call costs O(log n).
type worth []*node

const notThere = -1 // the place of a tensor that is not in the heap

func (w *worth) push(n *node) { heap.Push(w, n) }

// pop takes the cheapest out. The heap must not be empty.
func (w *worth) pop() *node { return heap.Pop(w).(*node) }

// drop takes n out, if it is there.
func (w *worth) drop(n *node) {
	if n.Value.place != notThere {
		heap.Remove(w, n.Value.place)
	}
}

// Len, Less, Swap, Push and Pop are for package heap.
func (w worth) Len() int { return len(w) }

func (w worth) Less(i, j int) bool {
	return pressure.Cheaper(w[i].Value.item(), w[j].Value.item()) < 0
}

func (w worth) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].Value.place, w[j].Value.place = i, j
}

func (w *worth) Push(n any) {
	added := n.(*node)
	added.Value.place = len(*w)
	*w = append(*w, added)
}

func (w *worth) Pop() any {
	last := len(*w) - 1
	n := (*w)[last]
	(*w)[last], *w = nil, (*w)[:last]
	n.Value.place = notThere
	return n
}
