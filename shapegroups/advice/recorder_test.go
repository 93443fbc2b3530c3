package advice_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/shapegroups/advice"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func shape(n int) shapegroups.Shape { return must(shapegroups.N(int64(n))) }

// S5: one warning for a working set above the capacity, none for one that fits.
func TestThrash(t *testing.T) {
	for groups, want := range map[int]int{4: 1, 12: 0} {
		for _, kind := range policy.Kinds() {
			p := must(policy.New(policy.Config{Kind: kind, Groups: groups}))
			r := must(advice.NewRecorder(advice.DefaultRequests, groups))
			for i := range 600 {
				s := shape(i % 12)
				hit := p.Request(s) != nil
				if !hit {
					if p.Len() >= groups {
						p.Remove(p.Victim(nil, policy.Busy))
					}
					p.Admit(s, 1, 1)
				}
				r.Note(s, s, !hit)
			}
			if r.Warnings() != want {
				t.Errorf("%s, %d groups: %d warnings, want %d", kind, groups, r.Warnings(), want)
			}
		}
	}
}

// S5: what is resident when bytes are short stands for the capacity, and is taken again
// only after as many requests as are looked at.
func TestThrashForBytes(t *testing.T) {
	r := must(advice.NewRecorder(0, math.MaxInt))
	for i := range 600 {
		r.Note(shape(i%12), shape(i%12), true)
		r.Full(4 + i%2*100) // now small groups, now large ones
	}
	if r.Warnings() != 1 {
		t.Errorf("%d warnings, want 1", r.Warnings())
	}
}

// S5: the next warning comes only after the first has ended.
func TestThrashAgain(t *testing.T) {
	r := must(advice.NewRecorder(0, 2))
	var raised []int
	for i := range 400 {
		s := shape(i % 5)
		if r.Note(s, s, i/100%2 == 0) { // all miss, then all hit, and so on
			raised = append(raised, i)
		}
	}
	// Within 40 requests: the third shape asked twice is request 7, all misses;
	// the misses begin anew at 200 and are over half of 40 with the 21st.
	if want := []int{7, 220}; !slices.Equal(raised, want) {
		t.Errorf("raised at %v, want %v", raised, want)
	}
	none := must(advice.NewRecorder(0, math.MaxInt))
	for i := range 100 {
		if none.Note(shape(i%50), shape(i%50), true) {
			t.Fatal("a session without a limit thrashes")
		}
	}
}

// S5: a recorder warns, and remembers, as its definition says, whatever becomes of
// the capacity.
func TestRecorderEqualsModel(t *testing.T) {
	type note struct {
		asked, compiled shapegroups.Shape
		missed          bool
	}
	rapid.Check(t, func(t *rapid.T) {
		keep := rapid.IntRange(0, 50).Draw(t, "keep")
		groups := rapid.IntRange(0, 3).Draw(t, "groups")
		r := must(advice.NewRecorder(keep, groups))
		var kept, all []note // all: as far back as the recorder can know
		room := 20 * groups
		thrashing := false
		for range rapid.IntRange(1, 12).Draw(t, "phases") {
			if rapid.IntRange(0, 3).Draw(t, "change") == 0 {
				groups = rapid.IntRange(0, 3).Draw(t, "groups")
				if err := r.SetGroups(groups); err != nil {
					t.Fatal(err)
				}
				room = max(room, 20*groups)
			}
			shapes := rapid.IntRange(1, 8).Draw(t, "shapes")
			misses := rapid.IntRange(0, 4).Draw(t, "misses")
			for range rapid.IntRange(1, 80).Draw(t, "requests") {
				n := rapid.IntRange(0, shapes-1).Draw(t, "n")
				in := note{shape(n + 100), shape(n), rapid.IntRange(0, 4).Draw(t, "miss") < misses}
				warned := r.Note(in.asked, in.compiled, in.missed)
				if all = append(all, in); len(all) > room {
					all = all[1:]
				}
				if kept = append(kept, in); len(kept) > keep {
					kept = kept[1:]
				}
				missed, twice, counts := 0, 0, map[shapegroups.Shape]int{}
				window := all[max(0, len(all)-20*groups):]
				for _, x := range window {
					if x.missed {
						missed++
					}
					if counts[x.compiled]++; counts[x.compiled] == 2 {
						twice++
					}
				}
				now := groups > 0 && 2*missed > len(window) && twice > groups
				if warned != (now && !thrashing) {
					t.Fatalf("warned %v, thrashing %v before and %v now", warned, thrashing, now)
				}
				if groups > 0 {
					thrashing = now
				}
			}
			all := r.Part(0, math.MaxInt)
			asked, compiled := all.Asked, all.Compiled
			if len(asked) != len(kept) || len(compiled) != len(kept) {
				t.Fatalf("%d requests kept, want %d", len(asked), len(kept))
			}
			for i, x := range kept {
				if asked[i] != x.asked || compiled[i] != x.compiled {
					t.Fatalf("request %d is %v, %v, want %v", i, asked[i], compiled[i], x)
				}
			}
		}
	})
}

