package flight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/fault"
)

type blank struct{ f *Flight[int] }

func (b blank) Ask(context.Context) (Ticket[int], error) { return Ticket[int]{Flight: b.f}, nil }
func (blank) Take(int)                                   {}
func (blank) Leave(Ticket[int])                          {}

// edgesIn is how many edges lead to n.
func (n *node) edgesIn() (sum int) {
	for _, times := range n.in.from.all() {
		sum += times
	}
	return sum
}

// Edges are those that were added and not taken away, however often they lead to a node.
func TestEdges(t *testing.T) {
	nodes := make([]node, 4)
	rapid.Check(t, func(t *rapid.T) {
		var e edges
		want := map[*node]int{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			n := &nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "node")]
			times := rapid.IntRange(-want[n], 3).Draw(t, "times")
			if times == 0 {
				continue
			}
			e.add(n, times)
			if want[n] += times; want[n] == 0 {
				delete(want, n)
			}
			if got := maps.Collect(e.all()); !maps.Equal(got, want) || e.len() != len(want) {
				t.Fatalf("%v, %d of them, want %v", got, e.len(), want)
			}
			for i := range nodes {
				if n := &nodes[i]; e.to(n) != want[n] {
					t.Fatalf("%d to %d, want %d", e.to(n), i, want[n])
				}
			}
		}
	})
	if n := testing.AllocsPerRun(10, func() { var e edges; e.add(&nodes[0], 1); e.add(&nodes[0], -1) }); n != 0 {
		t.Errorf("%v allocations for one node", n)
	}
}

// F6: while somebody searches for circles, flights that have nothing to do with
// those wait for nothing, and a creator that nobody waits for does not search.
func TestSearchHoldsNobodyUp(t *testing.T) {
	ctx := context.Background()
	hub := New[int](ctx, "room", "hub")
	breaking.Lock() // somebody breaks a circle with the hub in it
	hub.node.mu.Lock()
	defer breaking.Unlock()
	defer hub.node.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		whole, part := New[int](ctx, "room", "whole"), New[int](ctx, "room", "part")
		part.Board()
		go part.Finish(1, nil, nil)
		if _, err := Ride[int](whole.Context(), blank{part}); err != nil {
			t.Error(err)
		}
		made := New[int](whole.Context(), "room", "made")
		made.Start()
		made.Finish(1, nil, nil)
		whole.Finish(1, nil, nil)
		if enter([]*node{&whole.node}, &hub.node) != nil {
			t.Error("a circle")
		}
		exit([]*node{&whole.node}, &hub.node)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("held up")
	}
}

// A path that was read while its edges came and went is no circle, and the waiting
// of one whose own flight has ended closes none.
func TestStalePath(t *testing.T) {
	var a, b, c node
	all := func(n *node) []*node { return []*node{n} }
	oblige(all(&a), all(&b))
	oblige(all(&b), all(&c))
	oblige(all(&c), all(&a))
	path := a.pathTo(func(n *node) bool { return n == &c })
	if len(path) != 3 || path[0] != &a || path[2] != &c {
		t.Fatalf("path of %d nodes", len(path))
	}
	exit(all(&a), &b)
	if closed, again := circular(path); closed || !again {
		t.Errorf("an edge has gone: closed %v, again %v", closed, again)
	}
	oblige(all(&a), all(&b))
	c.settle()
	if closed, again := circular(path); closed || again {
		t.Errorf("the end has ended: closed %v, again %v", closed, again)
	}
	oblige(all(&c), all(&a))
	if closed, _ := circular(path); !closed {
		t.Error("a circle")
	}
	if n := a.edgesIn(); n != 0 {
		t.Errorf("the edge that closed it is still there: %d", n)
	}
	for _, n := range []*node{&a, &b, &c} {
		n.settle()
	}
	for _, n := range []*node{&a, &b, &c} {
		if n.edgesIn() != 0 {
			t.Error("edges are left")
		}
	}
}

