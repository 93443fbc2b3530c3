package forward_test

import (
	"math"
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln"
)

// A run makes little garbage but its output, of the shape before it and of another, so that a
// collector that is kept busy by others has it wait for little.
func TestRunAllocatesLittle(t *testing.T) {
	b := open(t, tinyList(perToken))
	m, _ := b.packed(kiln.SessionConfig{})
	long, short := b.ids(0, 512), b.ids(1, 500)
	output := 4 * uint64(len(b.run(m, long).Output))
	b.run(m, short)
	least := func(run func()) (bytes, objects uint64) { // others allocate at times
		bytes, objects = math.MaxUint64, math.MaxUint64
		for range 20 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			run()
			runtime.ReadMemStats(&after)
			bytes, objects = min(bytes, after.TotalAlloc-before.TotalAlloc), min(objects, after.Mallocs-before.Mallocs)
		}
		return bytes, objects
	}
	for name, c := range map[string]struct {
		run     func()
		outputs uint64
		objects uint64
	}{
		"of the shape before":   {func() { b.run(m, short) }, output, 90},
		"of two shapes in turn": {func() { b.run(m, long); b.run(m, short) }, 2 * output, 450},
	} {
		if bytes, objects := least(c.run); bytes > c.outputs*5/4 || objects > c.objects {
			t.Errorf("%s: %d bytes and %d objects, want at most a quarter more than the %d of the outputs, and %d objects", name, bytes, objects, c.outputs, c.objects)
		}
	}
}
