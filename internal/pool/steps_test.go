package pool_test

import (
	"testing"

	"github.com/kiln-cache/kiln/internal/pool"
)

// crowded is a pool that n tenants have filled, with each bytes, and where they have to answer.
func crowded(t require, n int, each int64) (p *pool.Pool, asked *[]int, all []*tenant) {
	p, asked = newPool(t, int64(n)*each), new([]int)
	for i := range n {
		m := new(tenant)
		var err error
		m.Member, err = p.Join(0, func(g pool.Gift) { m.gifts = append(m.gifts, g); *asked = append(*asked, i) })
		if err != nil || !m.reserve(each) {
			t.Fatalf("tenant %d: %v", i, err)
		}
		all = append(all, m)
	}
	return p, asked, all
}

// answers has those who were asked answer, in their order, and reports whether never more
// than MostAsked were asked at once. Each gives part of what it is asked for.
func answers(asked *[]int, all []*tenant, gives func(i int, bytes int64) int64) bool {
	few := true
	for at := 0; at < len(*asked); at++ {
		few = few && len(*asked)-at <= pool.MostAsked
		m := all[(*asked)[at]]
		g := m.gifts[0]
		m.gifts = m.gifts[1:]
		m.release(gives((*asked)[at], g.Bytes))
		g.Answered()
	}
	return few
}

// F6, Q1: however many have to give for a floor, the one who joins, and each who answers, asks
// a bounded number. In the end all have given, once.
func TestFloorIsAskedForInSteps(t *testing.T) {
	const n = 10 * pool.MostAsked
	p, asked, all := crowded(t, n, 3)
	m := &tenant{name: "m", floor: 3 * n}
	m.join(t, p)
	if !m.claim(2 * n) {
		t.Fatal("no claim on the floor")
	}
	if !answers(asked, all, func(_ int, bytes int64) int64 { return bytes }) || len(*asked) != n {
		t.Errorf("%d were asked of %d, too many of them at once", len(*asked), n)
	}
	if len(m.ended) != 1 || !m.ended[0].Accept() || !m.reserve(n) {
		t.Error("all was given, and the floor is not there")
	}
}

// F6, Q1: so is a claim on what a floor still lacks; what others release meanwhile is not
// asked for.
func TestClaimOnAnOwedFloorAsksInSteps(t *testing.T) {
	const n = 10 * pool.MostAsked
	p, asked, all := crowded(t, n, 3)
	m := &tenant{name: "m", floor: 3 * n}
	m.join(t, p)
	if !answers(asked, all, func(int, int64) int64 { return 0 }) || len(*asked) != n {
		t.Errorf("%d were asked of %d, of whom none gave", len(*asked), n)
	}
	*asked = nil
	if !m.claim(3*n - 300) {
		t.Fatal("no claim on a floor that is owed")
	}
	few := answers(asked, all, func(i int, bytes int64) int64 {
		for _, other := range all[:200] { // they close
			other.release(other.used)
		}
		return min(bytes, all[i].used)
	})
	if !few || len(*asked) > n-300+pool.MostAsked {
		t.Errorf("%d were asked, too many at once or beside what was there", len(*asked))
	}
	if len(m.ended) != 1 || !m.ended[0].Accept() {
		t.Error("all was given, and the claim did not get it")
	}
}

// Q2: one that gave less than it was asked for is not asked again for the same: the others are.
func TestWhoHasAnsweredIsNotAskedAgain(t *testing.T) {
	const n = 2 * pool.MostAsked
	p, asked, all := crowded(t, n, 3)
	m := &tenant{name: "m", floor: 3 * n}
	m.join(t, p)
	answers(asked, all, func(i int, bytes int64) int64 {
		if i < pool.MostAsked/2 {
			return 0
		}
		return bytes
	})
	times := make(map[int]int)
	for _, i := range *asked {
		times[i]++
	}
	if len(times) != n || len(*asked) != n {
		t.Errorf("%d were asked of %d, in all %d times", len(times), n, len(*asked))
	}
	if !m.reserve(3*(n-pool.MostAsked/2)) || m.reserve(1) {
		t.Error("the floor has not what was given")
	}
}

// Q2: a claim that others cannot cover leaves them as they were: the next asks for all that
// they have.
func TestRefusedClaimAsksNobody(t *testing.T) {
	p := newPool(t, 100)
	a, b, m := &tenant{name: "a"}, &tenant{name: "b", floor: 80}, &tenant{name: "m", floor: 20}
	for _, n := range []*tenant{a, b} {
		n.join(t, p)
	}
	if !b.reserve(80) || !a.reserve(20) {
		t.Fatal("an empty pool")
	}
	m.join(t, p)
	a.gifts[0].Answered() // all that a has is in use
	if m.claim(30) {
		t.Error("a claim of 30 where others have 20 above their floors")
	}
	if !m.claim(20) || len(a.gifts) != 2 || a.gifts[1].Bytes != 20 {
		t.Errorf("the next claim asks a for %v", a.gifts[1:])
	}
}

// Q2: what was granted to a claim that failed, or that did not need it, goes to the next at once: nobody
// may ever release more.
func TestAcceptPassesOnWhatWasGranted(t *testing.T) {
	p := newPool(t, 100)
	a, b, c := &tenant{name: "a"}, &tenant{name: "b"}, &tenant{name: "c"}
	for _, n := range []*tenant{a, b, c} {
		n.join(t, p)
	}
	if !a.reserve(100) || !b.claim(40) || !c.claim(30) || len(a.gifts) != 2 {
		t.Fatalf("a has all, and was asked for %v", a.gifts)
	}
	a.release(30)
	a.gifts[0].Answered() // 10 less than b wants
	if len(b.ended) != 1 || b.ended[0].Accept() {
		t.Fatal("b has more than was given")
	}
	if a.reserve(1) {
		t.Error("what was given for b is a's again, while c waits")
	}
	a.gifts[1].Answered()
	if len(c.ended) != 1 || !c.ended[0].Accept() {
		t.Error("c has not got what b could not use")
	}
}

