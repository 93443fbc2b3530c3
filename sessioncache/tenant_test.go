package sessioncache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/sessioncache"
)

func newPool(t interface{ Fatal(...any) }, bytes int64) *sessioncache.Pool {
	p, err := sessioncache.NewPool(sessioncache.LimitOf(bytes))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func tenant(p *sessioncache.Pool, floor, bytes int64) sessioncache.Config {
	return sessioncache.Config{
		Pool: p, Floor: sessioncache.Floor{Bytes: floor}, Bytes: sessioncache.LimitOf(bytes), Policy: "lru",
	}
}

// zipf is a stream of shapes as a server sees them: few are asked for often,
// many now and then, and which ones are drifts.
func zipf(seed uint64, requests int) []int {
	z := rand.NewZipf(rand.New(rand.NewPCG(seed, 1)), 1.3, 2, 199)
	stream := make([]int, requests)
	for i := range stream {
		stream[i] = 1 + (int(z.Uint64())+i/200*3)%200
	}
	return stream
}

// replay runs a stream of requests, two names of together 100 bytes each, and
// gives the hits.
func replay(t testing.TB, b *box, stream []int) (hits int) {
	t.Helper()
	for _, n := range stream {
		h, err := b.Group(bg, shape(t, n))
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"q", "k"} {
			_, event, err := h.Get(bg, name, sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
				return sessioncache.Value{Any: name, Bytes: int64(30 + 40*i), Cost: time.Millisecond}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if event == sessioncache.Hit {
				hits++
			}
		}
		h.Close()
	}
	return hits
}

// flood sets new shapes until stopped.
func flood(t testing.TB, b *box) (stop func()) {
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	full := make(chan struct{}) // it holds all that it may and evicts
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			err := b.Set(bg, shape(t, i%5000+1), "w", sessioncache.Value{Bytes: 100}, sessioncache.Options{})
			if err != nil {
				t.Errorf("flood: %v", err)
			}
			if i == 200 {
				close(full)
			}
		}
	})
	<-full
	return func() { cancel(); wg.Wait() }
}

// Q2: a tenant that floods at ten times its floor leaves the hits of another as they
// are, with every policy, whichever came first.
func TestFloodLeavesHitsAlone(t *testing.T) {
	const quota = 30 * 100
	for _, policy := range []string{"fifo", "lru", "sieve", "duel"} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/first=%v", policy, first), func(t *testing.T) {
				stream := zipf(7, 1000)
				run := func(flooded bool) int {
					p := newPool(t, 3*quota)
					quiet := tenant(p, quota, quota)
					quiet.Policy = policy
					loud := tenant(p, quota, 10*quota)
					loud.Groups = sessioncache.Unlimited
					var a *box
					if first {
						a = open(t, quiet)
					}
					if flooded {
						b := open(t, loud)
						defer flood(t, b)()
						defer func() {
							if n := b.stats().Evicted; n == 0 {
								t.Error("the flood was none: nothing had to go")
							}
						}()
					}
					if !first {
						a = open(t, quiet)
					}
					return replay(t, a, stream)
				}
				alone, flooded := run(false), run(true)
				if alone < 500 {
					t.Errorf("%d hits alone: the stream says nothing", alone)
				}
				want(t, "hits", flooded, alone)
			})
		}
	}
}

// A tenant takes of the pool what another holds beyond its share, down to the
// floor and no further, and whole groups at a time.
func TestRoomFromOthers(t *testing.T) {
	p := newPool(t, 100)
	a, b := open(t, tenant(p, 40, 100)), open(t, tenant(p, 0, 100))
	for n := 1; n <= 10; n++ {
		if err := a.sized(n, "x", "a", 10); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "a's bytes", a.Bytes(), 100)
	if err := b.sized(1, "x", "b", 15); err != nil {
		t.Fatal(err)
	}
	want(t, "b's bytes", b.Bytes(), 15)
	want(t, "a's bytes after b's 15", a.Bytes(), 80)
	want(t, "a's least recently used have gone", a.has(1, 2), 0)
	want(t, "a's others", a.has(3, 4, 5, 6, 7, 8, 9, 10), 8)

	for n := 2; n <= 20; n++ {
		if err := b.sized(n, "x", "b", 10); err != nil {
			t.Fatal(err)
		}
	}
	// Above a's floor both have 30: who wants more makes room itself.
	want(t, "a in the end", a.Bytes(), 70)
	want(t, "b in the end", b.Bytes(), 30)
	err := b.sized(99, "x", "b", 61)
	wantError(t, "more than all but a's floor", err, fault.ErrTooLarge)
	want(t, "what it says", strings.Contains(err.Error(), "61 bytes, at most 60: what the floors"), true)
	want(t, "nothing went for it", b.Bytes(), 30)
}