func TestRecorderErrors(t *testing.T) {
	if _, err := advice.NewRecorder(-1, 1); !errors.Is(err, advice.ErrInvalid) {
		t.Error(err)
	}
	if _, err := advice.NewRecorder(1, -1); !errors.Is(err, advice.ErrInvalid) {
		t.Error(err)
	}
	if err := must(advice.NewRecorder(1, 1)).SetGroups(-1); !errors.Is(err, advice.ErrInvalid) {
		t.Error(err)
	}
}

// BenchmarkNote is what a recorder adds to a request that hits.
func BenchmarkNote(b *testing.B) {
	r := must(advice.NewRecorder(advice.DefaultRequests, 64))
	s := shape(5)
	b.ReportAllocs()
	for b.Loop() {
		r.Note(s, s, false)
	}
}

// S5: what stands for the capacity is kept for a window of what it is to become, however
// the number of groups goes up and down meanwhile: each change costs a look at the window.
func TestFullHeedsTheChangeBefore(t *testing.T) {
	const large, small = 100, 10
	r := must(advice.NewRecorder(0, math.MaxInt))
	for i := range 20 * large {
		r.Note(shape(i), shape(i), false)
	}
	r.Full(large)
	for i := range 20*small - 1 {
		r.Full(small)
		r.Note(shape(i%50), shape(i%50), true)
	}
	if r.Warnings() != 0 {
		t.Fatal("50 shapes thrash where 100 groups fit")
	}
	for i := range 20 * small {
		r.Full(small)
		r.Note(shape(i%50), shape(i%50), true)
	}
	if r.Warnings() != 1 {
		t.Errorf("%d warnings where 10 groups fit, want 1", r.Warnings())
	}
}

// F6, S5: a window that begins anew is counted with the requests to come, a few with each, and
// has its warning then.
func TestWindowIsCountedInSteps(t *testing.T) {
	const groups, atOnce, few = 5_000, 128, 4
	const window = 20 * groups
	r := must(advice.NewRecorder(0, groups))
	for i := range window {
		r.Note(shape(i%window/2), shape(i%window/2), false) // each twice
	}
	if err := r.SetGroups(groups - 1); err != nil {
		t.Fatal(err)
	}
	if n, _ := r.Looked(); n > atOnce {
		t.Errorf("SetGroups looks at %d", n)
	}
	missed := func() {
		t.Helper()
		before, counted := r.Looked()
		r.Note(shape(0), shape(0), true)
		if after, now := r.Looked(); after-before > few+1 || now-counted > atOnce+few+1 {
			t.Fatalf("one request has %d looked at and %d counted", after-before, now-counted)
		}
	}
	for range window * 2 / 3 {
		missed()
	}
	if n, _ := r.Looked(); n != 20*(groups-1) || r.Warnings() != 1 {
		t.Errorf("%d are looked at, %d warnings; want %d, 1", n, r.Warnings(), 20*(groups-1))
	}
}

// S5: a stream of more shapes than two bytes can number is kept as it was.
func TestRecorderOfManyShapes(t *testing.T) {
	const keep = 1<<16 + 1000
	r := must(advice.NewRecorder(keep, math.MaxInt))
	for i := range 2*keep + 7 {
		r.Note(shape(i), shape(i/2), false)
	}
	all := r.Part(0, math.MaxInt)
	asked, compiled := all.Asked, all.Compiled
	if len(asked) != keep {
		t.Fatalf("%d requests kept, want %d", len(asked), keep)
	}
	for i := range asked {
		if n := keep + 7 + i; asked[i] != shape(n) || compiled[i] != shape(n/2) {
			t.Fatalf("request %d is %v, %v", i, asked[i], compiled[i])
		}
	}
}

// S5: what is kept is copied in parts. Where the first of a part is not kept any more, it
// begins with the oldest that is, and says so.
func TestRecorderPart(t *testing.T) {
	r, err := advice.NewRecorder(5, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 { // 3 to 7 are kept
		r.Note(shape(i), shape(10+i), true)
	}
	for _, c := range []struct{ from, most, first, n int }{{0, 2, 3, 2}, {3, 9, 3, 5}, {5, 2, 5, 2}, {7, 4, 7, 1}, {8, 4, 8, 0}, {9, 4, 8, 0}} {
		p := r.Part(c.from, c.most)
		if p.First != c.first || p.Total != 8 || len(p.Asked) != c.n || len(p.Compiled) != c.n {
			t.Errorf("%+v: %+v", c, p)
			continue
		}
		for i := range p.Asked {
			if p.Asked[i] != shape(c.first+i) || p.Compiled[i] != shape(10+c.first+i) {
				t.Errorf("%+v: at %d: %v, %v", c, i, p.Asked[i], p.Compiled[i])
			}
		}
	}
}
