package sessioncache

import (
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/touched"
)

// unlimited is a core without a capacity.
func unlimited(t *testing.T) *core {
	t.Helper()
	cfg, err := Config{Groups: Unlimited}.Validate()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newState(cfg, newPublished(cfg, nil))
	if err != nil {
		t.Fatal(err)
	}
	return &core{state: s}
}

// turns counts those that did takes to report true, each of which is short (F6).
func (c *core) turns(t *testing.T, did func() bool) (n int) {
	t.Helper()
	for done := false; !done; n++ {
		done = did()
		c.touched.Turn()
	}
	if most := c.touched.Most(); most > touched.Most {
		t.Errorf("a turn touched %d things, want at most %d", most, touched.Most)
	}
	return n
}

// G7, F6: a ResetAll beside an open handle of a large group comes by each of its names once:
// what it costs grows as their number.
func TestResetAllOfALargeGroup(t *testing.T) {
	const names = 50_000
	c := unlimited(t)
	use := c.use("1")
	for i := range names {
		name := strconv.Itoa(i)
		if _, err := c.set(&writing{use: use, name: name, hash: c.published.placed(name)}); err != nil {
			t.Fatal(err)
		}
	}
	g, err := c.acquire(use)
	if err != nil {
		t.Fatal(err)
	}
	g.grace.enter()
	c.touched.Turn()
	left, err := c.reset("", c.published.all())
	if err != nil {
		t.Fatal(err)
	}
	turns := c.turns(t, func() bool { return c.clear(left) })
	if n := g.names.Len(); n != 0 || turns > 16*names/(touched.Most/2) {
		t.Errorf("%d names left after %d turns", n, turns)
	}
}

// G7, F6: a ResetAll beside handles of very many groups that were evicted takes as many
// turns as that needs, and leaves no name to any of them.
func TestResetAllBesideManyHandles(t *testing.T) {
	const groups = 10_000
	c := unlimited(t)
	var held []*group
	for i := range groups {
		use := c.use(strconv.Itoa(i + 1))
		if _, err := c.set(&writing{use: use, name: "n", hash: c.published.placed("n")}); err != nil {
			t.Fatal(err)
		}
		g := c.published.resident(use.compiled, use.placed)
		g.grace.enter()
		c.evict(g, ForGroups)
		held = append(held, g)
		c.touched.Turn()
	}
	left, err := c.reset("", nil)
	if err != nil {
		t.Fatal(err)
	}
	next := 0
	c.turns(t, func() bool {
		if next < groups/2 { // a handle is closed between the turns, whose group serves no more
			held[next].grace.leave(0)
			c.vacated(held[next])
			next++
		}
		return c.clear(left)
	})
	for i, g := range held[next:] {
		if n := g.names.Len(); n != 0 {
			t.Fatalf("group %d has %d names left", next+i, n)
		}
	}
}

// F6: what was overwritten under an open handle is dropped, once that is closed, in as many
// turns as that takes.
func TestManyRetiredNames(t *testing.T) {
	const values = 10_000
	c := unlimited(t)
	use := c.use("1")
	set := func() {
		if _, err := c.set(&writing{use: use, name: "n", hash: c.published.placed("n")}); err != nil {
			t.Fatal(err)
		}
		c.touched.Turn()
	}
	set()
	g := c.published.resident(use.compiled, use.placed)
	phase := g.grace.enter()
	for range values {
		set()
	}
	g.grace.leave(phase)
	c.effects.vacated = append(c.effects.vacated, g)
	dropped := 0
	turns := c.turns(t, func() bool {
		c.effects.vacated = c.effects.vacated[1:]
		c.vacated(g)
		dropped += len(c.effects.trash)
		if len(c.effects.trash) > touched.Most {
			t.Fatalf("%d names dropped in one turn", len(c.effects.trash))
		}
		empty(&c.effects.trash)
		return len(c.effects.vacated) == 0
	})
	if dropped != values || g.grace.wanted.Load() {
		t.Errorf("%d names dropped in %d turns, want %d", dropped, turns, values)
	}
}

