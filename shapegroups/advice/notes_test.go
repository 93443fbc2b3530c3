package advice_test

import (
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln/shapegroups/advice"
)

// F6: no request copies what the recorder has noted, also where the window has room for more
// after SetGroups, when the oldest lies in the middle of it.
func TestRecorderGrowsWithoutACopy(t *testing.T) {
	const step, most = 512, 64 << 10
	r := must(advice.NewRecorder(0, 20_000))
	was := uint64(0)
	grown := func(requests int) {
		t.Helper()
		for i := range requests {
			if i%step == 0 {
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				if got := now.TotalAlloc - was; was != 0 && got > most {
					t.Fatalf("%d bytes were made for %d requests", got, step)
				}
				was = now.TotalAlloc
			}
			r.Note(shape(i%10), shape(i%10), false)
		}
	}
	grown(20*20_000 + 3*step/2)
	if err := r.SetGroups(50_000); err != nil {
		t.Fatal(err)
	}
	grown(20*50_000 + 3*step/2)
}
