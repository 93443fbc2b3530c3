package encoder

import (
	"slices"

	"github.com/kiln-cache/kiln/shapegroups"
)

// A batch has a worker's even share of the tokens that wait, within these bounds. Below
// the first the weights are most of what a pass reads, above the second a pass
// is no faster a token.
const (
	leastTokens = 32
	mostTokens  = 256
)

// ahead is how often a text that does not fit into what is left of a batch may be
// overtaken by one that does: N of SPEC S8.
const ahead = 8

// call is one call of Encode. What its worker writes to out is read when done is closed.
type call struct {
	texts, types [][]int32
	finish       func(rows []float32) []float32 // makes what is in out of a text's outputs
	what         string                         // the texts in errors
	out          [][]float32
	done         chan struct{}

	order []int // of the texts that wait, the longest first
	left  int   // texts that are not computed
	over  bool  // done is closed
	err   error
}

func newCall(what string, texts, types [][]int32, finish func([]float32) []float32) *call {
	c := &call{what: what, texts: texts, types: types, finish: finish, out: make([][]float32, len(texts)), done: make(chan struct{}), left: len(texts)}
	c.order = make([]int, len(texts))
	for i := range c.order {
		c.order[i] = i
	}
	slices.SortStableFunc(c.order, func(a, b int) int { return len(texts[b]) - len(texts[a]) })
	return c
}

// tokens are those of the text that is next.
func (c *call) tokens() int { return len(c.texts[c.order[0]]) }

// end closes done, once.
func (c *call) end(err error) {
	if !c.over {
		c.over, c.err = true, err
		close(c.done)
	}
}

// text is one text of a call.
type text struct {
	of *call
	at int
}

// queue decides which texts are computed next. Calls take turns text by text, in the
// order of S8, where what fits into the batch in hand is what is resident. Each turn costs
// the same however many wait.
type queue struct {
	line    shapegroups.Queue[*call] // each has a text that waits, or is over
	first   *call                    // did not fit into the last batch
	tokens  int                      // that wait
	workers int
	packs   bool                                        // else a batch is one text
	shape   func(tokens int) (shapegroups.Shape, error) // of a batch
}

func (q *queue) push(c *call) {
	for _, ids := range c.texts {
		q.tokens += len(ids)
	}
	q.line.Push(c)
}

// share is how many tokens the next batch has at most, unless it is one text.
func (q *queue) share() int { return min(max(q.tokens/q.workers, leastTokens), mostTokens) }

// take gives the texts of the next batch, none where nobody waits.
func (q *queue) take() (batch []text) {
	share, used := q.share(), 0
	for {
		c, ok := q.first, q.first != nil
		if q.first = nil; !ok {
			c, ok = q.line.Pop(func(c *call) bool { return c.over || used == 0 || used+c.tokens() <= share })
		}
		switch {
		case !ok:
			return batch
		case c.over:
			continue
		case used > 0 && used+c.tokens() > share:
			q.first = c
			return batch
		}
		n := c.tokens()
		batch = append(batch, text{c, c.order[0]})
		used, q.tokens = used+n, q.tokens-n
		if c.order = c.order[1:]; len(c.order) > 0 {
			q.line.Push(c)
		}
		if !q.packs {
			return batch
		}
	}
}

// leave ends a call: none of its texts waits any more.
func (q *queue) leave(c *call, err error) {
	if c.over {
		return
	}
	for _, at := range c.order {
		q.tokens -= len(c.texts[at])
	}
	c.end(err)
}

// clear ends every call that waits.
func (q *queue) clear(err error) {
	if q.first != nil {
		q.leave(q.first, err)
		q.first = nil
	}
	for {
		c, ok := q.line.Pop(func(*call) bool { return true })
		if !ok {
			return
		}
		q.leave(c, err)
	}
}
