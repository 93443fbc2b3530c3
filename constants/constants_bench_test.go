package constants

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// promise is the plainest cache that computes once: what a miss is measured
// against.
type promise struct {
	done  chan struct{}
	value any
}

// ratio measures two ways of doing the same in turns of one run and reports the
// first's time and its ratio to the second.
func ratio(b *testing.B, unit string, ours, theirs func(i int)) {
	const turn = 500 // of one before the other, so that both see the same machine
	var took [2]time.Duration
	n := 0
	for b.Loop() {
		for i, do := range []func(int){ours, theirs} {
			began := time.Now()
			for j := range turn {
				do(n + j)
			}
			took[i] += time.Since(began)
		}
		n += turn
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(n), "ns/"+unit)
	b.ReportMetric(float64(took[0])/float64(took[1]), unit+"/sync.Map")
}

func benchEngine(b *testing.B) *Engine {
	c, err := Open(Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(context.Background()) })
	e, err := c.Engine(CPU, 0, "")
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// BenchmarkHit: a resident tensor is found and given back.
func BenchmarkHit(b *testing.B) {
	e := benchEngine(b)
	var plain sync.Map
	keys := make([]Key, 1024)
	for i := range keys {
		keys[i] = Key{ID: Versioned(fmt.Sprint("weight ", i), 1)}
		plain.Store(keys[i], i)
		out, err := e.GetOrAdd(context.Background(), keys[i], 8, Options{})
		if err != nil {
			b.Fatal(err)
		}
		l, err := out.Owner.Fulfil(i, 8, nil)
		if err != nil {
			b.Fatal(err)
		}
		l.End()
	}
	b.ReportAllocs()
	ratio(b, "hit", func(i int) {
		l, ok := e.Lookup(keys[i%len(keys)])
		if !ok {
			b.Fatal("absent")
		}
		l.End()
	}, func(i int) {
		if _, ok := plain.Load(keys[i%len(keys)]); !ok {
			b.Fatal("absent")
		}
	})
}

// BenchmarkHeld: a held reference is used.
func BenchmarkHeld(b *testing.B) {
	e := benchEngine(b)
	l, _, err := e.Get(context.Background(), Key{ID: "k"}, 8, Options{}, func(context.Context) (Value, error) {
		return Value{Any: 1, Bytes: 8}, nil
	})
	if err != nil {
		b.Fatal(err)
	}
	defer l.End()
	ref, ok := l.Hold(nil)
	if !ok {
		b.Fatal("not held")
	}
	defer ref.Drop()
	b.ReportAllocs()
	for b.Loop() {
		if _, live := ref.Use(); !live {
			b.Fatal("gone")
		}
	}
}

// BenchmarkMiss: a tensor that costs nothing to make becomes resident, against
// sync.Map with a promise.
func BenchmarkMiss(b *testing.B) {
	e := benchEngine(b)
	var plain sync.Map
	ctx := context.Background()
	b.ReportAllocs()
	ratio(b, "miss", func(i int) {
		l, _, err := e.Get(ctx, Key{Backend: uint64(i), ID: "k"}, 8, Options{}, func(context.Context) (Value, error) {
			return Value{Any: i, Bytes: 8}, nil
		})
		if err != nil {
			b.Fatal(err)
		}
		l.End()
	}, func(i int) {
		p := &promise{done: make(chan struct{})}
		if got, there := plain.LoadOrStore(Key{Backend: uint64(i), ID: "k"}, p); there {
			<-got.(*promise).done
			return
		}
		p.value = i
		close(p.done)
	})
}
