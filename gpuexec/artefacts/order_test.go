package artefacts

import (
	"context"
	"strconv"
	"testing"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/touched"
)

// sorted fills the order of what has no tenant with n entries, of the uses 2, 4, 6 ...
func sorted(n int) core {
	c := newCore(1<<30, 1<<30)
	for i := range n {
		e := c.table.NewNode(strconv.Itoa(i), 0)
		e.Value.used = uint64(2 * (i + 1))
		c.enter(e, nil)
	}
	c.clock = uint64(2 * n)
	return c
}

// F6, C2: an entry that goes over to an order finds its place there in turns, however far it
// is from the end, and the next one close to it at once.
func TestMovesInShortTurns(t *testing.T) {
	const many = 4 * touched.Most
	c := sorted(many)
	owner := new(tenant)
	for i, used := range []uint64{101, 103, many + 1, 2*many + 3} {
		n := c.table.NewNode("moves "+strconv.Itoa(i), 0)
		n.Value.used = used
		c.enter(n, owner)
	}
	var turns []int
	for owner.oldest != nil {
		n := 0
		c.to(func() bool { n++; return c.move(owner.oldest, nil, c.touched.Left) })
		turns = append(turns, n)
	}
	if turns[0] != 1 || turns[1] != 1 || turns[2] < 4 || turns[3] != 1 {
		t.Errorf("%v turns for four moves: want 4 for the way to the middle, and 1 at the ends or close by", turns)
	}
	if most := c.touched.Most(); most > touched.Most {
		t.Errorf("a turn touched %d", most)
	}
	count := 0
	for n := c.order.oldest; n != nil; n = n.Value.newer {
		if count++; n.Value.newer != nil && n.Value.newer.Value.used <= n.Value.used {
			t.Fatalf("%d before %d", n.Value.used, n.Value.newer.Value.used)
		}
	}
	if count != many+4 {
		t.Errorf("%d in the order, want %d", count, many+4)
	}
}

// F6, D3: a part whose whole does not fit is at its place again at once, wherever that is.
func TestPartComesBackAtOnce(t *testing.T) {
	for _, at := range []uint64{2, 500, 10_000} {
		c := sorted(10_000)
		for n := c.order.oldest; n != nil; n = n.Value.newer {
			if n.Value.used == at {
				n.Value.resident.Store(true)
				c.table.Put(n)
				k := &call{Request: Request{Key: "whole", Part: n.Key}}
				k.placed = k.placedBy(c.table)
				part, of, _ := c.takePart(k)
				if part != n {
					t.Fatal("another part")
				}
				steps := 0
				c.order.approach(at, func() bool { steps++; return true })
				if c.enter(part, of); steps > 2 || n.Value.newer != nil && n.Value.newer.Value.used != at+2 || n.Value.older != nil && n.Value.older.Value.used != at-2 {
					t.Errorf("of use %d: %d steps", at, steps)
				}
				break
			}
		}
	}
}

// probe is what a test has the actor do in a turn.
type probe func(*shell)

func (p probe) handle(s *shell) { p(s) }

// F6, P18: however many callers of Settle a write held up, a turn tells a bounded number.
func TestWakesInShortTurns(t *testing.T) {
	const callers = 2*touched.Most + 500
	c, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	asked := make([]chan struct{}, callers)
	first := &saving{number: 1}
	run := func(p probe) {
		done := make(chan struct{})
		c.ref.Tell(probe(func(s *shell) { p(s); close(done) }))
		<-done
	}
	run(func(s *shell) {
		s.began = 1
		first.at = s.saves.PushBack(first)
		s.jobs++
	})
	for i := range asked {
		over, err := actors.Ask(context.Background(), c.ref, func(r actors.Reply[chan struct{}]) message { return &settle{reply: r} })
		if err != nil {
			t.Fatal(err)
		}
		asked[i] = over
		run(func(s *shell) { // a write that ends at once, so that the next caller waits for more
			s.began++
			w := &saving{number: s.began}
			w.at = s.saves.PushBack(w)
			s.jobs++
			saved{w}.handle(s)
			if i > 0 && asked[i] == asked[i-1] {
				t.Error("two callers that wait for other writes share a channel")
			}
		})
	}
	select {
	case <-asked[0]:
		t.Error("the first write has not ended")
	default:
	}
	c.ref.Tell(saved{first})
	for _, over := range asked {
		<-over
	}
	if n := c.Stats().Touched; n < touched.Most/2 || n > touched.Most {
		t.Errorf("a turn told %d callers, want %d to %d", n, touched.Most/2, touched.Most)
	}
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