// F5: every edge that came goes once, however often a flight waits for another; and
// a creator keeps nothing of the flights that it has waited for.
func TestEdgesGoOnce(t *testing.T) {
	all := func(n *node) []*node { return []*node{n} }
	var a, b node
	oblige(all(&b), all(&a))
	oblige(all(&a), all(&b)) // by Start, which looks for no circle
	if enter(all(&a), &b) == nil {
		t.Fatal("a circle")
	}
	if n := b.edgesIn(); n != 1 || a.mu.waits.to(&b) != 1 {
		t.Errorf("the other edge went, too: %d, awaited %d times", a.mu.waits.to(&b), n)
	}
	oblige(all(&a), all(&b))
	a.settle()
	b.settle()
	if a.edgesIn() != 0 || b.edgesIn() != 0 {
		t.Errorf("edges are left: %d and %d", a.edgesIn(), b.edgesIn())
	}

	whole := New[int](context.Background(), "room", "whole")
	part := func() *Flight[int] {
		f := New[int](whole.Context(), "room", "part")
		f.Start()
		return f
	}
	ended, left := part(), part()
	ended.Finish(1, nil, nil)
	if _, err := Ride[int](whole.Context(), blank{ended}); err != nil {
		t.Error(err)
	}
	left.GetOff() // its caller does not come to ride
	if n := whole.node.mu.waits.len(); n != 0 {
		t.Errorf("%d edges of a creator that waits for nothing", n)
	}
}

// F5, F6: a flight that is ended in a turn while its creator runs, and waits for many others, is
// not held up by these. It closes no circle any more, and leaves nothing when it has returned.
func TestEndWalksNoEdges(t *testing.T) {
	const many = 10_000
	all := func(n *node) []*node { return []*node{n} }
	f := New[int](context.Background(), "room", "creator")
	others := make([]node, many)
	for i := range others {
		oblige(all(&f.node), all(&others[i]))
	}
	var above node
	oblige(all(&above), all(&f.node)) // has not left yet
	for i := range others {
		others[i].in.Lock() // somebody searches
	}
	done := make(chan struct{})
	go func() { f.Finish(0, fault.ErrClosed, nil); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("held up")
	}
	for i := range others {
		others[i].in.Unlock()
	}
	if enter(all(&others[7]), &above) != nil {
		t.Error("a circle through what has ended")
	}
	f.Settle()
	for i := range others {
		if n := others[i].edgesIn(); n != 0 {
			t.Fatalf("%d edges are left", n)
		}
	}
}

// F5: a creator whose flight was ended from outside runs still, and may hold a claim. A circle
// through it is told, however many edges it had when its flight ended.
func TestCircleThroughTheCreatorOfAnEndedFlight(t *testing.T) {
	for _, many := range []int{mostSettled, mostSettled + 1} {
		ctx := context.Background()
		a, b, c := New[int](ctx, "room", "a"), New[int](ctx, "room", "b"), New[int](ctx, "room", "c")
		others := make([]node, many)
		for i := range others {
			oblige(a.life.id.nodes, []*node{&others[i]})
		}
		a.Finish(0, fault.ErrClosed, nil)
		for i := range others {
			exit(a.life.id.nodes, &others[i])
		}
		for _, f := range []*Flight[int]{b, c} { // both wait for a's claim, so that the search begins behind b
			over, ok := CreatorOf(a.Context()).Await(AskerOf(f.Context()))
			if !ok {
				t.Fatal("a circle too early")
			}
			defer over()
		}
		if enter(a.life.id.nodes, &b.node) == nil {
			t.Errorf("after %d edges the circle is not told", many)
		}
		d := New[int](ctx, "room", "d")
		if enter(a.life.id.nodes, &d.node) != nil {
			t.Fatal("a circle too early")
		}
		if enter(d.life.id.nodes, &b.node) == nil { // from d back to a there is one edge: the search begins there
			t.Errorf("after %d edges the circle through another is not told", many)
		}
		a.Settle()
		for i := range others {
			if n := others[i].edgesIn(); n != 0 {
				t.Fatalf("%d edges are left", n)
			}
		}
	}
}

// F5, T6: code may own any number of flights, each begun under the context of the one
// before. One more costs two edges, and Within walks each creator once: every path
// through the owned ones would be 2^100.
func TestOwnedUnderOwned(t *testing.T) {
	creator := New[int](context.Background(), "room", "creator")
	ctx := creator.Context()
	var owned []*Flight[int]
	for range 100 {
		f := New[int](ctx, "constants", "owned")
		ctx = context.WithoutCancel(f.Own(ctx)) // as constants do: the creator ends before
		owned = append(owned, f)
		if n := len(identityOf(ctx).nodes); n != 2 || f.node.mu.waits.len() != 2 {
			t.Fatalf("beside %d: %d nodes, %d edges", len(owned), n, f.node.mu.waits.len())
		}
	}
	if !Within(ctx, "room", "creator") || Within(ctx, "room", "other") {
		t.Error("within what?")
	}
	owned[0].Finish(1, nil, nil)
	creator.Finish(1, nil, nil)
	for i, f := range owned[1:] { // they stand for each other still
		other := New[int](context.Background(), "room", "other")
		f.Board()
		if enter([]*node{&other.node}, &f.node) != nil {
			t.Fatalf("%d: a circle too early", i)
		}
		other.Board()
		if _, err := Ride[int](ctx, blank{other}); !errors.Is(err, fault.ErrCycle) {
			t.Fatalf("%d: %v, want a circle", i, err)
		}
		exit([]*node{&other.node}, &f.node)
		f.GetOff()
		f.Finish(1, nil, nil)
		other.Finish(1, nil, nil)
	}
}

