package pool_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/pool"
	"github.com/kiln-cache/kiln/limit"
)

// tenant is a member that answers gifts when the test says so.
type tenant struct {
	*pool.Member
	name  string
	floor int64
	used  int64
	gifts []pool.Gift
	ended []*pool.Claim
	open  int  // claims that have not ended
	late  bool // others may use what is to be its floor
}

func (n *tenant) join(t require, p *pool.Pool) {
	m, err := p.Join(n.floor, func(g pool.Gift) { n.gifts = append(n.gifts, g) })
	if err != nil {
		t.Fatalf("%s: join = %v", n.name, err)
	}
	n.Member = m
}

func (n *tenant) claim(bytes int64) bool {
	n.open++
	c := n.Claim(bytes, func(c *pool.Claim) { n.ended = append(n.ended, c); n.open-- })
	if c == nil {
		n.open--
	}
	return c != nil
}

func (n *tenant) reserve(bytes int64) bool {
	ok := n.Reserve(bytes)
	if ok {
		n.used += bytes
	}
	return ok
}

func (n *tenant) release(bytes int64) {
	n.used -= bytes
	n.Release(bytes)
}

type require interface{ Fatalf(string, ...any) }

func newPool(t require, capacity int64) *pool.Pool {
	p, err := pool.New(limit.Of(capacity))
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	return p
}

// Whatever members do: nothing exceeds the capacity, no sum is lost, a floor is
// always there for its owner, every claim ends.
func TestPoolAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const capacity = 100
		p := newPool(t, capacity)
		var all []*tenant
		floors := int64(0)
		for i, floor := range rapid.SliceOfN(rapid.Int64Range(0, 30), 1, 3).Draw(t, "floors") {
			n := &tenant{name: fmt.Sprint(i), floor: floor}
			n.join(t, p)
			floors += floor
			all = append(all, n)
		}
		for i := range rapid.SampledFrom([]int{0, 70}).Draw(t, "crowd") { // more than are asked at once
			n := &tenant{name: fmt.Sprint("one of many ", i)}
			n.join(t, p)
			n.reserve(1)
			all = append(all, n)
		}
		answer := func(n *tenant, give int64) {
			g := n.gifts[0]
			n.gifts = n.gifts[1:]
			n.release(min(give, max(n.used-n.floor, 0)))
			g.Answered()
		}
		settle := func(n *tenant, kept bool) {
			c := n.ended[0]
			n.ended = n.ended[1:]
			if c.Accept() {
				n.used += c.Bytes()
				if !kept { // what it was for has gone meanwhile
					n.release(c.Bytes())
				}
			}
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			n := rapid.SampledFrom(all).Draw(t, "who")
			bytes := rapid.Int64Range(0, 60).Draw(t, "bytes")
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				fits, could := n.Fits(bytes), n.Could(bytes)
				ok := n.reserve(bytes)
				if ok != fits || ok && !could {
					t.Fatalf("reserve %d: %v, fits %v, could %v", bytes, ok, fits, could)
				}
				if !ok && !n.late && n.used+bytes <= n.floor {
					t.Fatalf("%s has %d of its floor of %d and cannot have %d", n.name, n.used, n.floor, bytes)
				}
				if ok && bytes > 0 && n.used > n.Most() {
					t.Fatalf("%s has %d, most is %d", n.name, n.used, n.Most())
				}
			case 1:
				n.release(min(bytes, n.used))
			case 2:
				n.claim(bytes)
			case 3:
				if len(n.gifts) > 0 {
					answer(n, bytes)
				}
			case 4:
				if len(n.ended) > 0 {
					settle(n, bytes%2 == 0)
				}
			case 5:
				late := &tenant{name: fmt.Sprint(len(all)), floor: bytes, late: true}
				if floors+bytes <= capacity {
					late.join(t, p)
					floors += bytes
					all = append(all, late)
				}
			}
			var sum, least int64
			for _, n := range all {
				sum += n.used
				if least += n.used; !n.late {
					least += max(n.floor-n.used, 0)
				}
			}
			if used, drawn := p.Use(); used != sum || drawn < least || drawn > capacity {
				t.Fatalf("used %d and drawn %d: want %d, and %d to %d", used, drawn, sum, least, capacity)
			}
		}
		for more := true; more; {
			more = false
			for _, n := range all {
				for ; len(n.gifts) > 0; more = true {
					answer(n, n.gifts[0].Bytes)
				}
			}
		}
		for _, n := range all {
			for len(n.ended) > 0 {
				settle(n, false)
			}
			if n.open != 0 {
				t.Fatalf("%s: %d claims never ended", n.name, n.open)
			}
			n.release(n.used)
		}
		for _, n := range all {
			n.Leave()
		}
		if used, drawn := p.Use(); used != 0 || drawn != 0 {
			t.Fatalf("left behind: used %d, drawn %d", used, drawn)
		}
	})
}

