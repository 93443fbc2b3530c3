package policy_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/shapegroups"
)

// fataler is a test of either kind, rapid's or Go's.
type fataler interface {
	Fatalf(format string, args ...any)
}

// session drives a policy and its model as a session does: over capacity a group
// goes first, then the new one is registered.
type session struct {
	t        fataler
	real     *policy.Policy
	model    *model
	capacity int
	busy     map[shapegroups.Shape]policy.Standing

	snapshot *policy.Snapshot // being taken
	then     []byte           // what it is to save
}

func newSession(t fataler, c policy.Config) *session {
	return &session{
		t:        t,
		real:     must(policy.New(c)),
		model:    newModel(c),
		capacity: c.Groups,
		busy:     map[shapegroups.Shape]policy.Standing{},
	}
}

func (s *session) standing(shape shapegroups.Shape) policy.Standing { return s.busy[shape] }

func (s *session) ask(g *policy.Group) policy.Standing { return s.busy[g.Shape()] }

// evict takes one group out, the same in both; false: none may go.
func (s *session) evict() bool {
	return s.out(s.real.Victim(s.ask, policy.Busy), s.model.victim(s.standing, policy.Busy, 0))
}

// give takes one out that holds bytes, in turns that look at so many groups.
func (s *session) give(most policy.Standing, turn int) bool {
	for ; ; turn++ { // what is fixed is looked at in each
		looks := 0
		got, over := s.real.VictimOfBytes(s.ask, most, func() bool { looks++; return looks <= turn })
		if over {
			return s.out(got, s.model.victim(s.standing, most, 1))
		}
	}
}

func (s *session) out(got *policy.Group, want *entry) bool {
	if got == nil || want == nil {
		if got != nil || want != nil {
			s.t.Fatalf("victim %v, model %v", got, want)
		}
		return false
	}
	if got.Shape() != want.shape {
		s.t.Fatalf("victim %s, model %s", got.Shape(), want.shape)
	}
	s.real.Remove(got)
	s.model.remove(want.shape)
	return true
}

func (s *session) request(shape shapegroups.Shape, bytes int64, seconds float64) {
	g := s.real.Resident(shape)
	if g != nil && bytes%2 == 0 {
		s.real.Use(g) // by handle and by name are the same
	} else if (s.real.Request(shape) != nil) != (g != nil) {
		s.t.Fatalf("request of %s disagrees with residence", shape)
	}
	if hit := s.model.request(shape); hit != (g != nil) {
		s.t.Fatalf("%s resident %v, model %v", shape, g != nil, hit)
	}
	if g != nil || s.capacity == 0 {
		return
	}
	if s.real.Len() >= s.capacity {
		worth := s.real.Worth(shape, s.ask)
		if want := s.model.isWorth(shape, s.standing); worth != want {
			s.t.Fatalf("worth of %s is %v, model %v", shape, worth, want)
		}
		if !worth || !s.evict() {
			return
		}
	}
	s.real.Admit(shape, bytes, seconds)
	s.model.admit(shape, bytes, seconds)
}

// step copies some groups of the snapshot that is being taken, which has to be that of the
// moment when it began.
func (s *session) step(groups int) {
	if s.snapshot == nil || !s.snapshot.Copy(func() bool { groups--; return groups >= 0 }) {
		return
	}
	if saved := s.snapshot.Encode(); !bytes.Equal(saved, s.then) {
		s.t.Fatalf("the snapshot\n%x\nwas when it began\n%x", saved, s.then)
	}
	s.snapshot = nil
}

// begin has a snapshot be taken from now on, if none is.
func (s *session) begin() {
	if s.snapshot == nil {
		s.then = s.real.Save()
		s.snapshot = s.real.Snapshot(func() bool { return true })
	}
}

// check compares what both hold.
func (s *session) check() {
	if s.real.Len() > s.capacity {
		s.t.Fatalf("%d groups above capacity %d", s.real.Len(), s.capacity)
	}
	n := 0
	for g := range s.real.Residents() {
		n++
		if e := s.model.known[g.Shape()]; e == nil || !e.resident || !g.Resident() {
			s.t.Fatalf("%s is resident, not in the model", g.Shape())
		}
	}
	if want := len(s.model.residents()); n != want || s.real.Len() != want {
		s.t.Fatalf("%d residents, Len %d, model %d", n, s.real.Len(), want)
	}
	if s.real.Remembered() != len(s.model.known) {
		s.t.Fatalf("%d shapes known, model %d", s.real.Remembered(), len(s.model.known))
	}
}