// F5, T3: a wait that is refused for what its code owns leaves nothing of what its creator
// would have waited for, too.
func TestRefusedWaitLeavesNoEdges(t *testing.T) {
	creator, other := New[int](context.Background(), "room", "creator"), New[int](context.Background(), "room", "other")
	owned := New[int](creator.Context(), "constants", "owned")
	id := identityOf(owned.Own(creator.Context()))
	if len(id.nodes) != 2 || enter([]*node{&other.node}, &owned.node) != nil {
		t.Fatal("a circle too early")
	}
	if enter(id.nodes, &other.node) == nil {
		t.Error("the circle through what the code owns is not found")
	}
	if n := other.node.edgesIn(); n != 0 {
		t.Errorf("%d edges of the wait that was refused are left", n)
	}
	exit([]*node{&other.node}, &owned.node)
	for _, f := range []*Flight[int]{owned, other, creator} {
		f.Finish(0, nil, nil)
	}
}

// F5, T6: a flight that follows another is awaited by nobody on behalf of the one before.
func TestFollowLetsGoOfTheLast(t *testing.T) {
	var line, last, next Flight[int]
	for _, f := range []*Flight[int]{&line, &last, &next} {
		f.Begin(context.Background(), "room", "a flight")
	}
	line.Follow(&last, nil)
	line.Follow(&next, &last)
	if last.node.edgesIn() != 0 || next.node.edgesIn() != 1 {
		t.Errorf("%d edges to the last, %d to the next; want 0 and 1", last.node.edgesIn(), next.node.edgesIn())
	}
	for _, f := range []*Flight[int]{&line, &last, &next} {
		f.Finish(0, nil, nil)
	}
}

// F8: code knows all rooms in whose flights it runs, however many lie in between.
func TestInsideOfManyRooms(t *testing.T) {
	ctx, rooms := context.Background(), []string{"a", "b", "c", "b", "d"}
	for i, room := range rooms {
		ctx = New[int](ctx, room, strconv.Itoa(i)).Context()
	}
	for _, room := range rooms {
		if !Inside(ctx, room) {
			t.Errorf("not inside of %s", room)
		}
	}
	if Inside(ctx, "e") {
		t.Error("inside of a room that has no flight here")
	}
}

// F5, F6: a search for a circle costs as much as the shorter side has, however long a chain of
// flights is at the other; and it finds the circle.
func TestSearchOfLongChains(t *testing.T) {
	all := func(n *node) []*node { return []*node{n} }
	for _, length := range []int{100, 100_000} {
		chain := make([]node, length)
		for i := range chain[1:] {
			oblige(all(&chain[i]), all(&chain[i+1]))
		}
		var above, creator, below node
		oblige(all(&above), all(&creator))
		oblige(all(&creator), all(&below))
		for what, ends := range map[string][2]*node{
			"an awaited creator joins the head": {&chain[0], &creator},
			"the tail joins what waits":         {&creator, &chain[length-1]},
		} {
			if path, looked := between(ends[0], ends[1]); path != nil || looked > 4 {
				t.Errorf("%s of %d: looked at %d edges, path of %d", what, length, looked, len(path))
			}
		}
		if enter(all(&creator), &chain[0]) != nil {
			t.Fatal("a circle too early")
		}
		if enter(all(&chain[length-1]), &above) == nil {
			t.Errorf("%d: a circle of the whole chain is not found", length)
		}
		if path, _ := between(&above, &chain[length-1]); len(path) != length+2 {
			t.Errorf("a path of %d, want %d", len(path), length+2)
		}
	}
}

