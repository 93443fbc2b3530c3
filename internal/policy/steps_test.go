package policy

import (
	"testing"

	"github.com/kiln-cache/kiln/shapegroups"
)

// full gives a policy with that many groups, of one cost class or of thirty, each asked
// for twice.
func full(t *testing.T, kind Kind, groups, classes int) *Policy {
	t.Helper()
	p, err := New(Config{Kind: kind, Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	for i := range groups {
		p.Request(numbered(t, i))
		p.Admit(numbered(t, i), 1, float64(uint64(1)<<(i%classes)))
	}
	for i := range groups {
		p.Request(numbered(t, i))
	}
	return p
}

func numbered(t *testing.T, i int) shapegroups.Shape {
	t.Helper()
	s, err := shapegroups.N(int64(i))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// S3: Sift ends at once where there is no time left, whatever was used again, and goes on
// from there: in the end a victim is found in one step.
func TestSiftEndsInTime(t *testing.T) {
	const many, turn = 10_000, 100
	for _, kind := range Kinds() {
		p, other := full(t, kind, many, 1), full(t, kind, many, 1)
		calls, steps := 0, 0
		standing := func(*Group) Standing { steps++; return Free }
		for range 2 * many / turn {
			steps = 0
			p.Sift(standing, func() bool { calls++; return steps < turn })
			if calls > turn+1 || steps > turn {
				t.Fatalf("%s: one call asked %d times for the time, and looked at %d groups, want %d", kind, calls, steps, turn)
			}
			calls = 0
		}
		steps = 0
		got, want := p.Victim(standing, Busy), other.Victim(nil, Busy)
		if steps > 1 || got.Shape() != want.Shape() {
			t.Errorf("%s: %s is found in %d steps, want %s in one", kind, got.Shape(), steps, want.Shape())
		}
	}
}