// Every policy chooses as its naive model does, whatever is announced, busy,
// resized, saved and loaded (S1, S2, S3, S6, S7, S9).
func TestPolicyEqualsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := policy.Config{
			Kind:   rapid.SampledFrom(policy.Kinds()).Draw(t, "kind"),
			Groups: rapid.IntRange(1, 6).Draw(t, "groups"),
			Keep:   rapid.SampledFrom([]policy.Keep{policy.Always, policy.Worth}).Draw(t, "keep"),
		}
		s := newSession(t, c)
		shapes := rapid.IntRange(2, 200).Draw(t, "shapes")
		costs := rapid.IntRange(1, 3).Draw(t, "costs")
		one := rapid.Custom(func(t *rapid.T) shapegroups.Shape {
			n := rapid.IntRange(0, shapes).Draw(t, "n")
			if rapid.Bool().Draw(t, "popular") {
				n %= 4
			}
			return must(shapegroups.N(int64(n)))
		})
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for range steps {
			s.step(rapid.IntRange(0, 5).Draw(t, "copied"))
			if rapid.Bool().Draw(t, "snapshot") {
				s.begin()
			}
			switch rapid.IntRange(0, 11).Draw(t, "step") {
			case 0:
				ahead := rapid.SliceOfN(one, 0, 6).Draw(t, "announced")
				s.real.Announce(ahead)
				s.model.ahead = ahead
			case 1:
				shape := one.Draw(t, "shape")
				s.busy[shape] = rapid.SampledFrom([]policy.Standing{policy.Free, policy.Busy, policy.Fixed}).Draw(t, "standing")
				if g := s.real.Resident(shape); g != nil {
					s.real.Ready(g)
				}
			case 2:
				clear(s.busy) // so that the surplus can go
				for g := range s.real.Residents() {
					s.real.Ready(g)
				}
				if s.capacity = rapid.IntRange(0, 9).Draw(t, "capacity"); s.capacity > 8 {
					s.capacity = policy.Unlimited
				}
				if err := s.real.SetGroups(s.capacity); err != nil {
					t.Fatal(err)
				}
				s.model.limit = s.capacity
				s.model.fit()
				for s.real.Len() > s.capacity {
					s.evict()
				}
			case 3:
				s.step(math.MaxInt)
				saved := s.real.Save()
				s.real = must(policy.Load(saved, s.real.Config()))
				s.real.Announce(s.model.ahead)
				for g := range s.real.Residents() {
					e := s.model.known[g.Shape()]
					s.real.Resize(g, e.bytes, e.seconds)
				}
			case 4:
				shape := one.Draw(t, "resized")
				if g := s.real.Resident(shape); g != nil {
					bytes, seconds := rapid.SampledFrom([]int64{0, 1, 8}).Draw(t, "bytes"), float64(rapid.IntRange(0, costs).Draw(t, "cost"))
					s.real.Resize(g, bytes, seconds)
					s.model.resize(shape, bytes, seconds)
				}
			case 5: // registered without a request
				shape := one.Draw(t, "set")
				if s.capacity > 0 && s.real.Resident(shape) == nil && (s.real.Len() < s.capacity || s.evict()) {
					bytes := rapid.Int64Range(0, 1).Draw(t, "bytes")
					s.real.Admit(shape, bytes, 1)
					s.model.admit(shape, bytes, 1)
				}
			case 6:
				most := rapid.SampledFrom([]policy.Standing{policy.Free, policy.Busy}).Draw(t, "most")
				turn := rapid.IntRange(1, 5).Draw(t, "turn")
				for range rapid.IntRange(1, 3).Draw(t, "given") {
					s.give(most, turn)
				}
			case 7: // what is sifted in between changes nothing of the next victim
				for range rapid.IntRange(1, 3).Draw(t, "turns") {
					left := rapid.IntRange(0, 9).Draw(t, "left")
					s.real.Sift(s.ask, func() bool { left--; return left >= 0 })
				}
				s.evict()
			default:
				for range rapid.IntRange(1, 40).Draw(t, "requests") {
					shape := one.Draw(t, "shape")
					cost := int64(len(shape.Key())) + shape.Elements()%int64(costs)
					s.request(shape, cost, float64(1+shape.Elements()%int64(costs)*5))
				}
			}
			s.check()
		}
	})
}

// Long runs reach what short ones do not: dropped classes, forgotten counts, and
// with duel at 4 groups eras of counts, which the model goes without (S1, S6).
func TestLongRunEqualsModel(t *testing.T) {
	for _, kind := range policy.Kinds() {
		for _, keep := range []policy.Keep{policy.Always, policy.Worth} {
			longRun(t, policy.Config{Kind: kind, Groups: 3, Keep: keep}, 5_000)
		}
	}
	longRun(t, policy.Config{Kind: policy.Duel, Groups: 4}, 160_000)
}

func longRun(t *testing.T, c policy.Config, requests int) {
	s := newSession(t, c)
	rng := rand.New(rand.NewPCG(uint64(requests), 7))
	for i := range requests {
		n := int64(rng.ExpFloat64() * 2)
		if rng.IntN(4) == 0 {
			n = rng.Int64N(100) + int64(i/4000)*50
		}
		shape := must(shapegroups.N(n))
		s.request(shape, 1, float64(int64(1)<<(n%4)))
		if i%512 == 0 {
			s.begin()
		}
		s.step(i % 2)
		if i%512 == 0 {
			s.check()
		}
	}
	s.check()
}

// S1, S9: misses of long ago weigh less than those of late, also where there were only
// hits in between: of two rules, the one that missed less of late chooses, saved or not.
func TestHitsOutweighOldMisses(t *testing.T) {
	s := newSession(t, policy.Config{Kind: policy.Duel, Groups: 4, Keep: policy.Always})
	request := func(n int) { s.request(must(shapegroups.N(int64(n))), 1, 1) }
	rng := rand.New(rand.NewPCG(1, 2))
	next := 100
	for round := range 40 {
		for range 20 + rng.IntN(200) { // counts miss less: three for ever, and many that come once
			for n := range 3 {
				request(n)
			}
			for range 2 {
				next++
				request(next)
			}
		}
		request(0)
		hits := rng.IntN(4000)
		for i := range hits {
			if request(0); round%2 == 1 && i == hits/2 {
				s.real = must(policy.Load(s.real.Save(), s.real.Config()))
			}
		}
		for range 20 + rng.IntN(60) { // recency misses less: what comes comes four times, and then never
			next++
			for range 4 {
				request(next)
			}
			request(next - 1)
		}
		s.check()
	}
}
