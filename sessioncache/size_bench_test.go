package sessioncache_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln/sessioncache"
)

// BenchmarkMemory: bytes per name beyond entry and key, groups of 512 names.
func BenchmarkMemory(b *testing.B) {
	const groups = 64
	for _, interned := range []bool{false, true} {
		b.Run(fmt.Sprint("interned=", interned), func(b *testing.B) {
			names := make([]string, benchNames)
			for i := range names {
				names[i] = fmt.Sprint("name.", i)
			}
			s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.LimitOf(groups)})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close(bg) }()
			if interned {
				for _, n := range names {
					s.Intern(n)
				}
			}
			fill := func(from, to int) {
				for g := from; g < to; g++ {
					shape := mustShape(b, int64(g)+1)
					for _, n := range names {
						if err := s.Set(bg, shape, n, sessioncache.Value{}, sessioncache.Options{}); err != nil {
							b.Fatal(err)
						}
					}
				}
			}
			fill(0, 1) // pools and logs
			before := heap()
			fill(1, groups)
			each := float64(heap()-before) / float64((groups-1)*benchNames)
			b.ReportMetric(each-float64(sessioncache.EntrySize), "B/name")
			b.ReportMetric(0, "ns/op")
			runtime.KeepAlive(s)
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
