package shapegroups_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/shapegroups"
)

// S8
func TestNext(t *testing.T) {
	for _, c := range []struct {
		overtaken []int
		ahead     int
		resident  []int
		want      int
	}{
		{nil, 4, nil, -1},
		{[]int{0, 0, 0}, 2, nil, 0},
		{[]int{0, 0, 0}, 2, []int{1, 2}, 1},
		{[]int{0, 0, 0}, 2, []int{0, 2}, 0},
		{[]int{0, 0, 0, 0}, 2, []int{3}, 0}, // beyond the oldest and 2 more
		{[]int{1, 0, 0}, 2, []int{2}, 2},
		{[]int{2, 0, 0}, 2, []int{2}, 0}, // overtaken often enough
		{[]int{0, 5, 0}, 2, []int{2}, 2}, // only the oldest is looked at
		{[]int{0, 0}, 0, []int{1}, 0},
	} {
		got := shapegroups.Next(c.overtaken, c.ahead, func(i int) bool { return slices.Contains(c.resident, i) })
		if got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// S8: a queue serves everyone once, in the order of its model, and lets nobody
// be overtaken more than N times.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ahead := rapid.IntRange(0, 4).Draw(t, "ahead")
		q := shapegroups.Queue[int]{Ahead: ahead}
		var line, passed []int // the model: who waits, and how often each was passed
		pushed := 0
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "push") {
				q.Push(pushed)
				line, passed = append(line, pushed), append(passed, 0)
				pushed++
				continue
			}
			resident := rapid.Uint64().Draw(t, "resident")
			got, ok := q.Pop(func(n int) bool { return resident>>(n%64)&1 == 1 })
			if ok != (len(line) > 0) {
				t.Fatalf("popped %v of %v", ok, line)
			}
			if !ok {
				continue
			}
			want := 0
			if passed[0] < ahead {
				for i := range min(len(line), ahead+1) {
					if resident>>(line[i]%64)&1 == 1 {
						want = i
						break
					}
				}
			}
			if got != line[want] {
				t.Fatalf("served %d of %v, want %d", got, line, line[want])
			}
			for i := range want {
				if passed[i]++; passed[i] > ahead {
					t.Fatalf("request %d was overtaken %d times with N = %d", line[i], passed[i], ahead)
				}
			}
			line, passed = slices.Delete(line, want, want+1), slices.Delete(passed, want, want+1)
			if q.Len() != len(line) || !slices.Equal(q.Waiting(), line) {
				t.Fatalf("waiting %v, want %v", q.Waiting(), line)
			}
		}
	})
}

// S8: the oldest is overtaken N times, whoever overtakes it, and then served.
func TestOvertakenNTimes(t *testing.T) {
	q := shapegroups.Queue[int]{Ahead: 2}
	for n := range 5 {
		q.Push(n)
	}
	var served []int
	for q.Len() > 0 {
		n, _ := q.Pop(func(n int) bool { return n > 0 })
		served = append(served, n)
	}
	if want := []int{1, 2, 0, 3, 4}; !slices.Equal(served, want) {
		t.Errorf("served %v, want %v", served, want)
	}
}
