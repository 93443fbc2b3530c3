package stress

import (
	"context"
	"runtime/metrics"
	"time"
)

// growth is what must not grow while a scenario runs.
var growth = []struct {
	metric, what string
	slack        uint64 // that it may grow by, beside a quarter
}{
	{"/gc/heap/live:bytes", "bytes live on the heap", 16 << 20},
	{"/sched/goroutines:goroutines", "goroutines", 64},
}

// settles is the shortest run whose second quarter finds a scenario filled.
const settles = 5 * time.Second

// watch compares the highest values of the last quarter of a run with those of the
// second quarter, when a scenario has filled all that it fills: it takes some seconds
// to do so, and a shorter run tells nothing of growth.
func (r *run) watch(ctx context.Context, duration time.Duration) {
	const samples = 64
	now := make([]metrics.Sample, len(growth))
	for i, g := range growth {
		now[i].Name = g.metric
	}
	var most [4][]uint64
	for q := range most {
		most[q] = make([]uint64, len(growth))
	}
	tick := time.NewTicker(max(duration/samples, 1))
	defer tick.Stop()
	for begun := time.Now(); ; {
		select {
		case <-ctx.Done():
			for i, g := range growth {
				if duration < settles {
					break
				}
				if early, late := most[1][i], most[3][i]; early > 0 && late > early+early/4+g.slack {
					r.violated("%s grew from %d to %d", g.what, early, late)
				}
			}
			return
		case <-tick.C:
			metrics.Read(now)
			quarter := most[min(4*time.Since(begun)/max(duration, 1), 3)]
			for i := range now {
				quarter[i] = max(quarter[i], now[i].Value.Uint64())
			}
		}
	}
}