// Q2: the member that would use most above its floor makes room itself; others ask
// that member, and no member takes what was given for another.
func TestWhoGives(t *testing.T) {
	p := newPool(t, 100)
	a, b, c := &tenant{name: "a", floor: 10}, &tenant{name: "b"}, &tenant{name: "c"}
	for _, n := range []*tenant{a, b, c} {
		n.join(t, p)
	}
	if !b.reserve(70) || !c.reserve(20) {
		t.Fatal("the pool is not full yet")
	}
	if a.Fits(11) || !a.reserve(10) {
		t.Fatal("a has its floor and no more")
	}
	if b.claim(5) {
		t.Error("b uses most: it makes room itself")
	}
	if c.claim(50) {
		t.Error("c would use as much as b, which has no more to give than c")
	}
	if !a.claim(5) || len(b.gifts) != 1 || len(c.gifts) != 0 || b.gifts[0].Bytes != 5 {
		t.Fatalf("a claims 5: b is asked for %v, c for %v", b.gifts, c.gifts)
	}
	b.release(30) // a whole group
	if b.reserve(26) || !b.reserve(25) {
		t.Error("what was given for a is a's; the rest is anybody's")
	}
	b.gifts[0].Answered()
	if len(a.ended) != 1 || !a.ended[0].Accept() {
		t.Error("a has not got what was given")
	}
}

// Claims of one member count together: many small ones do not take more than one
// large one would.
func TestClaimsAddUp(t *testing.T) {
	p := newPool(t, 100)
	a, b := &tenant{name: "a"}, &tenant{name: "b"}
	a.join(t, p)
	b.join(t, p)
	if !b.reserve(100) {
		t.Fatal("an empty pool")
	}
	n := 0
	for a.claim(10) {
		n++
	}
	if n != 5 {
		t.Errorf("%d claims of 10 against 100: want 5, then both have the same", n)
	}
}

// Who has released and not answered yet is not asked by a next claim for less than
// it uses above its floor.
func TestClaimEndsWithTheAnswer(t *testing.T) {
	p := newPool(t, 100)
	a, b := &tenant{name: "a", floor: 40}, &tenant{name: "b"}
	a.join(t, p)
	b.join(t, p)
	if !a.reserve(100) || !b.claim(15) || len(a.gifts) != 1 {
		t.Fatalf("a has all, and was asked for %v", a.gifts)
	}
	a.release(20)
	if len(b.ended) != 0 {
		t.Error("the claim ended before a answered")
	}
	a.gifts[0].Answered()
	if len(b.ended) != 1 || !b.ended[0].Accept() {
		t.Fatal("what a gave is not b's")
	}
	if !b.claim(10) || len(a.gifts) != 2 || a.gifts[1].Bytes != 5 {
		t.Errorf("b has 15 and wants 10 of a's 40 above its floor: a was asked for %v", a.gifts[1:])
	}
}

