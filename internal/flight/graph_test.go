package flight

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

type blank struct{ f *Flight[int] }

func (b blank) Ask(context.Context) (Ticket[int], error) { return Ticket[int]{Flight: b.f}, nil }
func (blank) Take(int)                                   {}
func (blank) Leave(Ticket[int])                          {}

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
		if !enter([]*node{&whole.node}, &hub.node) {
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
	if n := a.awaited.Load(); n != 0 {
		t.Errorf("the edge that closed it is still there: %d", n)
	}
	for _, n := range []*node{&a, &b, &c} {
		n.settle()
	}
	for _, n := range []*node{&a, &b, &c} {
		if n.awaited.Load() != 0 {
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
	if enter(all(&a), &b) {
		t.Fatal("a circle")
	}
	if n := b.awaited.Load(); n != 1 || a.mu.waits[&b] != 1 {
		t.Errorf("the other edge went, too: %d, awaited %d times", a.mu.waits[&b], n)
	}
	oblige(all(&a), all(&b))
	a.settle()
	b.settle()
	if a.awaited.Load() != 0 || b.awaited.Load() != 0 {
		t.Errorf("edges are left: %d and %d", a.awaited.Load(), b.awaited.Load())
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
	if n := len(whole.node.mu.waits); n != 0 {
		t.Errorf("%d edges of a creator that waits for nothing", n)
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
		if n := len(*identityOf(ctx)); n != 2 || len(f.node.mu.waits) != 2 {
			t.Fatalf("beside %d: %d nodes, %d edges", len(owned), n, len(f.node.mu.waits))
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
		if !enter([]*node{&other.node}, &f.node) {
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
