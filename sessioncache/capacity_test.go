package sessioncache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/sessioncache"
)

func TestBytes(t *testing.T) { // S3, G2
	c := fifo(10)
	c.Bytes = sessioncache.LimitOf(1000)
	p := open(t, c)
	for i := 1; i <= 3; i++ {
		if err := p.sized(i, "n", "v", 300); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, "too large", p.sized(4, "n", "big", 1001), fault.ErrTooLarge)
	want(t, "has", p.has(1, 2, 3), 3)
	want(t, "bytes", p.Bytes(), 900)
	p.freed("big", 1)
	if err := p.sized(5, "n", "v5", 200); err != nil {
		t.Fatal(err)
	}
	want(t, "has 1", p.has(1), 0)
	want(t, "bytes", p.Bytes(), 800)

	c.Groups = sessioncache.Unlimited
	q := open(t, c)
	for i := 1; i <= 4; i++ {
		if err := errors.Join(q.sized(i, "n", "v", 150), q.sized(i, "m", "w", 50)); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "bytes", q.Bytes(), 800)
	if err := q.SetBytes(bg, sessioncache.LimitOf(450)); err != nil {
		t.Fatal(err)
	}
	want(t, "capacity", q.Capacity(), sessioncache.Capacity{Groups: sessioncache.Unlimited, Bytes: sessioncache.LimitOf(450)})
	want(t, "has", q.has(3, 4), 2)
	want(t, "groups", q.Groups(), 2)
	want(t, "bytes", q.Bytes(), 400)
	wantError(t, "too large", q.sized(5, "n", "v5", 451), fault.ErrTooLarge)
	want(t, "has", q.has(3, 4), 2)
	if err := errors.Join(q.SetBytes(bg, sessioncache.Unlimited), q.sized(6, "n", "v6", 5000)); err != nil {
		t.Fatal(err)
	}
	want(t, "has", q.has(3, 4, 6), 3)
}

// A capacity below the floor is refused, by Open and afterwards, and nothing is
// changed.
func TestCapacityBelowFloor(t *testing.T) {
	c := fifo(8)
	c.Bytes, c.Floor = sessioncache.LimitOf(1000), sessioncache.Floor{Bytes: 900, Groups: 3}
	p := open(t, c)
	for i := 1; i <= 3; i++ {
		if err := p.sized(i, "n", "v", 300); err != nil {
			t.Fatal(err)
		}
	}
	before := p.Capacity()
	for _, n := range []int64{10, 899, 0} {
		wantError(t, "bytes", p.SetBytes(bg, sessioncache.LimitOf(n)), fault.ErrInvalid)
	}
	for _, n := range []int64{2, 0} {
		wantError(t, "groups", p.SetGroups(bg, sessioncache.LimitOf(n)), fault.ErrInvalid)
	}
	want(t, "capacity", p.Capacity(), before)
	want(t, "bytes", p.Bytes(), 900)
	if err := errors.Join(p.SetBytes(bg, sessioncache.LimitOf(900)), p.SetGroups(bg, sessioncache.LimitOf(3))); err != nil {
		t.Fatal(err)
	}
	want(t, "has", p.has(1, 2, 3), 3)
	for _, below := range []sessioncache.Config{
		{Bytes: sessioncache.LimitOf(10), Floor: sessioncache.Floor{Bytes: 900}},
		{Groups: sessioncache.LimitOf(2), Floor: sessioncache.Floor{Groups: 3}},
	} {
		_, err := sessioncache.Open(below)
		wantError(t, "open", err, fault.ErrInvalid)
	}
}

func TestEmptyGroupsCount(t *testing.T) { // F9, G9: also before anything is written
	p := open(t, fifo(2))
	for i := 1; i <= 5; i++ {
		h, err := p.Group(bg, shape(t, i))
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		want(t, "groups", p.Groups(), int64(min(i, 2)))
	}
}