// F6, Q2: one release that gives to very many claims gives to all of them, the oldest first.
func TestReleaseForMany(t *testing.T) {
	const n = 2_000
	p := newPool(t, 10*n)
	rich, poor := &tenant{name: "rich"}, &tenant{name: "poor"}
	rich.join(t, p)
	poor.join(t, p)
	if !rich.reserve(10 * n) {
		t.Fatal("an empty pool")
	}
	for range n {
		if !poor.claim(5) {
			t.Fatal("no claim")
		}
	}
	rich.release(5*n - 500)
	for _, g := range rich.gifts {
		g.Answered()
	}
	for i, c := range poor.ended {
		if ok := c.Accept(); ok != (i < n-100) {
			t.Fatalf("claim %d of %d, of which the last 100 get nothing: %v", i, n, ok)
		}
	}
}

// F6, Q1: however many have nothing to give, the claim goes on to those that have. They are asked
// again for the next claim, but for those that have left.
func TestGiverBehindManyThatGiveNothing(t *testing.T) {
	const n = 10 * pool.MostAsked
	p, asked, all := crowded(t, n, 3)
	giver := all[n-1] // the last of equals, which has the least by now
	giver.release(1)
	keep := func(i int, bytes int64) int64 {
		if all[i] != giver {
			return 0
		}
		return bytes
	}
	m := &tenant{name: "m", floor: 3 * n}
	m.join(t, p)
	if !answers(asked, all, keep) || len(*asked) != n || giver.used != 0 {
		t.Fatalf("%d were asked of %d, and the one that gives has %d left", len(*asked), n, giver.used)
	}
	if !m.reserve(3) || m.reserve(1) {
		t.Error("the floor has not what was given")
	}
	all[0].release(3)
	all[0].Leave()
	*asked = nil
	if !m.claim(3*n-3) || !answers(asked, all, keep) || len(*asked) != n-2 {
		t.Errorf("%d were asked for the next claim, want %d", len(*asked), n-2)
	}
	if len(m.ended) != 1 || m.ended[0].Accept() {
		t.Error("nothing was given for the claim, and it has that")
	}
}

// Q1, Q2: one that holds most, and may give nothing of it, keeps neither a floor nor a claim from what
// others can do without.
func TestGiverBehindOneThatHoldsMost(t *testing.T) {
	for _, floor := range []int64{0, 10} {
		p := newPool(t, 100)
		most, giver, m := &tenant{name: "most"}, &tenant{name: "giver"}, &tenant{name: "m", floor: floor}
		for _, n := range []*tenant{most, giver} {
			n.join(t, p)
		}
		if !most.reserve(60) || !giver.reserve(40) {
			t.Fatal("an empty pool")
		}
		m.join(t, p)
		if floor == 0 && !m.claim(10) {
			t.Fatal("no claim")
		}
		if len(most.gifts) != 1 || len(giver.gifts) != 0 {
			t.Fatalf("asked are %v and %v: want the one that holds most", most.gifts, giver.gifts)
		}
		most.gifts[0].Answered()
		if len(giver.gifts) != 1 || giver.gifts[0].Bytes != 10 {
			t.Fatalf("a floor of %d: the other is asked for %v when the one that holds most has given nothing", floor, giver.gifts)
		}
		giver.release(10)
		giver.gifts[0].Answered()
		if floor == 0 && (len(m.ended) != 1 || !m.ended[0].Accept()) || floor > 0 && !m.reserve(10) {
			t.Errorf("a floor of %d: what was given is not there", floor)
		}
	}
}

// Q2: who has nothing to give is asked by few for bytes beyond a floor, however many they are: each
// value that does not fit would ask all of them.
func TestClaimBeyondAFloorAsksFewInVain(t *testing.T) {
	p, asked, all := crowded(t, 10*pool.MostAsked, 3)
	m := &tenant{name: "m"}
	m.join(t, p)
	if !m.claim(1) || !answers(asked, all, func(int, int64) int64 { return 0 }) || len(*asked) != pool.MostAsked {
		t.Errorf("%d were asked, want %d", len(*asked), pool.MostAsked)
	}
	if len(m.ended) != 1 || m.ended[0].Accept() {
		t.Error("nothing was given for the claim, and it has that")
	}
}

// Q2: a claim that was counted on its member's floor asks for no more when the member has used that
// for something else.
func TestClaimAsksForNoMoreThanAtFirst(t *testing.T) {
	p := newPool(t, 100)
	a, b, m := &tenant{name: "a"}, &tenant{name: "b"}, &tenant{name: "m", floor: 10}
	for _, n := range []*tenant{a, b, m} {
		n.join(t, p)
	}
	if !a.reserve(46) || !b.reserve(44) || !m.claim(20) || !m.reserve(10) {
		t.Fatal("an empty pool")
	}
	a.release(10)
	a.gifts[0].Answered()
	if len(a.gifts) != 1 || len(b.gifts) != 0 || len(m.ended) != 1 || m.ended[0].Accept() {
		t.Errorf("10 are to be given: a was asked for %v, b for %v", a.gifts, b.gifts)
	}
}