// A creator's value waits for another session to give, too, and its callers get
// it in any case.
func TestCreatedValueTakesRoom(t *testing.T) {
	p := newPool(t, 100)
	a, b := open(t, tenant(p, 0, 100)), open(t, tenant(p, 0, 100))
	if err := a.sized(1, "x", "a", 90); err != nil {
		t.Fatal(err)
	}
	create := func(bytes int64) sessioncache.Event {
		v := b.value("made")
		v.Bytes = bytes
		text, event, err := b.try(bg, shape(t, int(bytes)), "y", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { return v, nil })
		if err != nil || text != "made" {
			t.Fatalf("got %q, %v", text, err)
		}
		return event
	}
	create(20)
	want(t, "b keeps it", b.Bytes(), 20)
	want(t, "a gave its group", a.Groups(), 0)
	want(t, "the next is a hit", create(20), sessioncache.Hit)
}

// Q3: a value for which others would have to give, who hold less, is not kept, and
// the name's earlier value is gone.
func TestNotKeptWhereOthersHoldLess(t *testing.T) {
	p := newPool(t, 100)
	a, b := open(t, tenant(p, 0, 100)), open(t, tenant(p, 0, 100))
	if err := a.sized(1, "x", "a", 45); err != nil {
		t.Fatal(err)
	}
	if err := b.sized(1, "x", "old", 10); err != nil {
		t.Fatal(err)
	}
	if err := b.sized(2, "x", "stays", 10); err != nil {
		t.Fatal(err)
	}
	if err := b.sized(1, "x", "new", 60); err != nil {
		t.Fatal(err)
	}
	want(t, "the old value", b.get(1, "x"), "absent")
	want(t, "its neighbour", b.get(2, "x"), "stays")
	want(t, "a", a.Bytes(), 45)
	b.freed("new", 1)
	b.freed("old", 1)
}

// Q2, S6: where Set is not kept, the group of the name that is gone for it holds no bytes, and
// a search for bytes does not meet it.
func TestGivesBesideSetsThatWereNotKept(t *testing.T) {
	const groups = touched.Most
	p := newPool(t, 20_000)
	a := open(t, sessioncache.Config{Pool: p, Groups: sessioncache.Unlimited, Policy: "lru"})
	b, c := open(t, sessioncache.Config{Pool: p}), open(t, sessioncache.Config{Pool: p})
	set(t, b, 1, 9_000)
	for i := range groups {
		set(t, a, i, 1)
		set(t, a, i, 12_000) // b has what it would need
	}
	set(t, a, groups, 10_000)
	want(t, "bytes in many groups", [2]int64{a.Bytes(), a.Groups()}, [2]int64{10_000, groups + 1})
	set(t, c, 1, 1_500)
	want(t, "what was claimed", c.Bytes(), int64(1_500))
	want(t, "what is left of the one that held most", a.Bytes(), int64(0))
}

