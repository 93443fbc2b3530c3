package touched

import "testing"

// F6: the gauge knows the longest turn, and says when one has to end.
func TestGauge(t *testing.T) {
	var g Gauge
	for _, n := range []int{3, Most / 2, 7} {
		if !g.Left() {
			t.Fatal("a new turn has nothing left")
		}
		g.Add(n - 1)
		g.Add(1)
		if g.Left() != (n < Most/2) {
			t.Errorf("after %d things: %v", n, g.Left())
		}
		g.Turn()
	}
	if g.Most() != Most/2 {
		t.Errorf("the longest is %d, want %d", g.Most(), Most/2)
	}
	for range Most * Notes {
		g.Noted()
	}
	if !g.Left() {
		t.Error("the uses before a turn leave nothing of it")
	}
	g.Add(5)
	if g.Turn(); g.Most() != Most {
		t.Errorf("the longest with uses before it is %d, want %d", g.Most(), Most)
	}
	if g.Turn(); g.now != 0 || g.notes != 0 {
		t.Errorf("the next turn begins with %d things and %d uses", g.now, g.notes)
	}
}