// Q1: floors that exceed the pool are refused; a floor is set aside, used or not.
func TestFloors(t *testing.T) {
	p := newPool(t, 100)
	b := &tenant{name: "b", floor: 20}
	b.join(t, p)
	if !b.reserve(90) {
		t.Fatal("an empty pool")
	}
	if _, err := p.Join(81, nil); !errors.Is(err, fault.ErrTooLarge) || !strings.Contains(err.Error(), "of the 100 that all have: lower one") {
		t.Errorf("floors of 101 in 100: %v", err)
	}
	if _, err := p.Join(-1, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a negative floor: %v", err)
	}
	m := &tenant{name: "m", floor: 60}
	m.join(t, p)
	if len(b.gifts) != 1 || b.gifts[0].Bytes != 50 {
		t.Fatalf("b is asked for %v", b.gifts)
	}
	if !m.reserve(10) || m.reserve(1) || !m.claim(40) || !m.claim(10) || len(b.gifts) != 1 {
		t.Fatalf("a floor of which 10 are there and 50 are given: b is asked for %v", b.gifts)
	}
	b.release(50)
	if len(m.ended) != 0 || b.reserve(1) {
		t.Error("what b gave is m's, and m is told when b answers")
	}
	b.gifts[0].Answered()
	if len(m.ended) != 1 || !m.ended[0].Accept() || len(m.ended) != 2 || !m.ended[1].Accept() {
		t.Fatal("the floor was given and is not there")
	}
	if b.reserve(1) || m.reserve(1) {
		t.Error("a floor of 60 beside 40")
	}
	if !m.claim(1) || len(b.gifts) != 2 || b.gifts[1].Bytes != 1 {
		t.Fatalf("m wants 1 beyond its floor: b was asked for %v", b.gifts[1:])
	}
	b.gifts[1].Answered()
	if m.ended[2].Accept() {
		t.Error("b gave nothing, and m has it")
	}
	m.Release(60)
	m.Leave()
	if !b.reserve(60) {
		t.Error("a member that left has kept its floor")
	}
	if _, err := p.Join(80, func(pool.Gift) {}); err != nil {
		t.Errorf("a floor where one of 60 has gone: %v", err)
	}
}

// F6: a claim does not wait for a floor that others have answered for already, though they
// did not give what it lacks.
func TestClaimBesideAFloorThatWasNotGiven(t *testing.T) {
	p := newPool(t, 100)
	a, b := &tenant{name: "a"}, &tenant{name: "b", floor: 20}
	a.join(t, p)
	if !a.reserve(100) {
		t.Fatal("an empty pool")
	}
	b.join(t, p)
	a.gifts[0].Answered() // all that a has is in use
	if !b.claim(10) || len(a.gifts) != 2 {
		t.Fatalf("b wants 10 of its floor: a was asked for %v", a.gifts)
	}
	a.release(10)
	a.gifts[1].Answered()
	if len(b.ended) != 1 || !b.ended[0].Accept() {
		t.Error("a has given what b waits for, and b was not told")
	}
}

// F6: however many claims wait for a floor, the answer of who gives it, which comes in a turn,
// ends one of them; each that is accepted ends the next.
func TestClaimsOnAFloorEndOneByOne(t *testing.T) {
	const claims = 10_000
	p := newPool(t, claims)
	a, b := &tenant{name: "a"}, &tenant{name: "b", floor: claims}
	a.join(t, p)
	if !a.reserve(claims) {
		t.Fatal("an empty pool")
	}
	b.join(t, p)
	for range claims {
		if !b.claim(1) {
			t.Fatal("no claim on the floor")
		}
	}
	a.release(claims)
	a.gifts[0].Answered()
	for i := range claims {
		if len(b.ended) != i+1 || !b.ended[i].Accept() {
			t.Fatalf("%d claims have ended, with %d accepted", len(b.ended), i)
		}
	}
	if b.open != 0 {
		t.Errorf("%d claims have not ended", b.open)
	}
}

func TestUnlimited(t *testing.T) {
	for _, l := range []limit.Limit{{}, limit.Unlimited} {
		p, err := pool.New(l)
		if err != nil {
			t.Fatal(err)
		}
		n := &tenant{floor: 5}
		n.join(t, p)
		if !n.reserve(math.MaxInt64-10) || n.reserve(math.MaxInt64) || n.Claim(math.MaxInt64, nil) != nil {
			t.Error("sums wrap")
		}
	}
	if _, err := pool.New(limit.Of(-1)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a negative capacity: %v", err)
	}
}

