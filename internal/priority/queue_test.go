package priority

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type thing struct{ rank, place int }

// The queue gives what a sorted list gives, whatever is put in, taken out and changed.
func TestQueueIsASortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New(func(a, b *thing) bool { return a.rank < b.rank }, func(x *thing) *int { return &x.place })
		var there, gone []*thing
		rank := func() int { return rapid.IntRange(0, 9).Draw(t, "rank") }
		one := func() *thing { return there[rapid.IntRange(0, len(there)-1).Draw(t, "which")] }
		left := func(x *thing) {
			there = slices.DeleteFunc(there, func(o *thing) bool { return o == x })
			gone = append(gone, x)
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				x := &thing{rank: rank()}
				there = append(there, x)
				q.Push(x)
			},
			"fix": func(t *rapid.T) {
				if len(there) == 0 {
					t.Skip()
				}
				x := one()
				x.rank = rank()
				q.Fix(x)
			},
			"remove": func(t *rapid.T) {
				if len(there) == 0 {
					t.Skip()
				}
				x := one()
				q.Remove(x)
				left(x)
			},
			"pop": func(t *rapid.T) {
				if len(there) == 0 {
					t.Skip()
				}
				least := slices.MinFunc(there, func(a, b *thing) int { return a.rank - b.rank })
				x := q.Pop()
				if x.rank != least.rank {
					t.Fatalf("popped rank %d, want %d", x.rank, least.rank)
				}
				left(x)
			},
			"": func(t *rapid.T) {
				if q.Len() != len(there) || len(q.Items()) != len(there) {
					t.Fatalf("%d items, want %d", q.Len(), len(there))
				}
				for i, x := range q.Items() {
					if x.place != i+1 || i > 0 && q.Items()[(i-1)/2].rank > x.rank {
						t.Fatalf("item %d of rank %d has place %d below rank %d", i, x.rank, x.place, q.Items()[max(i-1, 0)/2].rank)
					}
				}
				if len(there) > 0 && q.First() != q.Items()[0] {
					t.Fatal("the first is another")
				}
				for _, x := range gone {
					q.Fix(x) // which is not there
					q.Remove(x)
					if x.place != 0 {
						t.Fatalf("one that is not there has the place %d", x.place)
					}
				}
			},
		})
	})
}
