package sessioncache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// The cases of the conformance topic "sessions", by their names.

func TestLevels(t *testing.T) { // G1, K1
	p := open(t, sessioncache.Config{})
	want(t, "get", p.get(7, "x"), "absent")
	want(t, "groups", p.Groups(), 0)
	p.set(7, "x", "v1")
	want(t, "get", p.get(7, "y"), "absent")
	want(t, "get", p.get(8, "x"), "absent")
	want(t, "get", p.get(7, "x"), "v1")
	want(t, "groups", p.Groups(), 1)
	want(t, "objects", p.Len(), 1)
	p.set(7, "x", "v2")
	want(t, "get", p.get(7, "x"), "v2")
	want(t, "objects", p.Len(), 1)
	p.freed("v1", 1)

	for i, dims := range [][][]int64{{{1, 2}, {3}}, {{1}, {2, 3}}} {
		s, err := shapegroups.Of(dims...)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Set(bg, s, "n", sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			r, _ := p.Lookup(s, "n", 0)
			want(t, s.String(), r.Value(), any(i))
		}()
	}
	want(t, "groups", p.Groups(), 3)
}

func TestCapacityInGroups(t *testing.T) { // G2
	p := open(t, sessioncache.Config{})
	u := open(t, sessioncache.Config{Groups: sessioncache.Unlimited})
	for i := 1; i <= 300; i++ {
		u.set(i, "n", "v")
		if i <= 70 {
			p.set(i, "n", "v")
		}
	}
	want(t, "groups", p.Groups(), 64)
	want(t, "groups", u.Groups(), 300)

	for _, c := range []sessioncache.Config{
		{Groups: sessioncache.LimitOf(-1)},
		{Bytes: sessioncache.LimitOf(-1)},
		{Policy: "nonsense"}, // S1
		{Keep: "nonsense"},
	} {
		s, err := sessioncache.Open(c)
		wantError(t, fmt.Sprint(c), err, fault.ErrInvalid)
		if s != nil {
			t.Error("a session in spite of the error")
		}
	}
}

func TestDisabled(t *testing.T) { // G2, F1
	p := open(t, sessioncache.Config{Groups: sessioncache.LimitOf(0)})
	v, event := p.run(7, "n", "v1")
	want(t, "run", v+string(event), "v1miss")
	p.run(7, "n", "v2")
	want(t, "get", p.get(7, "n"), "absent")
	p.set(7, "n", "v3")
	want(t, "get", p.get(7, "n"), "absent")
	want(t, "groups", p.Groups(), 0)
	want(t, "objects", p.Len(), 0)
	for _, v := range []string{"v1", "v2", "v3"} {
		p.freed(v, 1)
	}
}

func TestFifo(t *testing.T) { // G3
	p := open(t, fifo(2))
	for i := 1; i <= 3; i++ {
		p.set(i, "x", fmt.Sprint("a", i))
		p.set(i, "y", fmt.Sprint("b", i))
	}
	want(t, "1 x", p.get(1, "x"), "absent")
	want(t, "1 y", p.get(1, "y"), "absent")
	want(t, "2 x", p.get(2, "x"), "a2")
	want(t, "3 y", p.get(3, "y"), "b3")
	want(t, "objects", p.Len(), 4)

	q := open(t, fifo(3))
	for i := 1; i <= 3; i++ {
		q.set(i, "n", "v")
	}
	for range 5 {
		q.get(1, "n")
	}
	q.set(4, "n", "v4")
	want(t, "has", q.has(1, 2, 3, 4), 3)
	q.set(2, "m", "w")
	q.set(5, "n", "v5")
	want(t, "has 2", q.has(2), 0)
	want(t, "has", q.has(3, 4, 5), 3)

	r := open(t, fifo(10))
	for i := 1; i <= 100; i++ {
		r.set(i*7, "n", fmt.Sprint("v", i))
	}
	want(t, "groups", r.Groups(), 10)
	for i := 91; i <= 100; i++ {
		want(t, "get", r.get(i*7, "n"), fmt.Sprint("v", i))
	}

	o := open(t, fifo(1))
	o.run(1, "n", "a")
	o.run(2, "n", "b")
	want(t, "has 1", o.has(1), 0)
	v, event := o.run(1, "n", "c2")
	want(t, "run", v+string(event), "c2miss")
	want(t, "groups", o.Groups(), 1)
}