// Members on goroutines of their own.
func TestPoolHammer(t *testing.T) {
	const capacity, members = 1000, 4
	p := newPool(t, capacity)
	var wg sync.WaitGroup // those who join later claim their floors from those who work
	for i := range members {
		type event struct {
			gift  *pool.Gift
			claim *pool.Claim
		}
		inbox := make(chan event, 4096) // more than all can send: a send never waits
		m, err := p.Join(int64(i)*20, func(g pool.Gift) { inbox <- event{gift: &g} })
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			var used int64
			serve := func(e event) {
				switch {
				case e.claim != nil && e.claim.Accept():
					used += e.claim.Bytes()
				case e.gift != nil:
					n := min(used, e.gift.Bytes+7)
					used -= n
					m.Release(n)
					e.gift.Answered()
				}
			}
			open := 0
			for k := range 2000 {
				for len(inbox) > 0 {
					serve(<-inbox)
				}
				bytes := int64(k*7%90 + 1)
				switch {
				case m.Reserve(bytes):
					used += bytes
				case open < 8 && m.Claim(bytes, func(c *pool.Claim) { inbox <- event{claim: c} }) != nil:
					open++
				default:
					n := min(used, bytes)
					used -= n
					m.Release(n)
				}
				if u, d := p.Use(); u > d || d > capacity {
					t.Errorf("used %d, drawn %d of %d", u, d, capacity)
				}
			}
			m.Release(used)
		})
	}
	wg.Wait()
}

// A claim asks the member that uses most above its floor at that moment, and costs the
// same among many that could give, too: it lists no others.
func TestClaimAmongMany(t *testing.T) {
	allocs := func(n int) float64 {
		p, err := pool.New(limit.Of(int64(3*n + 1)))
		if err != nil {
			t.Fatal(err)
		}
		var all []*pool.Member
		var asked *pool.Member
		for range n {
			var m *pool.Member
			if m, err = p.Join(0, func(g pool.Gift) { asked = m; m.Release(g.Bytes); g.Answered() }); err != nil || !m.Reserve(3) {
				t.Fatal(err, "no room")
			}
			all = append(all, m)
		}
		poor, err := p.Join(0, nil)
		if err != nil {
			t.Fatal(err)
		}
		rich := 0
		return testing.AllocsPerRun(50, func() {
			rich = (rich + n/3) % n
			if !all[rich].Reserve(1) { // the last byte there is
				t.Fatal("no room")
			}
			var over *pool.Claim
			if c := poor.Claim(1, func(c *pool.Claim) { over = c }); c == nil || over != c || !c.Accept() {
				t.Fatal("no claim")
			}
			if asked != all[rich] {
				t.Fatal("another was asked than the one that uses most")
			}
			poor.Release(1)
		})
	}
	if few, many := allocs(10), allocs(1000); many != few {
		t.Errorf("%v allocations among 10, %v among 1,000", few, many)
	}
}

// Q2: one that was asked and gave nothing has as much above its floor as before: the next
// claim asks it again, since it still holds most.
func TestAskedAgain(t *testing.T) {
	p := newPool(t, 100)
	most, less, poor := &tenant{name: "most"}, &tenant{name: "less"}, &tenant{name: "poor"}
	for _, n := range []*tenant{most, less, poor} {
		n.join(t, p)
	}
	if !most.reserve(60) || !less.reserve(40) || !poor.claim(50) || len(most.gifts) != 1 {
		t.Fatalf("the one with most is asked for %v", most.gifts)
	}
	most.gifts[0].Answered()
	if len(poor.ended) != 1 || poor.ended[0].Accept() {
		t.Fatal("nothing was given, and the claim has it")
	}
	if !poor.claim(5) || len(most.gifts) != 2 || len(less.gifts) != 0 {
		t.Errorf("the next claim asks %v of the one with most, %v of the other", most.gifts[1:], less.gifts)
	}
}
