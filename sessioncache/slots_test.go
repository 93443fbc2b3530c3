package sessioncache_test

import (
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/sessioncache"
)

// A name looked up by id is never older than one looked up by name before, nor
// the other way round, while it is overwritten (C12, G1).
func TestSlotsAndNamesAgree(t *testing.T) {
	const last = 4000
	p := open(t, sessioncache.Config{})
	s, id := shape(t, 1), p.Intern("n")
	set := func(i int) {
		if err := p.Set(bg, s, "n", sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
			t.Error(err)
		}
	}
	set(0)
	g, _ := p.View(s)
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for seen := 0; seen < last; {
				for _, look := range []func() (sessioncache.Ref, bool){
					func() (sessioncache.Ref, bool) { return g.Lookup("n", 0) },
					func() (sessioncache.Ref, bool) { return g.LookupID(id) },
				} {
					r, ok := look()
					if !ok || r.Value().(int) < seen {
						t.Errorf("saw %v, %v after %d", r.Value(), ok, seen)
						return
					}
					seen = r.Value().(int)
				}
			}
		})
	}
	for i := 1; i <= last; i++ {
		set(i)
	}
	readers.Wait()
}
