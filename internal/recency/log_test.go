package recency_test

import (
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/internal/recency"
)

// Notes come out in order, each once, whenever they are drained.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		full, told, since := 0, 0, 0
		l := recency.NewLog[int](func() { full++ })
		var noted, drained []*int
		t.Repeat(map[string]func(*rapid.T){
			"note": func(t *rapid.T) {
				for range rapid.IntRange(1, 700).Draw(t, "n") {
					v := len(noted)
					l.Note(&v, 0)
					noted = append(noted, &v)
					if len(noted)%128 == 0 {
						if since++; since == 8 {
							told++
						}
					}
				}
			},
			"drain": func(t *rapid.T) {
				l.Drain(func(v *int) { drained = append(drained, v) })
				since = 0
				if len(drained) != len(noted) {
					t.Fatalf("drained %d of %d", len(drained), len(noted))
				}
			},
			"": func(t *rapid.T) {
				for i, v := range drained {
					if v != noted[i] {
						t.Fatalf("note %d came out as %d", *v, i)
					}
				}
				if l.Count() != uint64(len(noted)) || full != told {
					t.Fatalf("%d notes: count %d, told %d times, want %d", len(noted), l.Count(), full, told)
				}
			},
		})
	})
}

// Many writers beside the one consumer: nothing is lost or doubled, and each
// writer's own notes keep their order.
func TestHammer(t *testing.T) {
	const writers, each = 8, 250 // fewer than may wait in a crowd
	type note struct{ writer, seq int }
	told := make(chan struct{}, 1) // the latest news is enough
	l := recency.NewLog[note](func() {
		select {
		case told <- struct{}{}:
		default:
		}
	})
	var done sync.WaitGroup
	for w := range writers {
		done.Go(func() {
			for i := range each {
				l.Note(&note{w, i}, 0)
			}
		})
	}
	ended := make(chan struct{})
	go func() { done.Wait(); close(ended) }()

	var next [writers]int
	take := func(n *note) {
		if next[n.writer] != n.seq {
			t.Errorf("writer %d: note %d after %d", n.writer, n.seq, next[n.writer]-1)
		}
		next[n.writer] = n.seq + 1
	}
	for running := true; running; {
		select {
		case <-told:
		case <-ended:
			running = false
		}
		l.Drain(take)
	}
	for w, n := range next {
		if n != each {
			t.Errorf("writer %d: %d notes of %d", w, n, each)
		}
	}
	if l.Count() != writers*each {
		t.Errorf("count = %d, want %d", l.Count(), writers*each)
	}
}

// Uses that do not overlap come out in the order of their calls (C12), whichever
// goroutines they were made on.
func TestNotesThatDoNotOverlap(t *testing.T) {
	const notes = 2000
	l := recency.NewLog[int](func() {})
	begin, returned := make(chan int), make(chan struct{})
	var done sync.WaitGroup
	for range 4 {
		done.Go(func() {
			for i := range begin {
				l.Note(&i, 0)
				returned <- struct{}{}
			}
		})
	}
	for i := range notes {
		begin <- i
		<-returned
	}
	close(begin)
	done.Wait()
	next := 0
	wrong := 0
	l.Drain(func(v *int) {
		if *v != next {
			wrong++
		}
		next++
	})
	if next != notes || wrong != 0 {
		t.Errorf("%d notes came out, %d of them at another place", next, wrong)
	}
}

func TestNoteAllocatesOncePerSegment(t *testing.T) {
	l := recency.NewLog[int](func() {})
	v := 1
	if n := testing.AllocsPerRun(1000, func() { l.Note(&v, 0) }); n != 0 {
		t.Errorf("a note allocates %v times", n)
	}
}

func BenchmarkNote(b *testing.B) {
	l := recency.NewLog[int](func() {})
	v := 1
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Note(&v, 0)
		}
	})
}

// F6: a consumer that does not come leaves no more than farthest notes to be drained
// at once; further ones are counted, and after the drain notes are taken again.
func TestNotesThatNobodyDrains(t *testing.T) {
	told := 0
	l := recency.NewLog[int](func() { told++ })
	const notes = 1 << 20
	v := 1
	for range notes {
		l.Note(&v, 0)
	}
	drain := func() (n int) {
		l.Drain(func(*int) { n++ })
		return n
	}
	if n := drain(); n > 1<<15+512 || n < 1<<15 {
		t.Errorf("%d notes came out, want 2^15", n)
	}
	if l.Count() != notes || told != 1 {
		t.Errorf("%d notes are counted, the consumer was told %d times", l.Count(), told)
	}
	for range 1000 {
		l.Note(&v, 0)
	}
	if n := drain(); n != 1000 || l.Count() != notes+1000 {
		t.Errorf("%d notes after the drain, %d in all", n, l.Count())
	}
}

// M2: notes that are only counted are counted by their kind, and among all that were begun.
func TestDroppedByKind(t *testing.T) {
	l := recency.NewLog[int](func() {})
	v := 1
	const notes = 1 << 17
	for i := range notes {
		l.Note(&v, i%4/3)
	}
	came := 0
	l.Drain(func(*int) { came++ })
	none, one := l.Dropped(0), l.Dropped(1)
	if l.Count() != notes || none+one != uint64(notes-came) || none < 2*one || one == 0 {
		t.Errorf("%d notes came out, %d and %d were dropped, %d are counted", came, none, one, l.Count())
	}
}