func TestGroupGoesAtOnce(t *testing.T) { // G4, G9
	p := open(t, fifo(2))
	for i := 1; i <= 50; i++ {
		p.set(100, fmt.Sprint("n", i), "v")
	}
	p.set(200, "n", "w")
	want(t, "objects", p.Len(), 51)
	stop := watch(t, func() {
		if n := p.Len(); n != 1 && n != 2 && n != 51 {
			t.Errorf("objects %d", n)
		}
	})
	p.set(300, "n", "x")
	stop()
	want(t, "objects", p.Len(), 2)
	p.freed("v", 50)
}

func TestCountsStandStillWhenOverwriting(t *testing.T) { // G9
	p := open(t, sessioncache.Config{})
	if err := p.sized(1, "n", "v", 7); err != nil {
		t.Fatal(err)
	}
	stop := watch(t, func() {
		if o, b := p.Len(), p.Bytes(); o != 1 || b != 7 {
			t.Errorf("objects %d, bytes %d", o, b)
		}
	})
	for range 2000 {
		if err := p.sized(1, "n", "v", 7); err != nil {
			t.Fatal(err)
		}
	}
	stop()
}

// watch calls look in a loop until the returned function is called.
func watch(t testing.TB, look func()) (stop func()) {
	t.Helper()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			look()
			select {
			case <-quit:
				return
			default:
			}
		}
	}()
	return func() { close(quit); <-done }
}

func TestLeaseOutlivesEviction(t *testing.T) { // G4, C5
	p := open(t, fifo(1))
	p.set(1, "n", "v1")
	l := p.lease(1, "n")
	p.set(2, "n", "v2")
	want(t, "get", p.get(1, "n"), "absent")
	want(t, "use", l.Value(), any("v1"))
	want(t, "resident", l.Ref().Resident(), false)
	p.freed("v1", 0)
	l.End()
	l.End() // once is enough
	p.freed("v1", 1)
	if _, ok := l.Ref().Acquire(); ok {
		t.Error("a freed value was leased")
	}
}

func TestSessionsAreApart(t *testing.T) { // G5, G11
	p, q := open(t, fifo(3)), open(t, sessioncache.Config{Groups: sessioncache.Unlimited})
	for i := 1; i <= 6; i++ {
		p.set(i, "n", fmt.Sprint("p", i), sessioncache.Options{Owner: "X"})
		q.set(i, "n", fmt.Sprint("q", i), sessioncache.Options{Owner: "X"})
	}
	want(t, "groups", p.Groups(), 3)
	want(t, "groups", q.Groups(), 6)
	want(t, "p 6", p.get(6, "n"), "p6")
	want(t, "q 6", q.get(6, "n"), "q6")
	want(t, "p 1", p.get(1, "n"), "absent")
	want(t, "q 1", q.get(1, "n"), "q1")
	if err := p.Reset(bg, "X"); err != nil {
		t.Fatal(err)
	}
	want(t, "p objects", p.Len(), 0)
	want(t, "q objects", q.Len(), 6)
}

func TestLanes(t *testing.T) { // G6
	p := open(t, sessioncache.Config{})
	p.set(1, "n", "shared")
	p.set(2, "n", "l0", sessioncache.Options{Lane: sessioncache.Worker(0)})
	p.set(2, "n", "l1", sessioncache.Options{Lane: sessioncache.Worker(1)})
	lane := func(n uint32) string {
		r, ok := p.Lookup(shape(t, 2), "n", sessioncache.Worker(n))
		if !ok {
			return "absent"
		}
		return r.Value().(string)
	}
	want(t, "1", p.get(1, "n"), "shared")
	want(t, "2", p.get(2, "n"), "absent")
	want(t, "lane 0", lane(0), "l0")
	want(t, "lane 1", lane(1), "l1")
	want(t, "lane 2", lane(2), "absent")
	want(t, "objects", p.Len(), 3)
	p.set(2, "n", "both")
	want(t, "lane 1", lane(1), "l1")
	want(t, "objects", p.Len(), 4)
}

func TestOwners(t *testing.T) { // G7
	X, Y := sessioncache.Options{Owner: "X"}, sessioncache.Options{Owner: "Y"}
	p := open(t, sessioncache.Config{})
	for i := 1; i <= 3; i++ {
		p.set(i, "a", "X", X)
		p.set(i, "b", "Y", Y)
		p.set(i, "x", "none")
	}
	reset := func(p *box, owner string) {
		t.Helper()
		if err := p.Reset(bg, owner); err != nil {
			t.Fatal(err)
		}
	}
	reset(p, "X")
	for i := 1; i <= 3; i++ {
		want(t, "a", p.get(i, "a"), "absent")
		want(t, "b", p.get(i, "b"), "Y")
		want(t, "x", p.get(i, "x"), "none")
	}
	want(t, "objects", p.Len(), 6)
	p.freed("X", 3)

	p.set(9, "n", "first", X)
	p.set(9, "n", "second", Y)
	reset(p, "X")
	want(t, "n", p.get(9, "n"), "second")
	reset(p, "Y")
	want(t, "n", p.get(9, "n"), "absent")

	q := open(t, fifo(2)) // also after evictions
	for i := 1; i <= 4; i++ {
		q.set(i, "a", "X", X)
		q.set(i, "b", "Y", Y)
	}
	want(t, "objects", q.Len(), 4)
	reset(q, "X")
	want(t, "objects", q.Len(), 2)
	want(t, "3 b", q.get(3, "b"), "Y")
	want(t, "4 b", q.get(4, "b"), "Y")
	want(t, "4 a", q.get(4, "a"), "absent")
	q.freed("X", 4)
	q.freed("Y", 2)
	wantError(t, "empty owner", q.Reset(bg, ""), fault.ErrInvalid)
	wantError(t, "empty owner", q.Hold(""), fault.ErrInvalid)
}

