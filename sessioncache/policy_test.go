package sessioncache_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// The cases of the conformance topic "policies", by their names.

func capacity(policy string, groups int64) sessioncache.Config {
	return sessioncache.Config{Policy: policy, Groups: sessioncache.LimitOf(groups)}
}

func (b *box) runs(shapes ...int) {
	b.t.Helper()
	for _, n := range shapes {
		b.run(n, "n", "v")
	}
}

func TestRecency(t *testing.T) { // S1
	p := open(t, capacity("lru", 3))
	p.runs(1, 2, 3, 1, 4)
	want(t, "has", p.has(1, 3, 4), 3)
	p.get(3, "n")
	p.runs(5)
	want(t, "has", p.has(3, 4, 5), 3)
}

func TestSieve(t *testing.T) { // S1
	p := open(t, capacity("sieve", 3))
	p.runs(1, 2, 3, 1, 4)
	want(t, "has", p.has(1, 3, 4), 3)
	p.runs(5)
	want(t, "has", p.has(1, 4, 5), 3)
	p.runs(6)
	want(t, "has", p.has(1, 5, 6), 3)
}

func TestDuel(t *testing.T) { // S1
	for _, policy := range []string{"duel", ""} {
		p := open(t, capacity(policy, 8))
		for i := range 60 {
			p.runs(1, 2, 3, 4, 5, 6)
			for k := range 6 {
				p.runs(1000 + 6*i + k)
			}
		}
		want(t, "groups", p.Groups(), 8)
		if hits := p.stats().Hits; hits < 180 || hits > 354 {
			t.Errorf("%d hits", hits)
		}
	}
	p := open(t, capacity("duel", 8))
	for i := range 2000 {
		p.runs(i/200*100 + i%6)
	}
	if hits := p.stats().Hits; hits < 1700 || hits > 1940 {
		t.Errorf("%d hits", hits)
	}
}

func (b *box) announce(shapes ...int) {
	b.t.Helper()
	var all []shapegroups.Shape
	for _, n := range shapes {
		all = append(all, shape(b.t, n))
	}
	if err := b.Announce(all...); err != nil {
		b.t.Fatal(err)
	}
}

// S1: where no group has to go, none of sieve's marks does.
func TestSetsOfWhatIsThereTakeNoMarks(t *testing.T) {
	s := open(t, sessioncache.Config{Policy: "sieve", Groups: sessioncache.LimitOf(2)})
	for _, n := range []int{1, 2, 1, 2, 1, 3} { // 1 and 2 are marked, and 1 is the first
		s.set(n, "x", "text")
	}
	if s.Has(shape(t, 1)) || !s.Has(shape(t, 2)) {
		t.Error("the second went, want the first")
	}
}

// S1, Q2: so it is where other sessions make room, where they cannot, and where a value goes
// into a group that has gone or is not kept.
func TestWhatEvictsNothingTakesNoMarks(t *testing.T) {
	for what, do := range map[string]func(s *box, gone *sessioncache.Group) error{
		"others give":          func(s *box, _ *sessioncache.Group) error { return s.sized(3, "x", "text", 2) },
		"others hold too much": func(s *box, _ *sessioncache.Group) error { return s.sized(3, "x", "text", 11) },
		"set in a group that has gone": func(s *box, gone *sessioncache.Group) error {
			return gone.Set(bg, "m", sessioncache.Value{Bytes: 3}, sessioncache.Options{})
		},
		"made for a group that has gone": func(s *box, gone *sessioncache.Group) error {
			_, _, err := gone.Get(bg, "m", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
				return sessioncache.Value{Bytes: 3}, nil
			})
			return err
		},
		"removed while made": func(s *box, gone *sessioncache.Group) error {
			h := s.hold(1)
			defer h.Close()
			_, _, err := h.Get(bg, "m", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
				h.Remove("m", 0)
				return sessioncache.Value{Bytes: 3}, nil
			})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			pool := newPool(t, 24)
			s := open(t, sessioncache.Config{Policy: "sieve", Pool: pool, Bytes: sessioncache.LimitOf(11)})
			other := open(t, sessioncache.Config{Policy: "fifo", Pool: pool})
			check := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			gone := s.hold(9)
			check(gone.Set(bg, "n", sessioncache.Value{Bytes: 11}, sessioncache.Options{}))
			check(s.SetBytes(bg, sessioncache.LimitOf(10))) // it goes
			for _, n := range []int{1, 2, 1, 2} {
				check(s.sized(n, "x", "text", 5))
			}
			if strings.HasPrefix(what, "others") {
				check(s.SetBytes(bg, sessioncache.Unlimited))
				check(other.sized(1, "x", "text", 7))
				check(other.sized(2, "x", "text", 7))
			}
			check(do(s, gone))
			s.get(1, "x")
			check(s.SetBytes(bg, sessioncache.LimitOf(5)))
			if s.Has(shape(t, 1)) || !s.Has(shape(t, 2)) {
				t.Error("the second went, want the first: both were asked for again")
			}
		})
	}
}

