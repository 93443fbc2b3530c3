package sessioncache_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln/sessioncache"
)

// A name of a group of 512 takes at most 32 bytes beyond its entry and its key.
func TestMemoryPerName(t *testing.T) {
	const (
		groups, names = 64, 512
		most          = 32
	)
	for _, interned := range []bool{false, true} {
		t.Run(fmt.Sprint("interned=", interned), func(t *testing.T) {
			s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.LimitOf(groups)})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close(bg) }()
			keys := make([]string, names)
			for i := range keys {
				keys[i] = fmt.Sprint("name.", i)
				if interned {
					s.Intern(keys[i])
				}
			}
			fill := func(from, to int) {
				for g := from; g < to; g++ {
					shape := mustShape(t, int64(g)+1)
					for _, key := range keys {
						if err := s.Set(bg, shape, key, sessioncache.Value{}, sessioncache.Options{}); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			fill(0, 1) // pools and logs
			before := heap()
			fill(1, groups)
			each := float64(heap()-before)/((groups-1)*names) - float64(sessioncache.EntrySize)
			t.Logf("%.1f bytes a name", each)
			if each <= 0 || each > most {
				t.Errorf("%.1f bytes a name beyond its entry and its key, want at most %d", each, most)
			}
			runtime.KeepAlive(s)
		})
	}
}

// S5: what a session comes to know of its requests takes at most 32 KiB. Where several
// cores request, each has a part of the log besides: 2.6 KiB, for at most 16 cores.
func TestMemoryOfRequests(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const sessions, requests, shapes, most = 16, 10_000, 32, 32 << 10
	var all []*sessioncache.Session
	open := func() *sessioncache.Session {
		s, err := sessioncache.Open(sessioncache.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(bg) })
		for i := range shapes {
			if err := s.Set(bg, mustShape(t, 8, int64(i)), "name", sessioncache.Value{}, sessioncache.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	use := func(s *sessioncache.Session) {
		for i := range requests {
			g, err := s.Group(bg, mustShape(t, 8, int64(i%shapes)))
			if err != nil {
				t.Fatal(err)
			}
			g.Close()
			if i%1000 == 0 {
				_, _ = s.Stream(bg) // a turn: the log takes no more than so many notes before one
			}
		}
		if all, err := s.Stream(bg); err != nil || len(all) != 8192 {
			t.Fatalf("a stream of %d, %v", len(all), err)
		}
	}
	use(open()) // pools
	for range sessions {
		all = append(all, open())
	}
	before := heap()
	for _, s := range all {
		use(s)
	}
	each := (int64(heap()) - int64(before)) / sessions
	t.Logf("%d bytes a session", each)
	if each > most {
		t.Errorf("%d bytes a session for %d requests, want at most %d", each, requests, most)
	}
	runtime.KeepAlive(all)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
