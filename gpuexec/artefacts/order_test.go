package artefacts

import (
	"context"
	"strconv"
	"testing"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/touched"
)

// sorted fills the order of what has no tenant with n entries, of each so many uses.
func sorted(n int, every uint64) core {
	c := newCore(1<<30, 1<<30)
	for i := range n {
		e := c.table.NewNode(strconv.Itoa(i), 0)
		e.Value.used = uint64(i+1) * every
		c.enter(e, nil)
	}
	c.clock = uint64(n) * every
	return c
}

// F6, C2: what goes over to another order costs the logarithm of what that has, wherever its
// place is there, and however many come one after the other.
func TestMovesToAnyPlace(t *testing.T) {
	for _, many := range []int{100, 10_000, 100_000} {
		c := moves(t, many, 2)
		count := 0
		for n := c.order.oldest; n != nil; n = n.Value.newer {
			if count++; n.Value.newer != nil && n.Value.newer.Value.used < n.Value.used {
				t.Fatalf("%d before %d", n.Value.used, n.Value.newer.Value.used)
			}
		}
		if count != many+manyMoves {
			t.Errorf("%d in the order, want %d", count, many+manyMoves)
		}
	}
}

// F6, C2: nor does it cost more where misses came in a rhythm, such as one each Fibonacci
// number of uses.
func TestMovesAfterMissesInARhythm(t *testing.T) {
	for _, every := range []uint64{1, 100, 987, 4181, 6765, 1 << 16} {
		moves(t, 100_000, every)
	}
}

const manyMoves = 1000

// moves puts entries here and there among many, and sees how many each passes.
func moves(t *testing.T, many int, every uint64) core {
	t.Helper()
	c := sorted(many, every)
	most, all := 0, 0
	for i := range manyMoves {
		n := c.table.NewNode("moves "+strconv.Itoa(i), 0)
		n.Value.used = uint64(i*7919%many)*every + 1
		passed := c.order.insert(n)
		most, all = max(most, passed), all+passed
	}
	t.Logf("%d entries, one each %d uses: a move passes %d on average and %d at most", many, every, all/manyMoves, most)
	if all > 80*manyMoves || most > 400 {
		t.Errorf("%d entries, one each %d uses: a move passes %d on average and %d at most", many, every, all/manyMoves, most)
	}
	return c
}

// F6, Q1: the floors that many tenants give back cost each of them as much as beside a few.
func TestFloorsGivenBackBesideMany(t *testing.T) {
	const each = 10
	most := func(many int) int64 {
		f := newFloors(1<<30, 1<<40)
		for i := range many {
			if err := f.floors.add("t"+strconv.Itoa(i), 1000, func() { f.state.addFloor("t"+strconv.Itoa(i), 1000) }); err != nil {
				t.Fatal(err)
			}
		}
		for k := range each {
			for i := range many {
				f.ask("t"+strconv.Itoa(i), strconv.Itoa(k)+" of "+strconv.Itoa(i), 1)
			}
		}
		f.touched = touched.Gauge{}
		for i := range many {
			f.state.addFloor("t"+strconv.Itoa(i), -1000)
			if over := f.forget(f.leave("t" + strconv.Itoa(i))); !over {
				t.Fatalf("of %d, %d takes more than a turn", many, i)
			}
			f.touched.Turn()
		}
		return f.touched.Most()
	}
	few, many := most(100), most(10_000)
	t.Logf("at most %d things a tenant beside 100, %d beside 10,000", few, many)
	if many > 3*few {
		t.Errorf("a tenant touches up to %d things beside 100, %d beside 10,000", few, many)
	}
}

// F6, D3: a part whose whole does not fit is at its place again soon, wherever that is.
func TestPartComesBackSoon(t *testing.T) {
	for _, at := range []uint64{2, 500, 10_000} {
		c := sorted(10_000, 2)
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
				c.touched = touched.Gauge{}
				c.enter(part, of)
				if c.touched.Turn(); c.touched.Most() > 400 || n.Value.newer != nil && n.Value.newer.Value.used != at+2 || n.Value.older != nil && n.Value.older.Value.used != at-2 {
					t.Errorf("of use %d: %d steps", at, c.touched.Most())
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

// F6: a floor is given back in short turns, where a miss came each 4,181 uses.
func TestFloorGivenBackAfterMissesInARhythm(t *testing.T) {
	const every = 4181
	f := newFloors(1<<30, 1<<40)
	f.state.addFloor("tenant", 100)
	for i := range 30_000 {
		owner := "other"
		if i%100 == 50 {
			owner = "tenant"
		}
		f.ask(owner, strconv.Itoa(i), 1)
		f.clock += every - 1 // hits of anything
	}
	f.touched = touched.Gauge{}
	f.state.addFloor("tenant", -100)
	l := f.leave("tenant")
	for over := false; !over; f.touched.Turn() {
		over = f.forget(l)
	}
	if most := f.touched.Most(); most > touched.Most {
		t.Errorf("a turn touches %d things, and may %d", most, touched.Most)
	}
}