// F5, F6: where a creator at the end of a long chain joins the head of another, the search costs
// as much as the shorter has. It is its own: wherever it is, flights of both chains begin
// and end, and others search.
func TestJoinOfLongChainsHoldsNobodyUp(t *testing.T) {
	const length = 10_000
	ctx := context.Background()
	chains := make([][]*Flight[int], 3)
	for c := range chains {
		for i := range length + c {
			f := New[int](ctx, "room", strconv.Itoa(i))
			if chains[c] = append(chains[c], f); i > 0 {
				oblige([]*node{&chains[c][i-1].node}, []*node{&f.node})
			}
		}
	}
	join := func(to int) bool { return enter([]*node{&chains[0][length-1].node}, &chains[to][0].node) == nil }
	if _, looked := between(&chains[1][0].node, &chains[0][length-1].node); looked > 2*length {
		t.Errorf("looked at %d edges, want at most %d", looked, 2*length)
	}
	at := &chains[1][length/2].node
	at.mu.Lock() // there it stops
	searched, done := make(chan bool, 1), make(chan struct{})
	go func() { searched <- join(1) }()
	for !chains[0][length-1].node.waitsFor(&chains[1][0].node) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond) // it has begun to search, in all likelihood
	go func() {
		defer close(done)
		// None of them takes the chain away that leads to where it stops.
		for _, f := range []*Flight[int]{chains[0][1], chains[0][length/4], chains[1][3*length/4], chains[1][length-2]} {
			made := New[int](f.Context(), "room", "made")
			made.Start()
			made.Finish(1, nil, nil)
			f.Finish(1, nil, nil)
		}
		if enter([]*node{&chains[2][length/2].node}, &chains[2][length/2+10].node) != nil {
			t.Error("a circle")
		}
	}()
	select {
	case <-done:
	case <-searched:
		t.Error("it searches beside the chain")
	case <-time.After(5 * time.Second):
		t.Error("held up")
	}
	at.mu.Unlock()
	if !<-searched {
		t.Error("a circle")
	}
}

// F5, F6: a flight deep within others knows in a few steps what is around it; what has ended
// is not, and nothing of it is kept while the rest goes on.
func TestDeepWithin(t *testing.T) {
	const depth = 100_000
	root := New[int](context.Background(), "room", "root")
	at, all := root, []*Flight[int]{root}
	for i := range depth {
		at = New[int](at.Context(), "room", strconv.Itoa(i))
		all = append(all, at)
	}
	beside := New[int](all[depth/2].Context(), "other", "beside")
	under := New[int](beside.Context(), "other", "under")
	ctx, steps := at.Context(), 0
	for n := &at.node; n.depth > 1; steps++ {
		if n.jump.depth >= 1 {
			n = n.jump
		} else {
			n = n.up
		}
	}
	if steps > 40 { // twice the logarithm
		t.Errorf("%d steps for %d", steps, depth)
	}
	for i := 0; i < depth; i += 997 {
		key := strconv.Itoa(i)
		if !Within(ctx, "room", key) || Within(ctx, "other", key) || Within(beside.Context(), "room", key) != (i < depth/2) {
			t.Fatalf("within %d?", i)
		}
	}
	if Within(ctx, "other", "beside") || !Within(beside.Context(), "other", "beside") || !Within(ctx, "room", "root") {
		t.Error("beside is around nobody but itself")
	}
	if Inside(ctx, "other") || !Inside(ctx, "room") || !Inside(beside.Context(), "room") || !Inside(beside.Context(), "other") || Inside(context.Background(), "room") {
		t.Error("inside what?")
	}
	for _, f := range append(all[:depth:depth], beside, under) {
		f.Finish(1, nil, nil)
	}
	if Within(ctx, "room", "root") || Within(ctx, "room", "7") {
		t.Error("within what has ended")
	}
	New[int](all[3].Context(), "room", "late")
	if n := len(root.node.tree.running); n != 0 {
		t.Errorf("%d flights that have ended are kept", n)
	}
	at.Finish(1, nil, nil)
}

// BenchmarkSearch is F5's: what it costs an awaited creator to join a flight with a chain, and
// one deep within others to ask what it is within.
func BenchmarkSearch(b *testing.B) {
	all := func(n *node) []*node { return []*node{n} }
	for n := 100; n <= 100_000; n *= 10 {
		chain := make([]node, n)
		for i := range chain[1:] {
			oblige(all(&chain[i]), all(&chain[i+1]))
		}
		var above, creator node
		oblige(all(&above), all(&creator))
		b.Run(fmt.Sprint("chain/", n), func(b *testing.B) {
			for b.Loop() {
				enter(all(&creator), &chain[0])
				exit(all(&creator), &chain[0])
			}
		})
		deep := New[int](context.Background(), "room", "root")
		for i := range n {
			deep = New[int](deep.Context(), "room", strconv.Itoa(i))
		}
		ctx := deep.Context()
		b.Run(fmt.Sprint("within/", n), func(b *testing.B) {
			for b.Loop() {
				if !Within(ctx, "room", "root") || Within(ctx, "room", "none") {
					b.Fatal("within what?")
				}
			}
		})
	}
}