func TestResetAll(t *testing.T) { // G7, G9, G10
	p := open(t, sessioncache.Config{})
	for i := 1; i <= 5; i++ {
		p.set(i, "n", "v", sessioncache.Options{Owner: "X"})
		p.set(i, "m", "w")
	}
	if err := p.Hold("X"); err != nil {
		t.Fatal(err)
	}
	if err := p.ResetAll(bg); err != nil {
		t.Fatal(err)
	}
	want(t, "objects", p.Len(), 0)
	want(t, "groups", p.Groups(), 0)
	p.mu.Lock()
	v, w := p.mu.freed["v"], p.mu.freed["w"]
	p.mu.Unlock()
	want(t, "freed when it returns", [2]int{v, w}, [2]int{5, 5})

	for range 2 {
		for i := 1; i <= 4; i++ {
			got, event := p.run(i, "n", fmt.Sprint("v", i))
			want(t, "cold", got+string(event), fmt.Sprint("v", i, "miss"))
		}
		for i := 1; i <= 4; i++ {
			got, event := p.run(i, "n", "x")
			want(t, "warm", got+string(event), fmt.Sprint("v", i, "hit"))
		}
		want(t, "groups", p.Groups(), 4)
		if err := p.ResetAll(bg); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHold(t *testing.T) { // G8
	p := open(t, sessioncache.Config{})
	p.set(1, "n", "v", sessioncache.Options{Owner: "X"})
	p.set(1, "m", "w", sessioncache.Options{Owner: "Y"})
	err := errors.Join(p.Hold("X"), p.Hold("X"), p.Reset(bg, "X"), p.Reset(bg, "X"), p.Reset(bg, "Y"))
	if err != nil {
		t.Fatal(err)
	}
	want(t, "m", p.get(1, "m"), "absent")
	want(t, "n", p.get(1, "n"), "v")
	if err := p.Reset(bg, "X"); err != nil {
		t.Fatal(err)
	}
	want(t, "n", p.get(1, "n"), "absent")
}

func TestCountsWhileWritersEvict(t *testing.T) { // G9
	p := open(t, fifo(5))
	stop := watch(t, func() {
		if g, o := p.Groups(), p.Len(); g < 0 || g > 5 || o < 0 || o > 10 {
			t.Errorf("groups %d, objects %d", g, o)
		}
	})
	var all sync.WaitGroup
	for w := range 6 {
		all.Go(func() {
			for i := range 100 {
				p.set(i*5+w, "a", "v")
				p.set(i*5+w, "b", "w")
			}
		})
	}
	all.Wait()
	stop()
	want(t, "groups", p.Groups(), 5)
}

func TestOneFlightAName(t *testing.T) { // F1
	p := open(t, sessioncache.Config{})
	gate := make(chan struct{})
	type result struct {
		v  string
		by sessioncache.Event
	}
	results := make(chan result, 20) // one a caller
	for i := range 20 {
		go func() {
			v, by, err := p.try(bg, shape(t, 5), "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
				<-gate
				return p.value(fmt.Sprint("v", i)), nil
			})
			if err != nil {
				t.Error(err)
			}
			results <- result{v, by}
		}()
	}
	eventually(t, func() bool { return p.stats().Running == 1 }, func() any { return p.stats().Running }, "running", 1)
	close(gate)
	first := <-results
	events := map[sessioncache.Event]int{first.by: 1}
	for range 19 {
		r := <-results
		want(t, "value", r.v, first.v)
		events[r.by]++
	}
	want(t, "misses", events[sessioncache.Miss], 1)
	s := p.stats()
	want(t, "misses counted", s.Misses, 1)
	want(t, "others counted", s.Joined+s.Hits, 19)
	want(t, "objects", p.Len(), 1)
}
