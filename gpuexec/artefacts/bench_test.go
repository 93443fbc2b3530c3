package artefacts_test

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

func benchCache(b *testing.B, capacity int64) *artefacts.Cache {
	c, err := artefacts.Open(artefacts.Config{Entries: limit.Of(capacity)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func nothing(context.Context) (artefacts.Built, error) { return artefacts.Built{Cost: 1}, nil }

func keysOf(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "a canonical key of about forty bytes " + strconv.Itoa(i)
	}
	return keys
}

func filled(b *testing.B, n int) (*artefacts.Cache, []string) {
	c, keys := benchCache(b, int64(n)), keysOf(n)
	for _, k := range keys {
		l, _, err := c.Get(context.Background(), artefacts.Request{Key: k, Create: nothing})
		if err != nil {
			b.Fatal(err)
		}
		l.End()
	}
	return c, keys
}

func BenchmarkHit(b *testing.B) {
	const n = 1 << 14
	ctx := context.Background()
	b.Run("sync.Map", func(b *testing.B) {
		var m sync.Map
		keys := keysOf(n)
		for _, k := range keys {
			m.Store(k, k)
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if _, ok := m.Load(keys[i*7919&(n-1)]); !ok {
				b.Fatal("absent")
			}
			i++
		}
	})
	b.Run("Lookup", func(b *testing.B) {
		c, keys := filled(b, n)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if _, ok := c.Lookup(keys[i*7919&(n-1)]); !ok {
				b.Fatal("absent")
			}
			i++
		}
	})
	b.Run("LookupAcquire", func(b *testing.B) {
		c, keys := filled(b, n)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			r, _ := c.Lookup(keys[i*7919&(n-1)])
			l, ok := r.Acquire()
			if !ok {
				b.Fatal("absent")
			}
			l.End()
			i++
		}
	})
	b.Run("Get", func(b *testing.B) {
		c, keys := filled(b, n)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			l, _, err := c.Get(ctx, artefacts.Request{Key: keys[i*7919&(n-1)], Create: nothing})
			if err != nil {
				b.Fatal(err)
			}
			l.End()
			i++
		}
	})
	b.Run("Lookup/parallel", func(b *testing.B) {
		c, keys := filled(b, n)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				if _, ok := c.Lookup(keys[i*7919&(n-1)]); !ok {
					b.Fatal("absent")
				}
			}
		})
	})
}

// promise is what a miss is compared with: a map and a channel.
type promise struct {
	done  chan struct{}
	value any
	err   error
}

func BenchmarkMiss(b *testing.B) {
	ctx := context.Background()
	b.Run("promise", func(b *testing.B) {
		keys := keysOf(b.N)
		var m sync.Map
		b.ReportAllocs()
		b.ResetTimer()
		for _, k := range keys {
			p := &promise{done: make(chan struct{})}
			if old, loaded := m.LoadOrStore(k, p); loaded {
				p = old.(*promise)
				<-p.done
				continue
			}
			built, err := nothing(ctx)
			p.value, p.err = built.Value, err
			close(p.done)
		}
	})
	b.Run("Get", func(b *testing.B) {
		c, keys := benchCache(b, 1<<40), keysOf(b.N)
		b.ReportAllocs()
		b.ResetTimer()
		for _, k := range keys {
			l, _, err := c.Get(ctx, artefacts.Request{Key: k, Create: nothing})
			if err != nil {
				b.Fatal(err)
			}
			l.End()
		}
	})
}

// C3: evicting in a full cache costs the same in a large one.
func BenchmarkEvict(b *testing.B) {
	for _, n := range []int{1024, 16384} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			c, _ := filled(b, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				l, _, err := c.Get(context.Background(), artefacts.Request{Key: "new " + strconv.Itoa(i), Create: nothing})
				if err != nil {
					b.Fatal(err)
				}
				l.End()
				i++
			}
		})
	}
}
