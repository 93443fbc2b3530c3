package sessioncache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// many fills a session with groups of two names, one of an owner.
func many(t *testing.T, s *sessioncache.Session, groups int) {
	t.Helper()
	for i := range groups {
		for _, o := range []sessioncache.Options{{}, {Owner: "owner"}} {
			if err := s.Set(bg, mustShape(t, int64(i)), "name"+o.Owner, sessioncache.Value{Bytes: 1, Cost: time.Millisecond}, o); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// longest is the most that a turn touched, up to the one that answered the last call.
func longest(t *testing.T, s *box) int64 {
	t.Helper()
	if _, err := s.Stream(bg); err != nil && !errors.Is(err, fault.ErrClosed) {
		t.Fatal(err)
	}
	return s.Stats().Touched
}

// F6, C12: the uses that are heeded before a message are counted, and are bounded however
// many there were.
func TestUsesAreCounted(t *testing.T) {
	for _, kind := range policy.Kinds() {
		s := open(t, sessioncache.Config{Policy: string(kind)})
		many(t, s.Session, 10)
		at := mustShape(t, 1)
		end := sessioncache.Stall(s.Session)
		for range 20 * touched.Most {
			s.Lookup(at, "name", 0)
		}
		end()
		if n := longest(t, s); n < touched.Most/2 || n > touched.Most {
			t.Errorf("%s: the uses before a message count as %d things, want %d to %d", kind, n, touched.Most/2, touched.Most)
		}
	}
}

// F6: however large a session is, a turn touches a bounded number of things, and what a
// call asks for holds when it returns.
func TestTurnsAreShort(t *testing.T) {
	const groups = 11_000
	s, room := watched(t, sessioncache.Config{Groups: sessioncache.LimitOf(groups)})
	many(t, s.Session, groups)
	short := func(what string, did func() error) {
		t.Helper()
		if err := did(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n := longest(t, s); n > touched.Most {
			t.Fatalf("%s: a turn touched %d things, want at most %d", what, n, touched.Most)
		}
	}
	var id sessioncache.NameID
	short("Intern", func() error { id = s.Intern("name"); return nil })
	v, _ := s.View(mustShape(t, 7))
	if _, ok := v.LookupID(id); !ok {
		t.Error("an interned name is not found")
	}
	short("SavePolicy", func() error { _, err := s.SavePolicy(bg); return err })
	items := 0
	short("the offer to the memory limit", func() error { items = len(room.Offer(bg)); return nil })
	want(t, "offered", items, groups)
	short("Reset", func() error { return s.Reset(bg, "owner") })
	want(t, "names that are left", s.Len(), int64(groups))
	short("SetBytes", func() error { return s.SetBytes(bg, sessioncache.LimitOf(groups-5000)) })
	want(t, "bytes", s.Bytes(), int64(groups-5000))
	short("SetGroups", func() error { return s.SetGroups(bg, sessioncache.LimitOf(groups-10_000)) })
	want(t, "groups", s.Groups(), int64(groups-10_000))
	short("raising both", func() error {
		if err := s.SetBytes(bg, sessioncache.Unlimited); err != nil {
			return err
		}
		return s.SetGroups(bg, sessioncache.LimitOf(groups))
	})
	want(t, "capacity", s.Capacity(), sessioncache.Capacity{Groups: sessioncache.LimitOf(groups), Bytes: sessioncache.Unlimited})
	many(t, s.Session, groups)
	short("a shrink", func() error {
		if freed := room.Shrink(bg, groups, pressure.Spare); freed.Bytes != groups {
			return fmt.Errorf("%d bytes freed, want %d", freed.Bytes, groups)
		}
		return nil
	})
	many(t, s.Session, groups)
	g := s.hold(3)
	short("ResetAll", func() error { return s.ResetAll(bg) })
	want(t, "names of an open group", text(g, "name"), "absent")
	want(t, "groups after that", s.Groups(), int64(0))
	many(t, s.Session, groups)
	short("Close", func() error { return s.Close(bg) })
	want(t, "groups of a closed session", s.Groups(), int64(0))
}

// Q1: a session gives a pool what others need in as many turns as that takes.
func TestGiftsInShortTurns(t *testing.T) {
	const groups = 6000
	p, err := sessioncache.NewPool(sessioncache.LimitOf(2 * groups))
	if err != nil {
		t.Fatal(err)
	}
	rich, poor := open(t, sessioncache.Config{Pool: p, Groups: sessioncache.LimitOf(groups)}), open(t, sessioncache.Config{Pool: p})
	many(t, rich.Session, groups)
	if err := poor.Set(bg, mustShape(t, 1), "name", sessioncache.Value{Bytes: groups - 2}, sessioncache.Options{}); err != nil {
		t.Fatal(err)
	}
	want(t, "kept", poor.Bytes(), int64(groups-2))
	want(t, "given", rich.Bytes(), int64(groups+2))
	if n := longest(t, rich); n > touched.Most {
		t.Errorf("a turn touched %d things, want at most %d", n, touched.Most)
	}
}

// F6, S3: nor does a turn that has to pass over many groups in use touch more, whoever
// needs the room; and none of these goes.
func TestManyInUseInShortTurns(t *testing.T) {
	const groups = touched.Most + 1000
	for what, miss := range map[string]func(*box) error{
		"Set": func(s *box) error {
			return s.Set(bg, mustShape(t, groups), "name", sessioncache.Value{}, sessioncache.Options{})
		},
		"Group": func(s *box) error { s.hold(groups); return nil },
		"Get": func(s *box) error {
			g := s.hold(groups - 1) // which is resident
			_, _, err := g.Get(bg, "new", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
				return sessioncache.Value{Bytes: 2}, nil
			})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := open(t, sessioncache.Config{Groups: sessioncache.LimitOf(groups), Bytes: sessioncache.LimitOf(2*groups + 1), Policy: "lru"})
			many(t, s.Session, groups)
			for i := range groups {
				if i != groups/2 {
					s.hold(i)
				}
			}
			if _, ok := s.View(mustShape(t, groups/2)); !ok { // the last one to be used
				t.Fatal("a group is missing")
			}
			if err := miss(s); err != nil {
				t.Fatal(err)
			}
			if n := longest(t, s); n > touched.Most {
				t.Errorf("a turn touched %d things, want at most %d", n, touched.Most)
			}
			want(t, "evicted", s.Stats().Evicted, uint64(1))
			want(t, "the one that was not in use", s.Has(mustShape(t, groups/2)), false)
		})
	}
}

// F6, Q2, Q5: nor does a turn that has to pass over them for another session or for the
// memory limit.
func TestGivesBesideManyInUseInShortTurns(t *testing.T) {
	const groups = touched.Most + 1000
	for what, takes := range map[string]func(*box, *sessioncache.Pool, *pressure.Room) error{
		"another session": func(_ *box, p *sessioncache.Pool, _ *pressure.Room) error {
			poor := open(t, sessioncache.Config{Pool: p})
			return poor.Set(bg, mustShape(t, 1), "name", sessioncache.Value{Bytes: 2}, sessioncache.Options{})
		},
		"the memory limit": func(s *box, _ *sessioncache.Pool, room *pressure.Room) error {
			if freed := room.Shrink(bg, 2, pressure.Spare); freed.Bytes != 2 {
				return fmt.Errorf("%d bytes freed, want 2", freed.Bytes)
			}
			return nil
		},
	} {
		p, err := sessioncache.NewPool(sessioncache.LimitOf(2 * groups))
		if err != nil {
			t.Fatal(err)
		}
		s, room := watched(t, sessioncache.Config{Pool: p, Groups: sessioncache.LimitOf(groups), Policy: "lru"})
		many(t, s.Session, groups)
		for i := range groups - 1 {
			s.hold(i)
		}
		if _, ok := s.View(mustShape(t, groups-1)); !ok { // the last one to be used
			t.Fatal("a group is missing")
		}
		if err := takes(s, p, room); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n := longest(t, s); n > touched.Most {
			t.Errorf("%s: a turn touched %d things, want at most %d", what, n, touched.Most)
		}
		want(t, what+" took the one that was not in use", s.Has(mustShape(t, groups-1)), false)
	}
}

// F6, Q2, Q5: nor does a turn that gives beside many groups that hold no bytes, or more than
// is above the floor.
func TestGivesBesideManyUnfitInShortTurns(t *testing.T) {
	const unfit = 2 * touched.Most
	for _, c := range []struct {
		what         string
		each, floor  int64
		large, freed int64
	}{
		{"of no bytes", 0, 0, 2, 2},
		{"larger than what is above the floor", 5, 5*unfit - 1, 3, 3},
		{"larger than that, all", 5, 5*unfit - 1, 0, 0},
	} {
		for _, policy := range []string{"fifo", "lru", "sieve", "duel"} {
			p, err := sessioncache.NewPool(sessioncache.LimitOf(10 * unfit))
			if err != nil {
				t.Fatal(err)
			}
			s, room := watched(t, sessioncache.Config{Pool: p, Groups: sessioncache.Unlimited, Policy: policy, Floor: sessioncache.Floor{Bytes: c.floor}})
			if c.each > 0 && c.large > 0 { // it is found before so many have been passed
				set(t, s, unfit, c.large)
			}
			for i := range unfit {
				set(t, s, i, c.each)
			}
			if c.each == 0 {
				set(t, s, unfit, c.large)
			}
			if freed := room.Shrink(bg, 2, pressure.Spare); freed.Bytes != c.freed {
				t.Errorf("%s, %s: %d bytes freed, want %d", policy, c.what, freed.Bytes, c.freed)
			}
			if n := longest(t, s); n > touched.Most {
				t.Errorf("%s, %s: a turn touched %d things, want at most %d", policy, c.what, n, touched.Most)
			}
			want(t, "groups", s.Groups(), int64(unfit)+min(c.large, 1)-min(c.freed, 1))
		}
	}
}

// F6, S2, Q2: nor does one that gives where all groups are announced and in use.
func TestGivesAnnouncedInUseInShortTurns(t *testing.T) {
	const groups = touched.Most / 4
	p := newPool(t, groups)
	s := open(t, sessioncache.Config{Pool: p, Groups: sessioncache.Unlimited, Policy: "lru"})
	var ahead []shapegroups.Shape
	for i := range groups {
		set(t, s, i, 1)
		s.hold(i)
		ahead = append(ahead, mustShape(t, int64(i)))
	}
	if err := s.Announce(ahead...); err != nil {
		t.Fatal(err)
	}
	poor := open(t, sessioncache.Config{Pool: p})
	set(t, poor, 1, groups/2)
	want(t, "what was given", s.Bytes(), int64(groups/2))
	want(t, "the one needed first", s.Has(ahead[0]), true)
	want(t, "the one needed last", s.Has(ahead[groups-1]), false)
	if n := longest(t, s); n > touched.Most {
		t.Errorf("a turn touched %d things, want at most %d", n, touched.Most)
	}
}

// F6, S7: nor does one that asks whether a shape is worth a group, where those of a higher
// cost class are in use.
func TestWorthBesideManyInUseInShortTurns(t *testing.T) {
	const groups = touched.Most + 2000
	s := open(t, sessioncache.Config{Groups: sessioncache.LimitOf(groups), Policy: "duel", Keep: "worth"})
	for i := range groups - 1 {
		if err := s.Set(bg, mustShape(t, int64(i)), "name", sessioncache.Value{Bytes: 1, Cost: time.Second}, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
		s.hold(i) // its second use
	}
	for i := range groups + 1 { // one after the other, in a class of no cost
		set(t, s, groups+i, 1)
	}
	for i := range 200 { // recency misses these, so counts choose
		s.hold(i).Close()
	}
	for range 5 {
		s.hold(2 * groups).Close()
	}
	s.hold(3 * groups).Close()
	want(t, "a shape asked for once is kept", s.Has(mustShape(t, 3*groups)), false)
	if n := longest(t, s); n > touched.Most {
		t.Errorf("a turn touched %d things, want at most %d", n, touched.Most)
	}
}

// F6, S2, S7: nor does one that asks whether a shape is worth a group, where many are in use
// and as many announced as may be.
func TestWorthBesideAnnouncedInUseInShortTurns(t *testing.T) {
	const passed, ahead = touched.Most/2 - 1, touched.Most / 4 // a turn may pass so many and go on
	s := open(t, sessioncache.Config{Groups: sessioncache.LimitOf(passed + ahead), Policy: "duel", Keep: "worth"})
	var shapes []shapegroups.Shape
	for i := range passed + ahead {
		s.hold(i)
		if i < ahead {
			shapes = append(shapes, mustShape(t, int64(i)))
		}
	}
	if err := s.Announce(shapes...); err != nil {
		t.Fatal(err)
	}
	s.hold(passed + ahead)
	want(t, "evicted", s.Stats().Evicted, uint64(1))
	if n := longest(t, s); n > 3*touched.Most/4+8 {
		t.Errorf("a turn touched %d things, want three quarters of %d", n, touched.Most)
	}
}

// Q2, Q5: nor does it give up before it has passed 256 groups that are larger, though sieve
// comes by each of them twice.
func TestGivesBesideSomeThatAreTooLarge(t *testing.T) {
	const large = 200
	for _, policy := range []string{"fifo", "lru", "sieve", "duel"} {
		p := newPool(t, 10*large)
		s, room := watched(t, sessioncache.Config{Pool: p, Groups: sessioncache.Unlimited, Policy: policy, Floor: sessioncache.Floor{Bytes: 5*large - 1}})
		for i := range large {
			set(t, s, i, 5)
		}
		set(t, s, large, 3)
		s.hold(large).Close() // it is used again: sieve passes it over once
		want(t, policy+" frees", room.Shrink(bg, 2, pressure.Spare).Bytes, int64(3))
	}
}

func set(t *testing.T, s *box, n int, bytes int64) {
	t.Helper()
	if err := s.Set(bg, mustShape(t, int64(n)), "name", sessioncache.Value{Bytes: bytes}, sessioncache.Options{}); err != nil {
		t.Fatal(err)
	}
}

// F6, S9: nor does a turn of a save, however much the policy remembers; what it saves is of
// one moment, whoever saves besides, and who has left holds up none.
func TestSavesInShortTurns(t *testing.T) {
	const groups, known = 100, 64 * 100
	s := open(t, sessioncache.Config{Groups: sessioncache.LimitOf(groups), Policy: "duel"})
	many(t, s.Session, known)
	resume := sessioncache.Stall(s.Session)
	if _, err := s.SavePolicy(&leaves{Context: bg}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	const saves = 4
	saved := make(chan []byte, saves)
	for range saves {
		go func() {
			b, err := s.SavePolicy(bg)
			if err != nil {
				t.Error(err)
			}
			saved <- b
		}()
	}
	resume()
	for i := range known / 8 { // others are answered, and change what is saved
		s.hold(known - i).Close()
	}
	for range saves {
		b := <-saved
		again := open(t, sessioncache.Config{Groups: sessioncache.LimitOf(groups), Policy: "duel", Saved: b})
		if _, err := again.SavePolicy(bg); err != nil || len(b) < known*16 {
			t.Errorf("%d bytes saved: %v", len(b), err)
		}
	}
	if err := s.SetGroups(bg, sessioncache.LimitOf(10)); err != nil {
		t.Fatal(err)
	}
	if b, err := s.SavePolicy(bg); err != nil || len(b) > 64*10*40 {
		t.Errorf("%d bytes saved of a lowered session: %v", len(b), err)
	}
	if n := longest(t, s); n > touched.Most {
		t.Errorf("a turn touched %d things, want at most %d", n, touched.Most)
	}
	if err := s.Close(bg); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SavePolicy(bg); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("of a closed session: %v", err)
	}
}

// leaves is the context of a caller that leaves once it waits for its creator.
type leaves struct {
	context.Context
	waits bool
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (c *leaves) Done() <-chan struct{} { c.waits = true; return closedChannel }

func (c *leaves) Err() error {
	if c.waits {
		return context.Canceled
	}
	return nil
}

// F6, F8: however many creators run when a session closes, a turn ends a bounded number of
// their flights, and what they make nevertheless is freed.
func TestCloseEndsCreatorsInShortTurns(t *testing.T) {
	const creators = touched.Most + 500
	s := open(t, sessioncache.Config{Linger: time.Hour})
	h := s.hold(1)
	for i := range creators {
		_, _, err := h.Get(&leaves{Context: bg}, fmt.Sprint(i), sessioncache.Options{}, func(ctx context.Context) (sessioncache.Value, error) {
			<-ctx.Done()
			return s.value("late"), nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if err := s.Close(bg); err != nil {
		t.Fatal(err)
	}
	if n := s.Stats().Touched; n > touched.Most {
		t.Errorf("a turn touched %d things, want at most %d", n, touched.Most)
	}
	h.Close()
}

// F6, Q1: one value that needs the room of many groups of its own session, which alone uses
// the pool, has them go in as many turns as that takes.
func TestRoomOfThePoolInShortTurns(t *testing.T) {
	const groups = 3 * touched.Most
	for what, put := range map[string]func(*box, sessioncache.Value) error{
		"Set": func(s *box, v sessioncache.Value) error {
			return s.Set(bg, mustShape(t, groups), "name", v, sessioncache.Options{})
		},
		"Set by a handle": func(s *box, v sessioncache.Value) error {
			return s.hold(groups).Set(bg, "name", v, sessioncache.Options{})
		},
		"Get": func(s *box, v sessioncache.Value) error {
			_, _, err := s.hold(groups).Get(bg, "name", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) { return v, nil })
			return err
		},
	} {
		p, err := sessioncache.NewPool(sessioncache.LimitOf(2 * groups))
		if err != nil {
			t.Fatal(err)
		}
		s := open(t, sessioncache.Config{Pool: p, Groups: sessioncache.Unlimited})
		many(t, s.Session, groups)
		if err := put(s, sessioncache.Value{Bytes: 2 * groups}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		want(t, what+": groups", s.Groups(), int64(1))
		want(t, what+": bytes", s.Bytes(), int64(2*groups))
		if n := longest(t, s); n > touched.Most {
			t.Errorf("%s: a turn touched %d things, want at most %d", what, n, touched.Most)
		}
	}
}

// F6, S3: nor does a lower capacity where all groups are in use.
func TestSurplusOfGroupsInUseInShortTurns(t *testing.T) {
	const groups = touched.Most + 1000
	for _, policy := range []string{"fifo", "lru", "sieve", "duel"} {
		s := open(t, sessioncache.Config{Groups: sessioncache.Unlimited, Policy: policy})
		for i := range groups {
			if err := s.hold(i).Set(bg, "name", sessioncache.Value{Bytes: 1}, sessioncache.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.SetGroups(bg, sessioncache.LimitOf(groups-1)); err != nil {
			t.Fatal(err)
		}
		want(t, policy+": groups", s.Groups(), int64(groups-1))
		if n := longest(t, s); n > touched.Most {
			t.Errorf("%s: a turn touched %d things, want at most %d", policy, n, touched.Most)
		}
	}
}

// F6: nor does a turn of a Stream; it has all requests that are kept, in order.
func TestStreamInShortTurns(t *testing.T) {
	const kept, shapes = 8192, 10
	s := open(t, sessioncache.Config{})
	for i := range kept + 1000 {
		s.hold(i % shapes).Close()
	}
	all, err := s.Stream(bg)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "requests", len(all), kept)
	for i, shape := range all {
		if shape != mustShape(t, int64((1000+i)%shapes)) {
			t.Fatalf("request %d is of %v", i, shape)
		}
	}
	if n := s.Stats().Touched; n < 1000 || n > touched.Most {
		t.Errorf("a turn touched %d things, want at most %d", n, touched.Most)
	}
}

// F6: nor does a turn of an Intern, of a name that many groups hold far from the others that
// are interned; each finds it by its id then.
func TestInternInShortTurns(t *testing.T) {
	const groups = touched.Most / 8 // that learn it at once
	s := open(t, sessioncache.Config{Groups: sessioncache.Unlimited})
	s.Intern("near")
	for i := range groups {
		for _, name := range []string{"near", "far", "farther"} {
			if err := s.Set(bg, mustShape(t, int64(i)), name, sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 5000 {
		s.Intern(fmt.Sprint(i))
	}
	far := s.Intern("far")
	for i := range 1500 {
		s.Intern(fmt.Sprint("more", i))
	}
	farther := s.Intern("farther") // for which what is there is copied
	for i := range groups {
		v, _ := s.View(mustShape(t, int64(i)))
		for _, id := range []sessioncache.NameID{far, farther} {
			if r, ok := v.LookupID(id); !ok || r.Value() != i {
				t.Fatalf("%v of %d is %v, %v", id, i, r.Value(), ok)
			}
		}
		if n := sessioncache.Slots(v); n < 6500 {
			t.Fatalf("%d slots of %d: it has not learnt", n, i)
		}
	}
	if n := longest(t, s); n > touched.Most {
		t.Errorf("a turn touched %d things, want at most %d", n, touched.Most)
	}
}

// F4, F6: nor does the turn that keeps what a creator made after its callers had left, and
// their group with them.
func TestLateValueInShortTurns(t *testing.T) {
	const groups = 3 * touched.Most
	s := open(t, sessioncache.Config{Groups: sessioncache.Unlimited, Bytes: sessioncache.LimitOf(2 * groups), Linger: time.Hour})
	h, goOn := s.hold(groups), make(chan struct{})
	_, _, err := h.Get(&leaves{Context: bg}, "late", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		<-goOn
		return sessioncache.Value{Bytes: 2 * groups}, nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	h.Close()
	many(t, s.Session, groups)
	close(goOn)
	for s.Stats().Running > 0 {
		time.Sleep(time.Millisecond)
	}
	n := longest(t, s)
	want(t, "kept", s.Bytes(), int64(2*groups))
	want(t, "groups", s.Groups(), int64(1))
	if n > touched.Most {
		t.Errorf("a turn touched %d things, want at most %d", n, touched.Most)
	}
}
