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
	if all, free := granted(), p.capacity-p.mu.drawn; all != 2*n || free != 3*n {
		t.Errorf("%d have theirs of %d, and %d bytes are free of %d", all, 2*n, free, 3*n)
	}
}
