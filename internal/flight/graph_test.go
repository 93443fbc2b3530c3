package flight

import (
	"context"
	"testing"
	"time"
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
	path := a.pathTo(&c)
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
