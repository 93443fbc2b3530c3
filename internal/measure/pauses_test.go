package measure

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPauses(t *testing.T) {
	before := PausesSoFar()
	runtime.GC()
	if got := PausesSoFar().Since(before, 95); got <= 0 {
		t.Errorf("a collection paused for %v", got)
	}
	if got := before.Since(before, 95); got != 0 {
		t.Errorf("none paused for %v", got)
	}
	of := func(counts ...uint64) Pauses {
		return Pauses{&metrics.Float64Histogram{Counts: counts, Buckets: []float64{0, 1, 2, 3}}}
	}
	for percent, want := range map[uint64]time.Duration{50: 1, 90: 2, 91: 3} {
		if got := of(12, 7, 1).Since(of(7, 3, 0), percent); got != want*time.Second {
			t.Errorf("percentile %d is %v, want %d s", percent, got, want)
		}
	}
}
