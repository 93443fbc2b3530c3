package encoder

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/shapegroups"
)

func sized(tokens ...int) *call {
	var texts [][]int32
	for _, n := range tokens {
		texts = append(texts, make([]int32, n))
	}
	return newCall("texts", texts, nil, nil)
}

func newQueue(workers int) *queue {
	return &queue{line: shapegroups.Queue[*call]{Ahead: ahead}, workers: workers, packs: true}
}

func tokensOf(batch []text) (n int) {
	for _, t := range batch {
		n += len(t.of.texts[t.at])
	}
	return n
}

// A batch has a worker's even share of what waits, at least and at most so many tokens.
func TestShares(t *testing.T) {
	for _, c := range []struct{ workers, texts, tokens, batch int }{
		{1, 1, 5, 5}, {1, 1, 400, 400}, {1, 100, 10, 250}, {1, 6, 10, 60}, {2, 6, 10, 30}, {2, 2, 10, 20}, {2, 2, 40, 40}, {4, 100, 8, 200}, {4, 1000, 16, 256},
	} {
		q := newQueue(c.workers)
		for range c.texts {
			q.push(sized(c.tokens))
		}
		if n := tokensOf(q.take()); n != c.batch {
			t.Errorf("%+v: a batch of %d tokens", c, n)
		}
		q = newQueue(c.workers)
		q.packs = false
		q.push(sized(c.tokens, c.tokens))
		if n := tokensOf(q.take()); n != c.tokens {
			t.Errorf("%+v: a batch of %d tokens where nothing packs", c, n)
		}
	}
}

// S8: what fits overtakes what does not, and begins a batch soon itself.
func TestServingOrder(t *testing.T) {
	q := newQueue(1)
	big := sized(200)
	q.push(sized(100))
	q.push(big)
	for range 100 {
		q.push(sized(20))
	}
	first := q.take()
	if n := tokensOf(first); n != 240 || first[0].of.tokensAt(0) != 100 {
		t.Errorf("a batch of %d tokens that begins with %d", n, first[0].of.tokensAt(0))
	}
	if second := q.take(); second[0].of != big {
		t.Error("what was overtaken does not begin the next batch")
	}
	// Of two calls the large one does not keep the other from its turns.
	q = newQueue(1)
	many, one := sized(make([]int, 1000)...), sized(1)
	for i := range many.texts {
		many.texts[i] = make([]int32, 16)
	}
	q.push(many)
	q.push(one)
	found := false
	for _, t := range q.take() {
		found = found || t.of == one
	}
	if !found {
		t.Error("a call waits for all texts of the call before it")
	}
}

func (c *call) tokensAt(i int) int { return len(c.texts[i]) }

// F8: every call that waits is ended, also the one that did not fit into the last batch.
func TestClearEndsAllThatWait(t *testing.T) {
	gone := errors.New("gone")
	q := newQueue(1)
	calls := []*call{sized(200), sized(100), sized(7, 300)}
	for _, c := range calls {
		q.push(c)
	}
	q.take()
	if q.first == nil {
		t.Fatal("all calls are in line")
	}
	q.clear(gone)
	for i, c := range calls[1:] {
		if !c.over || c.err != gone {
			t.Errorf("call %d: over: %v, %v", i+1, c.over, c.err)
		}
	}
	if q.tokens != 0 || len(q.take()) > 0 {
		t.Errorf("%d tokens wait still", q.tokens)
	}
}

// Whatever comes and leaves, each text of a call that stays is taken once, batches keep
// to their bound, and in the end nobody waits. None is overtaken without end: the oldest
// call is in one of the next batches.
func TestQueueGivesEachTextOnce(t *testing.T) {
	gone := errors.New("gone")
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(rapid.IntRange(1, 3).Draw(t, "workers"))
		q.packs = rapid.IntRange(0, 9).Draw(t, "packs") > 0
		taken := map[text]int{}
		var calls []*call
		take := func() bool {
			share := q.share()
			batch := q.take()
			for _, x := range batch {
				taken[x]++
				if x.of.over {
					t.Fatal("a text of a call that left")
				}
			}
			if n := tokensOf(batch); len(batch) > 1 && (n > share || !q.packs) {
				t.Fatalf("%d texts of %d tokens, the share is %d", len(batch), n, share)
			}
			return len(batch) > 0
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				c := sized(rapid.SliceOfN(rapid.IntRange(1, 300), 1, 8).Draw(t, "tokens")...)
				calls = append(calls, c)
				q.push(c)
			case 2:
				take()
			case 3:
				if len(calls) > 0 {
					q.leave(calls[rapid.IntRange(0, len(calls)-1).Draw(t, "who")], gone)
				}
			}
		}
		for take() {
		}
		if q.tokens != 0 || q.line.Len() != 0 || q.first != nil {
			t.Fatalf("%d tokens and %d calls wait in the end", q.tokens, q.line.Len())
		}
		for _, c := range calls {
			for at := range c.texts {
				if n := taken[text{c, at}]; n > 1 || n == 0 && !c.over {
					t.Fatalf("a text was taken %d times", n)
				}
			}
		}
	})
}
