package pool

import (
	"testing"

	"github.com/kiln-cache/kiln/limit"
)

// F6: one hold of the lock gives a bounded number of floors and claims what they wait for, however
// many wait; nobody else has any of the rest meanwhile, and in the end all have theirs and the
// others what is left.
func TestGrantsOfOneHold(t *testing.T) {
	const n = 3 * mostGranted
	p, err := New(limit.Of(20 * n))
	if err != nil {
		t.Fatal(err)
	}
	rich, err := p.Join(0, func(Gift) {})
	if err != nil || !rich.Reserve(20*n) {
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
		m, err := p.Join(0, func(Gift) {})
		if err != nil {
			t.Fatal(err)
		}
		claims = append(claims, m.Claim(5, func(*Claim) {}))
	}
	granted := func() (all int) {
		for i := range n {
			if floors[i].floor == 2 {
				all++
			}
			if claims[i].granted == 5 {
				all++
			}
		}
		return all
	}
	p.mu.Lock()
	rich.takeLocked(-10 * n)
	left := p.grantLocked(10 * n)
	p.mu.Unlock()
	asked := false
	rich.give = func(Gift) { asked = true }
	other, err := p.Join(0, func(Gift) {})
	if err != nil || !other.Could(3*n) || other.Could(3*n+1) || !other.Fits(3*n) || other.Fits(3*n+1) {
		t.Error("another can have not just what nobody waits for", err)
	}
	claim := other.Claim(3*n, func(*Claim) {})
	if claim == nil || asked {
		t.Fatal("a claim of what nobody waits for was refused, or others were asked for it")
	}
	p.mu.Lock()
	for want := mostGranted; left > 0; want += mostGranted {
		if all := granted(); all != want || floors[min(all, n)-1].floor != 2 || want > n && claims[want-n-1].granted != 5 {
			t.Errorf("%d have theirs, want the %d oldest", all, want)
		}
		p.mu.Unlock()
		if rich.Reserve(1) {
			t.Fatal("what is left for those that wait went to another")
		}
		p.mu.Lock()
		left = p.grantLocked(left)
	}
	p.mu.Unlock()
	if all := granted(); all != 2*n || p.mu.drawn != p.capacity || p.mu.wanted != 0 || !claim.Accept() {
		t.Errorf("%d have theirs of %d, %d bytes are drawn of %d, %d are wanted", all, 2*n, p.mu.drawn, p.capacity, p.mu.wanted)
	}
}

// What ends without what it wanted wants nothing any more: else a release would keep that from all.
func TestWantedEnds(t *testing.T) {
	p, err := New(limit.Of(10))
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil || m.Claim(3, func(*Claim) {}) == nil || p.mu.wanted != 4+3 {
		t.Fatal(err, p.mu.wanted)
	}
	rich.Release(1) // a part of the floor
	if p.mu.wanted != 3+3 {
		t.Errorf("%d are wanted, want 6", p.mu.wanted)
	}
	for len(gifts) > 0 {
		g := gifts[0]
		gifts = gifts[1:]
		g.Answered()
	}
	if p.mu.wanted != 3 {
		t.Errorf("%d are wanted when the claim has ended, want 3", p.mu.wanted)
	}
	if floor.Leave(); p.mu.wanted != 0 {
		t.Errorf("%d are wanted when the floor has gone, want none", p.mu.wanted)
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
		p.mu.Lock()
		p.renewLocked()
		if n := p.mu.members.Len(); n != want {
			t.Errorf("%d members, want %d", n, want)
		}
		p.mu.Unlock()
		m.claimed = 0
	}
}