func TestLeasedGroupsLast(t *testing.T) { // S3
	p := open(t, fifo(2))
	p.set(1, "n", "v1")
	p.set(2, "n", "v2")
	l := p.lease(1, "n")
	p.set(3, "n", "v3")
	want(t, "has", p.has(1, 3), 2)
	want(t, "has 2", p.has(2), 0)
	l.End()
	p.set(4, "n", "v4")
	want(t, "has 1", p.has(1), 0)

	h, err := p.Group(bg, shape(t, 3)) // a handle is a lease, too
	if err != nil {
		t.Fatal(err)
	}
	p.set(5, "n", "v5")
	want(t, "has", p.has(3, 5), 2)
	h.Close()
	p.set(6, "n", "v6")
	want(t, "has 3", p.has(3), 0)
}

func TestLowering(t *testing.T) { // G2, G3, S1
	p := open(t, fifo(10))
	for i := 1; i <= 10; i++ {
		p.set(i, "a", fmt.Sprint("v", i))
		p.set(i, "b", fmt.Sprint("w", i))
	}
	p.get(1, "a")
	if err := p.SetGroups(bg, sessioncache.LimitOf(7)); err != nil {
		t.Fatal(err)
	}
	want(t, "groups", p.Groups(), 7)
	want(t, "objects", p.Len(), 14)
	want(t, "has", p.has(1, 2, 3), 0)
	for i := 1; i <= 3; i++ {
		p.freed(fmt.Sprint("v", i), 1)
		p.freed(fmt.Sprint("w", i), 1)
	}
	wantError(t, "negative", p.SetGroups(bg, sessioncache.LimitOf(-1)), fault.ErrInvalid)
	wantError(t, "negative", p.SetBytes(bg, sessioncache.LimitOf(-1)), fault.ErrInvalid)
	wantError(t, "nothing", p.SetBytes(bg, sessioncache.Limit{}), fault.ErrInvalid)
	want(t, "capacity", p.Capacity(), sessioncache.Capacity{Groups: sessioncache.LimitOf(7), Bytes: sessioncache.Unlimited})
	if err := p.SetGroups(bg, sessioncache.LimitOf(12)); err != nil {
		t.Fatal(err)
	}
	want(t, "groups", p.Groups(), 7)
	for i := 11; i <= 15; i++ {
		p.set(i, "a", "v")
	}
	want(t, "groups", p.Groups(), 12)

	q := open(t, sessioncache.Config{Policy: "lru", Groups: sessioncache.LimitOf(6)})
	for i := 1; i <= 6; i++ {
		q.run(i, "n", "v")
	}
	q.run(1, "n", "v")
	q.get(2, "n")
	if err := q.SetGroups(bg, sessioncache.LimitOf(3)); err != nil {
		t.Fatal(err)
	}
	want(t, "has", q.has(1, 2, 6), 3)
	want(t, "groups", q.Groups(), 3)
	if err := q.SetGroups(bg, sessioncache.LimitOf(0)); err != nil {
		t.Fatal(err)
	}
	want(t, "groups", q.Groups(), 0)
	q.run(1, "n", "v")
	want(t, "get", q.get(1, "n"), "absent")
	if err := q.SetGroups(bg, sessioncache.Unlimited); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 70; i++ {
		q.run(i, "n", "v")
	}
	want(t, "groups", q.Groups(), 70)
}

// F7, F4: a value whose callers have left does not stay if the session was disabled
// while it was made, though it is enabled again.
func TestDisabledWhileItIsMade(t *testing.T) {
	s, err := sessioncache.Open(sessioncache.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	g, err := s.Group(context.Background(), shape(t, 7))
	if err != nil {
		t.Fatal(err)
	}
	running, goOn, freed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	short, cancel := context.WithCancel(context.Background())
	go func() { <-running; cancel() }()
	_, _, err = g.Get(short, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		close(running)
		<-goOn
		return sessioncache.Value{Any: 1, Bytes: 1, Free: func() { close(freed) }}, nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	g.Close()
	for _, groups := range []int64{0, 64} {
		if err := s.SetGroups(context.Background(), limit.Of(groups)); err != nil {
			t.Fatal(err)
		}
	}
	close(goOn)
	<-freed
	if _, ok := s.Lookup(shape(t, 7), "n", 0); ok {
		t.Error("a value that was made during capacity 0 is resident")
	}
}