// S6: where Set is not kept, what is left in the group says what class it is of.
func TestClassAfterASetThatIsNotKept(t *testing.T) {
	p := newPool(t, 100)
	a := open(t, sessioncache.Config{Pool: p, Groups: sessioncache.LimitOf(2), Policy: "lru"})
	b := open(t, sessioncache.Config{Pool: p})
	put := func(n int64, name string, bytes int64, cost time.Duration) {
		t.Helper()
		if err := a.Set(bg, mustShape(t, n), name, sessioncache.Value{Bytes: bytes, Cost: cost}, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	set(t, b, 1, 55)
	put(2, "x", 10, time.Second)
	put(1, "x", 10, 10*time.Second)
	put(1, "y", 10, time.Millisecond)
	put(1, "x", 80, 10*time.Second) // b has what it would need
	a.hold(3)                       // one of two has to go
	want(t, "the group of 1 ms in 10 bytes", a.Has(mustShape(t, 1)), false)
	want(t, "the group of 1 s in 10 bytes", a.Has(mustShape(t, 2)), true)
}

func TestGroupsOfTheFloorStay(t *testing.T) {
	p := newPool(t, 100)
	c := tenant(p, 0, 100)
	c.Floor.Groups = 6
	a, b := open(t, c), open(t, tenant(p, 0, 100))
	for n := 1; n <= 10; n++ {
		if err := a.sized(n, "x", "a", 10); err != nil {
			t.Fatal(err)
		}
	}
	for n := 1; n <= 10; n++ {
		if err := b.sized(n, "x", "b", 10); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "a's groups", a.Groups(), 6)
	want(t, "b's bytes", b.Bytes(), 40)
}

// Q1, Q2: a tenant that holds most, in the one group of its floor, keeps no other from what is
// lent to a third, nor from its floor.
func TestGroupOfAFloorKeepsNobodyFromTheRest(t *testing.T) {
	p := newPool(t, 100)
	c := tenant(p, 0, 100)
	c.Floor.Groups = 1
	most, giver, poor := open(t, c), open(t, tenant(p, 0, 100)), open(t, tenant(p, 0, 100))
	if err := most.sized(1, "x", "most", 60); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 4; n++ {
		if err := giver.sized(n, "x", "giver", 10); err != nil {
			t.Fatal(err)
		}
	}
	if err := poor.sized(1, "x", "poor", 5); err != nil {
		t.Fatal(err)
	}
	want(t, "the value that others could make room for", poor.Bytes(), 5)
	open(t, tenant(p, 20, 100))
	eventually(t, func() bool { return giver.Bytes() == 10 }, func() any { return giver.Bytes() }, "what is left of the lent", 10)
	want(t, "the group of the floor", most.Bytes(), 60)
}

// A floor that is in use by others when a session opens is given up for it.
func TestOpenClaimsItsFloor(t *testing.T) {
	p := newPool(t, 100)
	b := open(t, tenant(p, 10, 100))
	for n := 1; n <= 10; n++ {
		if err := b.sized(n, "x", "b", 10); err != nil {
			t.Fatal(err)
		}
	}
	open(t, tenant(p, 70, 100))
	eventually(t, func() bool { return b.Bytes() == 30 }, func() any { return b.Bytes() }, "b's bytes", 30)
	_, err := sessioncache.Open(tenant(p, 21, 100))
	wantError(t, "floors of 101", err, fault.ErrTooLarge)
	_, err = sessioncache.Open(tenant(p, 50, 49))
	wantError(t, "a floor above the cap", err, fault.ErrInvalid)
	_, err = sessioncache.Open(tenant(p, -1, 49))
	wantError(t, "a negative floor", err, fault.ErrInvalid)
}

// F6, Q1: a session opens beside one whose turn lasts, though that holds its floor: what
// is put within the floor has its room when that has come to its next turn.
func TestOpenWaitsForNoTurn(t *testing.T) {
	p := newPool(t, 100)
	b := open(t, tenant(p, 10, 100))
	for n := 1; n <= 10; n++ {
		if err := b.sized(n, "x", "b", 10); err != nil {
			t.Fatal(err)
		}
	}
	goOn := sync.OnceFunc(sessioncache.Stall(b.Session))
	defer goOn()
	opened, set := make(chan *box, 1), make(chan error, 1)
	go func() { opened <- open(t, tenant(p, 70, 100)) }()
	var a *box
	select {
	case a = <-opened:
	case <-time.After(10 * time.Second):
		goOn()
		t.Fatal("it waits for a turn of the other")
	}
	go func() { set <- a.sized(1, "x", "a", 65) }()
	goOn()
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	want(t, "the value within the floor", a.get(1, "x"), "a")
	want(t, "b's bytes", b.Bytes(), 30)
}

// A closed session has given everything back, its floor as well.
func TestCloseLeavesThePool(t *testing.T) {
	p := newPool(t, 100)
	a, b := open(t, tenant(p, 60, 100)), open(t, tenant(p, 0, 100))
	if err := a.sized(1, "x", "a", 60); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(bg); err != nil {
		t.Fatal(err)
	}
	if err := b.sized(1, "x", "b", 100); err != nil {
		t.Fatal(err)
	}
	used, drawn := p.Use()
	want(t, "used", used, 100)
	want(t, "drawn", drawn, 100)
}

// F8, Q1: a session that closes while a value of it waits for room waits for the answer of
// whoever was asked: then the value is freed, and nothing of the pool is kept for it.
func TestCloseWhileAValueWaitsForRoom(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		p := newPool(t, 100)
		a, b := open(t, tenant(p, 0, 100)), open(t, tenant(p, 0, 100))
		if err := a.sized(1, "x", "a", 100); err != nil {
			t.Fatal(err)
		}
		goOn := sessioncache.Stall(a.Session)
		answered, closed := make(chan error, 1), make(chan error, 1)
		go func() { answered <- b.sized(1, "x", "v", 40) }()
		synctest.Wait()
		want(t, "waiting", sessioncache.Waiting(b.Session), 1)
		go func() { closed <- b.Close(bg) }()
		synctest.Wait()
		if len(closed) > 0 {
			t.Error("closed before the other session has answered")
		}
		goOn()
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		wantError(t, "the set", <-answered, fault.ErrClosed)
		b.freed("v", 1)
		if used, drawn := p.Use(); used != a.Bytes() || drawn != used {
			t.Errorf("%d bytes used and %d drawn, where the other has %d", used, drawn, a.Bytes())
		}
	})
}

