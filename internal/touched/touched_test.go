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
}
