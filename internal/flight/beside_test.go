package flight

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// forced begins n flights under one, each of which begins another, and says what it costs to ask
// which of them the last ones are within, and to end those.
func forced(t testing.TB, n, last int, key func(int) string) (asks, ends time.Duration) {
	root := New[int](context.Background(), "room", "root")
	all := make([]*Flight[int], n)
	for i := range all {
		all[i] = New[int](root.Context(), "room", key(i))
		New[int](all[i].Context(), "room", "under").Finish(0, nil, nil)
	}
	began := time.Now()
	for i := n - 1; i >= n-last; i-- {
		under := New[int](all[i].Context(), "room", "under")
		if Within(root.Context(), "room", key(i)) || !Within(under.Context(), "room", key(i)) {
			t.Fatal("within what is beside, or not within what is above")
		}
		under.Finish(0, nil, nil)
	}
	asked := time.Now()
	for i := n - 1; i >= n-last; i-- {
		all[i].Finish(0, nil, nil)
	}
	asks, ends = asked.Sub(began), time.Since(asked)
	for _, f := range append(all, root) {
		f.Finish(0, nil, nil)
	}
	if len(root.node.tree.running) > 0 {
		t.Fatal("what has ended is kept")
	}
	return asks, ends
}

func one(int) string { return "one" }

// F6, C6: many forced creations of one key by one creator cost as much as those of many keys.
func TestManyOfOneKey(t *testing.T) {
	const n, last = 20_000, 200
	asksMany, endsMany, asksOne, endsOne := time.Hour, time.Hour, time.Hour, time.Hour
	for range 5 {
		asks, ends := forced(t, n, last, strconv.Itoa)
		asksMany, endsMany = min(asksMany, asks), min(endsMany, ends)
		asks, ends = forced(t, n, last, one)
		asksOne, endsOne = min(asksOne, asks), min(endsOne, ends)
	}
	if asksOne > 20*asksMany || endsOne > 20*endsMany {
		t.Errorf("to ask of many of one key takes %v and to end them %v, of as many keys %v and %v", asksOne, endsOne, asksMany, endsMany)
	}
}

// C6: what is within what, in trees of any form.
func TestWithinAgainstModel(t *testing.T) {
	for range 200 {
		all := []*Flight[int]{New[int](context.Background(), "room", "0")}
		keys := 1 + rand.IntN(4)
		for range 60 {
			under := all[max(0, len(all)-1-rand.IntN(1+rand.IntN(len(all))))]
			all = append(all, New[int](under.Context(), "room", strconv.Itoa(rand.IntN(keys))))
			if f := all[rand.IntN(len(all))]; rand.IntN(3) == 0 {
				f.Finish(0, nil, nil)
			}
			of, key := all[rand.IntN(len(all))], strconv.Itoa(rand.IntN(keys))
			want := false
			for n := &of.node; n != nil; n = n.up {
				want = want || n.key == key && !n.ended
			}
			if got := Within(of.Context(), "room", key); got != want {
				t.Fatalf("within %s: %v, want %v", key, got, want)
			}
		}
		for _, f := range all {
			f.Finish(0, nil, nil)
		}
		if len(all[0].node.tree.running) > 0 {
			t.Fatal("what has ended is kept")
		}
	}
}

// BenchmarkForced is F6's: what each of many forced creations of one key by one creator costs.
func BenchmarkForced(b *testing.B) {
	for n := 100; n <= 100_000; n *= 10 {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				forced(b, n, n, one)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/flight")
		})
	}
}
