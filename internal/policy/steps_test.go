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

// dropped is how many groups are below the class of their cost.
func dropped(p *Policy) (n int) {
	for g := range p.Residents() {
		if g.class.exponent != g.cost {
			n++
		}
	}
	return n
}

// S6: after the capacity was lowered by far nearly all groups are late; each request has a
// few of them drop a class, and in the end all have.
func TestClassesDropInSteps(t *testing.T) {
	const many = 10_000
	for _, kind := range []Kind{LRU, Sieve, Duel} {
		p := full(t, kind, many, 30)
		if err := p.SetGroups(many / 64 / 2); err != nil { // a period is half of many
			t.Fatal(err)
		}
		p.Request(numbered(t, many-1))
		if n := dropped(p); n == 0 || n > few {
			t.Errorf("%s: one request has %d groups drop a class, want up to %d", kind, n, few)
		}
		for range many/few + few {
			p.Request(numbered(t, many-1))
		}
		for g := range p.Residents() {
			if late := p.requests-g.since >= halfLife*uint64(p.size); late {
				t.Fatalf("%s: %s has not dropped in %d requests", kind, g.Shape(), many/few)
			}
		}
	}
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