// F6: a group whose names have very many owners goes at once, and is forgotten for these in
// as many turns as that takes.
func TestGroupOfManyOwners(t *testing.T) {
	const owners = 10_000
	c := unlimited(t)
	use := c.use("1")
	for i := range owners {
		name := strconv.Itoa(i)
		if _, err := c.set(&writing{use: use, name: name, hash: c.published.placed(name), options: Options{Owner: name}}); err != nil {
			t.Fatal(err)
		}
		c.touched.Turn()
	}
	g := c.published.resident(use.compiled, use.placed)
	c.evict(g, ForGroups)
	c.touched.Turn()
	if n := c.published.objects.Load(); n != 0 {
		t.Errorf("%d names of a group that was evicted", n)
	}
	c.turns(t, func() bool {
		if len(c.effects.vacated) > 0 {
			c.effects.vacated = c.effects.vacated[1:]
			c.vacated(g)
		}
		return len(c.effects.vacated) == 0
	})
	if len(c.owners) != 0 || len(c.effects.trash) != 1 {
		t.Errorf("%d owners left, %d groups to be freed", len(c.owners), len(c.effects.trash))
	}
}

// G7: each of two resets of an owner that overlap removes all names that were set before
// it, also those that the first one has still to remove; and neither removes for ever
// what is set meanwhile.
func TestResetsOverlap(t *testing.T) {
	c := unlimited(t)
	s := c.state
	set := func(i int) {
		t.Helper()
		if _, err := s.set(&writing{use: c.use(strconv.Itoa(i)), name: "name", hash: s.published.placed("name"), options: Options{Owner: "owner"}}); err != nil {
			t.Fatal(err)
		}
		s.touched.Turn()
	}
	reset := func() *clearing {
		t.Helper()
		left, err := s.reset("owner", nil)
		if err != nil || left == nil {
			t.Fatalf("%v, %v", left, err)
		}
		return left
	}
	step := func(left *clearing) bool {
		done := s.clear(left)
		s.touched.Turn()
		return done
	}
	const names = 2 * touched.Most
	for i := range names {
		set(i)
	}
	first := reset()
	if step(first) {
		t.Fatal("one turn was enough")
	}
	set(names)
	second := reset()
	set(names + 1)
	for !step(second) {
	}
	if n := s.published.objects.Load(); n != 1 {
		t.Fatalf("%d names after the second reset, want the one that was set after it", n)
	}
	if !step(first) || s.published.objects.Load() != 1 || len(s.clearing) != 0 {
		t.Errorf("%d names, %d resets under way", s.published.objects.Load(), len(s.clearing))
	}
}

