package pool

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/limit"
)

// depth is how far down a line goes. It checks what each place says of those below.
func (p *place) depth(t require) int {
	if p == nil {
		return 0
	}
	for _, below := range []*place{p.older, p.newer} {
		if below != nil && (below.up != p || below.luck > p.luck) {
			t.Fatalf("a place does not stand below the one that it says")
		}
	}
	if sum := p.want + p.older.all() + p.newer.all(); p.sum != sum {
		t.Fatalf("the sum is %d, want %d", p.sum, sum)
	}
	return 1 + max(p.older.depth(t), p.newer.depth(t))
}

// all gives the members below m, and checks that m leans to the left.
func (m *Member) all(t require) []*Member {
	if m == nil {
		return nil
	}
	for _, below := range []*Member{m.at.left, m.at.right} {
		if below != nil && (below.at.up != m || below.aboveLocked() > m.aboveLocked()) {
			t.Fatalf("a member stands below one that uses less, or not where it says")
		}
	}
	if m.at.left.rank() < m.at.right.rank() || m.at.rank != m.at.right.rank()+1 {
		t.Fatalf("ranks %d and %d below %d", m.at.left.rank(), m.at.right.rank(), m.at.rank)
	}
	return append(append(m.at.left.all(t), m.at.right.all(t)...), m)
}

type require interface{ Fatalf(string, ...any) }

// A line gives what there is to the oldest, as if it had been handed out when it came.
func TestLineAgainstModel(t *testing.T) {
	type waiter struct {
		*place
		want, has int64 // has: what the model has handed out
	}
	rapid.Check(t, func(t *rapid.T) {
		var l line
		var all []*waiter
		some := func() *waiter { return all[rapid.IntRange(0, len(all)-1).Draw(t, "who")] }
		hand := func(n int64) (handed int64) {
			for _, w := range all {
				part := min(n-handed, w.want-w.has)
				w.has += part
				handed += part
			}
			return handed
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			n := rapid.Int64Range(1, 9).Draw(t, "bytes")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				all = append(all, &waiter{l.join(n), n, 0})
			case 1:
				if got, want := l.fill(3*n), hand(3*n); got != want {
					t.Fatalf("%d bytes have come in, want %d", got, want)
				}
			case 2, 3:
				if len(all) == 0 {
					continue
				}
				w := some()
				if got := l.take(w.place); got != w.has {
					t.Fatalf("one has got %d, want %d", got, w.has)
				}
				if w.want, w.has = w.want-w.has, 0; n%3 == 0 || w.want == 0 {
					l.leave(w.place)
					all = slices.DeleteFunc(all, func(o *waiter) bool { return o == w })
				}
			}
			l.root.depth(t)
		}
		for _, w := range all {
			if got := l.take(w.place); got != w.has {
				t.Fatalf("one has got %d in the end, want %d", got, w.has)
			}
			l.leave(w.place)
		}
		if l.root != nil || l.has != 0 {
			t.Fatalf("%d bytes are left in an empty line", l.has)
		}
	})
}