func TestAnnounced(t *testing.T) { // S2
	p := open(t, fifo(3))
	p.runs(1, 2, 3)
	p.announce(1, 2)
	p.runs(4)
	want(t, "has", p.has(1, 2, 4), 3)
	p.runs(5)
	want(t, "has", p.has(1, 2, 5), 3)
	p.announce()
	p.runs(6)
	want(t, "has", p.has(2, 5, 6), 3)

	q := open(t, fifo(2))
	q.runs(1, 2)
	q.announce(1, 2)
	q.runs(3)
	want(t, "has", q.has(1, 3), 2) // of two announced the one needed last goes
}

func bucketed(t testing.TB, text string) sessioncache.Config {
	t.Helper()
	b, err := shapegroups.ParseBucketing(text)
	if err != nil {
		t.Fatal(err)
	}
	return sessioncache.Config{Bucket: b}
}

func TestBucketing(t *testing.T) { // S4
	p := open(t, bucketed(t, "multiple:16"))
	for _, c := range []struct {
		n    int
		want string
	}{{10, "v miss"}, {16, "v hit"}, {3, "v hit"}, {17, "w miss"}} {
		text := "v"
		if c.n == 17 {
			text = "w"
		}
		v, by := p.run(c.n, "n", text)
		want(t, "run", v+" "+string(by), c.want)
	}
	want(t, "groups", p.Groups(), 2)
	want(t, "useful", p.stats().Useful, 46)
	want(t, "padded", p.stats().Padded, 80)
	p.get(5, "n") // a lookup is no run
	want(t, "useful", p.stats().Useful, 46)
	want(t, "get", p.get(5, "n"), "v")
	want(t, "has", p.has(9, 31), 2)
	m, err := p.Map(shape(t, 17))
	want(t, "map", m.String(), "[[32]]")
	if err != nil {
		t.Error(err)
	}

	q := open(t, bucketed(t, "exact"))
	q.runs(5, 7)
	want(t, "groups", q.Groups(), 2)
}

func TestAdvice(t *testing.T) { // S5
	p := open(t, sessioncache.Config{})
	for i := range 100 {
		p.runs(i % 5)
	}
	q := open(t, sessioncache.Config{})
	q.runs(1, 2, 3, 1, 4, 1, 2, 5, 1, 2)
	for _, c := range []struct {
		of             *box
		policy         string
		groups         int
		distinct, hits int
	}{
		{p, "fifo", 5, 5, 95}, {p, "lru", 4, 5, 0}, {p, "lru", 8, 5, 95},
		{q, "fifo", 3, 5, 3}, {q, "lru", 3, 5, 4},
	} {
		r, err := c.of.Advice(bg, c.policy, c.groups)
		if err != nil {
			t.Fatal(err)
		}
		want(t, c.policy+" distinct", r.Distinct, c.distinct)
		want(t, c.policy+" hits", r.Hits, c.hits)
	}
	_, err := p.Advice(bg, "nonsense", 3)
	wantError(t, "advice", err, fault.ErrInvalid)
	stream, err := q.Stream(bg)
	want(t, "stream", len(stream), 10)
	if err != nil {
		t.Error(err)
	}
}

// S2, S4: what is announced is what was asked, what stays is what is compiled
// for it.
func TestAnnouncedBucketed(t *testing.T) {
	c := bucketed(t, "multiple:16")
	c.Policy, c.Groups = "fifo", sessioncache.LimitOf(3)
	p := open(t, c)
	p.runs(16, 32, 48)
	p.announce(5, 20)
	p.runs(64)
	want(t, "has", p.has(16, 32, 64), 3)

	// What is refused leaves in force what was announced before.
	wantError(t, "the zero Shape", p.Announce(shape(t, 64), shapegroups.Shape{}), fault.ErrInvalid)
	p.runs(80)
	want(t, "has", p.has(16, 32, 80), 3)
}

// S5: what hits is a request, too, with every policy: few misses are no thrash,
// however few others were noted.
func TestHitsAreNoThrash(t *testing.T) {
	for _, kind := range []string{"fifo", "lru", "sieve", "duel"} {
		p, q := open(t, capacity(kind, 4)), open(t, capacity(kind, 4))
		for i := range 200 {
			p.set(i%6, "n", "v")
			for range 100 {
				want(t, "get", p.get(i%6, "n"), "v")
			}
			q.set(i%12, "n", "v")
		}
		want(t, kind+": warnings at one miss in a hundred", p.stats().Thrash, 0)
		want(t, kind+": warnings at nothing but misses", q.stats().Thrash, 1)
	}
}