// G7: a reset of an owner that begins when another one has ended removes what a third, which
// is under way still, has to remove.
func TestResetBesideOneUnderWay(t *testing.T) {
	c := unlimited(t)
	next := 0
	begin := func() *clearing {
		t.Helper()
		for range 2 * touched.Most {
			w := &writing{use: c.use(strconv.Itoa(next)), name: "name", hash: c.published.placed("name"), options: Options{Owner: "owner"}}
			if _, err := c.set(w); err != nil {
				t.Fatal(err)
			}
			next++
			c.touched.Turn()
		}
		left, err := c.reset("owner", nil)
		if err != nil || left == nil {
			t.Fatalf("%v, %v", left, err)
		}
		return left
	}
	first := begin()
	begin()
	c.turns(t, func() bool { return c.clear(first) })
	last, err := c.reset("owner", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.turns(t, func() bool { return c.clear(last) })
	if n := c.published.objects.Load(); n != 0 || len(c.clearing) != 0 {
		t.Errorf("%d names after the last reset, %d resets under way", n, len(c.clearing))
	}
}

// G2, F6: while the surplus goes, in several turns, what is there is the capacity.
func TestCapacityWhileTheSurplusGoes(t *testing.T) {
	const groups = 2 * touched.Most
	for what, lowered := range map[string][2]Limit{"groups": {LimitOf(1), {}}, "bytes": {{}, LimitOf(1)}} {
		c := unlimited(t)
		for i := range groups {
			w := &writing{use: c.use(strconv.Itoa(i)), name: "name", hash: c.published.placed("name"), value: Value{Bytes: 1}}
			if _, err := c.set(w); err != nil {
				t.Fatal(err)
			}
			c.touched.Turn()
		}
		if err := c.resize(lowered[0], lowered[1]); err != nil {
			t.Fatal(err)
		}
		turns := 0
		n := c.turns(t, func() bool {
			done := c.surplus(&turns)
			has, may := c.published.bytes.Load(), c.published.capacity()
			if !may.Bytes.Allows(has) || !may.Groups.Allows(c.published.groups.Load()) {
				t.Fatalf("%s: %d bytes of %v", what, has, may)
			}
			return done
		})
		if n < 2 || c.published.groups.Load() != 1 {
			t.Errorf("%s: %d groups are left after %d turns", what, c.published.groups.Load(), n)
		}
	}
}

// await waits, at once awake, until a counter has come as far.
func await(counter *atomic.Int64, i int64) {
	for n := 1; counter.Load() < i; n++ {
		if n%1024 == 0 {
			runtime.Gosched()
		}
	}
}

// S3: of a group's last user and the turn that asks whether it is free one sees the other:
// else the policy would pass over it for ever.
func TestLastUserIsSeenOrTells(t *testing.T) {
	const rounds = 20_000
	c := unlimited(t)
	g := c.published.newGroup(c.use("1").compiled, 1)
	n := c.newNode(g, 1, "n", Options{}, Value{})
	var told atomic.Bool
	c.published.tell = func(message) bool { told.Store(true); return true }
	var round, ended atomic.Int64
	var lease *Lease
	go func() {
		for i := int64(1); i <= rounds; i++ {
			await(&round, i)
			lease.End()
			ended.Store(i)
		}
	}()
	for i := int64(1); i <= rounds; i++ {
		told.Store(false)
		g.aside.Store(false)
		lease, _ = Ref{n}.Acquire()
		round.Store(i)
		for range i % 512 { // so that they meet at any point
			runtime.KeepAlive(i)
		}
		free := g.free()
		await(&ended, i)
		if !free && !told.Load() {
			t.Fatal("its last user has left, and nobody knows")
		}
	}
}

// F6: however many groups of a shape wait for one name, the turn in which it is made is
// short: most of them have the value, and not the name.
func TestManyGroupsOfOneFlight(t *testing.T) {
	const groups = 2 * touched.Most
	c := &core{}
	if err := c.open(parse("open groups=0")); err != nil {
		t.Fatal(err)
	}
	calls := make([]*call, groups)
	for i := range calls {
		g, err := c.acquire(c.use("1"))
		if err != nil {
			t.Fatal(err)
		}
		g.grace.enter()
		calls[i] = &call{group: g, name: "n", hash: c.published.placed("n")}
		c.ask(calls[i])
		c.touched.Turn()
	}
	c.created(calls[0], Value{}, nil)
	named := 0
	for _, call := range calls {
		named += call.group.names.Len()
	}
	if named < 2 || named > touched.Most/2 {
		t.Errorf("%d groups got a name in one turn", named)
	}
}

// F6, S1: what duel forgets where it has become too much counts in a turn that lowers the
// capacity, evicts or saves, and each of these turns is short.
func TestForgetsInShortTurns(t *testing.T) {
	const known, resident = 2 * touched.Most, 1000
	c := &core{}
	if err := c.open(parse(fmt.Sprintf("open policy=duel groups=%d bytes=%d", known, resident))); err != nil {
		t.Fatal(err)
	}
	all := 0
	do := func(what string, did func() (done bool)) {
		t.Helper()
		for done := false; !done; {
			c.touched = touched.Gauge{}
			before := c.policy.Forgotten()
			done = did()
			forgotten := c.policy.Forgotten() - before
			c.touched.Turn()
			if n := c.touched.Most(); n < int64(forgotten) || n > touched.Most {
				t.Fatalf("%s: %d keys are forgotten in a turn that touched %d things", what, forgotten, n)
			}
			all += forgotten
		}
	}
	resize := func(groups, bytes Limit) {
		t.Helper()
		set, turns := false, 0
		do("a capacity", func() bool {
			if !set {
				if err := c.resize(groups, bytes); err != nil {
					t.Fatal(err)
				}
			}
			set = true
			return c.surplus(&turns)
		})
	}
	fill := func() {
		for i := range known {
			use := c.use(strconv.Itoa(i))
			if err := c.write(&writing{use: use, name: "name", hash: c.published.placed("name"), value: Value{Bytes: 1}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	resize(LimitOf(1), Limit{})
	var snapshot *policy.Snapshot
	do("a save", func() bool { return c.save(&snapshot) })
	snapshot.Encode()
	resize(LimitOf(known), Limit{})
	fill()
	resize(Unlimited, Limit{}) // now its capacity is what is resident
	left, err := c.reset("", c.published.all())
	if err != nil {
		t.Fatal(err)
	}
	do("a reset", func() bool { return c.clear(left) })
	if all < 4*known {
		t.Errorf("%d keys were forgotten", all)
	}
}