// The pool against what its sessions hold, whatever they do.
func TestPoolEqualsItsSessions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const capacity = 100
		p := newPool(t, capacity)
		var all []*sessioncache.Session
		var floors []int64
		for range rapid.IntRange(1, 3).Draw(rt, "sessions") {
			floor := rapid.Int64Range(0, 20).Draw(rt, "floor")
			c := tenant(p, floor, rapid.Int64Range(40, 120).Draw(rt, "cap"))
			c.Policy = rapid.SampledFrom([]string{"fifo", "lru", "sieve", "duel"}).Draw(rt, "policy")
			c.Keep = rapid.SampledFrom([]string{"always", "worth"}).Draw(rt, "keep")
			if c.Policy != "duel" {
				c.Keep = ""
			}
			c.Groups = sessioncache.LimitOf(rapid.Int64Range(1, 6).Draw(rt, "groups"))
			s, err := sessioncache.Open(c)
			if err != nil {
				rt.Fatal(err)
			}
			defer s.Close(bg)
			all, floors = append(all, s), append(floors, floor)
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			i := rapid.IntRange(0, len(all)-1).Draw(rt, "who")
			s, k := all[i], rapid.IntRange(1, 8).Draw(rt, "shape")
			v := sessioncache.Value{Bytes: rapid.Int64Range(0, 40).Draw(rt, "bytes")}
			before := make([]int64, len(all))
			for j, o := range all {
				before[j] = o.Bytes()
			}
			name := rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "name")
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1:
				if err := s.Set(bg, shape(t, k), name, v, sessioncache.Options{Owner: name}); err != nil {
					rt.Fatal(err)
				}
			case 2, 3:
				h, err := s.Group(bg, shape(t, k))
				if err != nil {
					rt.Fatal(err)
				}
				if _, _, err = h.Get(bg, name, sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { return v, nil }); err != nil {
					rt.Fatal(err)
				}
				h.Close()
			case 4:
				if err := s.Reset(bg, name); err != nil {
					rt.Fatal(err)
				}
			}
			var sum int64
			for j, o := range all {
				sum += o.Bytes()
				if j != i && o.Bytes() < min(before[j], floors[j]) {
					rt.Fatalf("session %d had %d bytes with a floor of %d; others left it %d", j, before[j], floors[j], o.Bytes())
				}
			}
			if used, drawn := p.Use(); used != sum || drawn > capacity {
				rt.Fatalf("the pool has %d used and %d drawn, the sessions hold %d", used, drawn, sum)
			}
		}
	})
}

// Sessions that fight for a pool and close amid it: nothing waits for ever, the
// pool is never overdrawn, nothing is lost.
func TestPoolHammer(t *testing.T) {
	const capacity = 2000
	p := newPool(t, capacity)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for round := range 4 {
				s, err := sessioncache.Open(tenant(p, int64(i)*100, 1500))
				for deadline := time.Now().Add(20 * time.Second); errors.Is(err, fault.ErrTooLarge) && time.Now().Before(deadline); {
					// The floors of all fit, but what others hold was promised already.
					s, err = sessioncache.Open(tenant(p, int64(i)*100, 1500))
				}
				if err != nil {
					t.Error(err)
					return
				}
				var users sync.WaitGroup
				for u := range 3 {
					users.Go(func() {
						for k := range 150 {
							n := (k*7+u*13+i)%40 + 1
							v := sessioncache.Value{Bytes: int64(n * 9)}
							if k%3 == 0 {
								_ = s.Set(bg, shape(t, n), "x", v, sessioncache.Options{})
							} else if h, err := s.Group(bg, shape(t, n)); err == nil {
								_, _, _ = h.Get(bg, "y", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { return v, nil })
								h.Close()
							}
							if used, drawn := p.Use(); used > drawn || drawn > capacity {
								t.Errorf("used %d, drawn %d of %d", used, drawn, capacity)
							}
						}
					})
				}
				if round%2 == 0 {
					users.Wait()
				}
				ctx, cancel := context.WithTimeout(bg, 20*time.Second)
				if err := s.Close(ctx); err != nil {
					t.Error(err)
				}
				cancel()
				users.Wait()
			}
		})
	}
	wg.Wait()
	used, drawn := p.Use()
	want(t, "used", used, 0)
	want(t, "drawn", drawn, 0)
}