func TestThrash(t *testing.T) { // S5
	p, q := open(t, capacity("", 4)), open(t, capacity("", 12))
	for i := range 600 {
		p.runs(i % 12)
		q.runs(i % 12)
	}
	want(t, "warnings", p.stats().Thrash, 1)
	want(t, "warnings", q.stats().Thrash, 0)
	for range 100 { // it ends, and may begin again
		p.runs(0, 1)
	}
	for i := range 200 {
		p.runs(i % 12)
	}
	want(t, "warnings", p.stats().Thrash, 2)
}

// S5: where bytes bound a session, what is resident when it is full stands for the
// capacity, at any number of groups that it might have.
func TestThrashForBytes(t *testing.T) {
	for _, groups := range []sessioncache.Limit{sessioncache.Unlimited, sessioncache.LimitOf(64)} {
		p := open(t, sessioncache.Config{Groups: groups, Bytes: sessioncache.LimitOf(4), Policy: "lru"})
		q := open(t, sessioncache.Config{Groups: groups, Bytes: sessioncache.LimitOf(12), Policy: "lru"})
		for i := range 600 {
			for _, b := range []*box{p, q} {
				err := b.Set(bg, shape(t, i%12), "n", sessioncache.Value{Any: i, Bytes: 1}, sessioncache.Options{})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		want(t, "warnings", p.stats().Thrash, 1)
		want(t, "warnings of what fits", q.stats().Thrash, 0)
		if err := p.SetBytes(bg, sessioncache.LimitOf(12)); err != nil {
			t.Fatal(err)
		}
		for i := range 3000 {
			p.set(i%12, "n", "v")
		}
		want(t, "warnings with room", p.stats().Thrash, 1)
	}
}

func TestCost(t *testing.T) { // S6
	p := open(t, capacity("", 4))
	for i := 1; i <= 12; i++ {
		v := p.value("v")
		v.Bytes, v.Cost = 1000, time.Millisecond
		if i == 1 {
			v.Cost = time.Minute
		}
		_, _, err := p.try(bg, shape(t, i), "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { return v, nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	want(t, "has 1", p.has(1), 1)
	want(t, "groups", p.Groups(), 4)
}

func TestWorth(t *testing.T) { // S7
	c := capacity("duel", 2)
	c.Keep = "worth"
	p := open(t, c)
	for range 50 {
		p.runs(1, 2)
	}
	for i := 100; i < 600; i++ { // one-off shapes: recency misses more, so counts choose
		p.runs(1, i, 2)
	}
	want(t, "has", p.has(1, 2), 2)
	want(t, "groups", p.Groups(), 2)

	h, err := p.Group(bg, shape(t, 1000)) // not kept, but it serves its handle
	if err != nil {
		t.Fatal(err)
	}
	if h.Resident() {
		t.Fatal("a shape that is not worth it was registered")
	}
	create := func(context.Context) (sessioncache.Value, error) { return p.value("u"), nil }
	if _, by, err := h.Get(bg, "n", sessioncache.Options{}, create); err != nil || by != sessioncache.Miss {
		t.Fatalf("%s, %v", by, err)
	}
	r, by, err := h.Get(bg, "n", sessioncache.Options{}, create)
	if err != nil || by != sessioncache.Hit {
		t.Fatalf("%s, %v", by, err)
	}
	want(t, "value", r.Value(), any("u"))
	want(t, "get", p.get(1000, "n"), "absent")
	want(t, "objects", p.Len(), 2)
	p.freed("u", 0)
	h.Close()
	p.freed("u", 1)
}

func TestSavedPolicy(t *testing.T) { // S9
	p := open(t, capacity("duel", 2))
	for i := range 200 {
		p.runs(1, 2, 100+i)
	}
	saved, err := p.SavePolicy(bg)
	if err != nil {
		t.Fatal(err)
	}
	c := capacity("duel", 2)
	c.Saved = saved
	q := open(t, c)
	want(t, "groups", q.Groups(), 0)
	q.runs(1, 2, 7) // a newcomer goes before what was used often
	q.runs(1, 2)
	want(t, "has", q.has(1, 2), 2)
	for range 20 {
		p.runs(8, 9)
		q.runs(8, 9)
	}
	want(t, "has", q.has(8)+q.has(9), p.has(8)+p.has(9))
	c.Saved = saved[:len(saved)-1]
	_, err = sessioncache.Open(c)
	wantError(t, "cut", err, fault.ErrInvalid)
	c = fifo(2)
	c.Saved = saved
	_, err = sessioncache.Open(c)
	wantError(t, "another policy", err, fault.ErrInvalid)
}