// F6: what one call touches, of those that wait and of those that may give, is as deep as they
// stand: however many wait, one release has all of them served, and however many have given
// nothing, they are asked again by the next claim, at once.
func TestManyStandLow(t *testing.T) {
	const n, low = 20_000, 100 // 4.3 ln n is 43
	var gifts []Gift
	p, err := New(limit.Of(10 * n))
	if err != nil {
		t.Fatal(err)
	}
	rich, err := p.Join(0, func(g Gift) { gifts = append(gifts, g) })
	if err != nil || !rich.Reserve(10*n) {
		t.Fatal(err)
	}
	var floors []*Member
	var claims []*Claim
	for range n {
		floor, err := p.Join(2, func(Gift) {})
		if err != nil {
			t.Fatal(err)
		}
		floors = append(floors, floor)
		claims = append(claims, floor.Claim(5, func(*Claim) {}))
	}
	if d := max(p.mu.owed.root.depth(t), p.mu.claims.root.depth(t)); d > low {
		t.Errorf("%d wait, up to %d deep", n, d)
	}
	rich.Release(7 * n)
	if floors[0].floor != 0 || claims[0].granted != 0 || p.mu.drawn != p.capacity || rich.Reserve(1) {
		t.Error("a release does not just put what there is aside for those that wait")
	}
	for i := n - 1; i >= 0; i-- { // each has what is its own
		if !floors[i].Reserve(2) || floors[i].Reserve(1) {
			t.Fatalf("floor %d has not what it was promised", i)
		}
		if claims[i].settleLocked(); claims[i].granted != 5 {
			t.Fatalf("claim %d has %d, want all that it needs", i, claims[i].granted)
		}
	}
	for _, g := range gifts {
		g.Answered()
	}
	if p.mu.owed.root != nil || p.mu.claims.root != nil {
		t.Error("some wait still")
	}

	for _, m := range floors {
		p.spendLocked(m)
	}
	p.mu.spent.root.Release(1) // others stand above it then
	if all := p.mu.spent.root.all(t); len(all) != n || p.mu.givers.root != rich {
		t.Errorf("%d are spent, want %d", len(all), n)
	}
	p.renewLocked()
	if all := p.mu.givers.root.all(t); len(all) != n+1 || p.mu.spent.root != nil {
		t.Errorf("%d are asked again, want %d", len(all), n+1)
	}
}

// What ends without what it wanted wants nothing any more: else a release would keep that from all.
func TestWantedEnds(t *testing.T) {
	p, err := New(limit.Of(10))
	if err != nil {
		t.Fatal(err)
	}
	wanted := func() uint64 { return p.mu.owed.wanted() + p.mu.claims.wanted() }
	var gifts []Gift
	rich, err := p.Join(0, func(g Gift) { gifts = append(gifts, g) })
	if err != nil || !rich.Reserve(10) {
		t.Fatal(err)
	}
	floor, err := p.Join(4, func(Gift) {})
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.Join(0, func(Gift) {})
	if err != nil || m.Claim(3, func(*Claim) {}) == nil || wanted() != 4+3 {
		t.Fatal(err, wanted())
	}
	rich.Release(1) // a part of the floor
	if floor.Fits(1); wanted() != 3+3 {
		t.Errorf("%d are wanted, want 6", wanted())
	}
	for len(gifts) > 0 {
		g := gifts[0]
		gifts = gifts[1:]
		g.Answered()
	}
	if wanted() != 3 {
		t.Errorf("%d are wanted when the claim has ended, want 3", wanted())
	}
	if floor.Leave(); wanted() != 0 || p.mu.owed.has != 0 {
		t.Errorf("%d are wanted when the floor has gone, and %d are there for it: want none", wanted(), p.mu.owed.has)
	}
}

// One that gives nothing to two claims is among those that are asked once, when the next claim is
// made; one that has left is not.
func TestSpentOnce(t *testing.T) {
	p, err := New(limit.Of(100))
	if err != nil {
		t.Fatal(err)
	}
	var gifts []Gift
	rich, err := p.Join(0, func(g Gift) { gifts = append(gifts, g) })
	if err != nil || !rich.Reserve(100) {
		t.Fatal(err)
	}
	m, err := p.Join(0, func(Gift) {})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2, 1} {
		gifts = nil
		one, two := m.Claim(10, func(*Claim) {}), m.Claim(10, func(*Claim) {})
		if one == nil || two == nil || len(gifts) != 2 {
			t.Fatalf("asked for %v", gifts)
		}
		for _, g := range gifts {
			g.Answered()
		}
		if i == 1 {
			rich.Release(100)
			rich.Leave()
		}
		if n := len(p.mu.spent.root.all(t)); n != want-1 {
			t.Errorf("%d are spent, want %d", n, want-1)
		}
		p.renewLocked()
		if n := len(p.mu.givers.root.all(t)); n != want || p.mu.members != want {
			t.Errorf("%d members, of which %d are asked: want %d", p.mu.members, n, want)
		}
		m.claimed = 0
	}
}
