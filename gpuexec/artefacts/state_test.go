package artefacts

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/limit"
)

func (o *order) keys() (keys []string) {
	for n := o.oldest; n != nil; n = n.Value.newer {
		keys = append(keys, n.Key)
	}
	return keys
}

// C3: the intrusive order is a list.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := table.New[entry](nil)
		var o, other order
		var list []string
		nodes := map[string]*node{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			key := strconv.Itoa(rapid.IntRange(0, 7).Draw(t, "key"))
			n := nodes[key]
			if n == nil {
				n = tab.NewNode(key, 0)
				nodes[key] = n
			}
			at := slices.Index(list, key)
			switch rapid.IntRange(0, 2).Draw(t, "verb") {
			case 0:
				if at < 0 {
					o.push(n)
					list = append(list, key)
				}
			case 1:
				if o.remove(n) != (at >= 0) || other.remove(n) {
					t.Fatalf("remove %s", key)
				}
				if at >= 0 {
					list = slices.Delete(list, at, at+1)
				}
			case 2:
				o.touch(n)
				if at >= 0 {
					list = append(slices.Delete(list, at, at+1), key)
				}
			}
			if got := o.keys(); !slices.Equal(got, list) {
				t.Fatalf("order %v, want %v", got, list)
			}
		}
	})
}

// An order that nodes are put into by their uses, and taken out of, stays sorted.
func TestInsert(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := table.New[entry](nil)
		var o order
		var in []*node
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(in) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				at := rapid.IntRange(0, len(in)-1).Draw(t, "at")
				o.remove(in[at])
				in = slices.Delete(in, at, at+1)
				continue
			}
			n := tab.NewNode(strconv.Itoa(i), 0)
			n.Value.used = rapid.Uint64Range(0, 20).Draw(t, "used")
			o.insert(n)
			in = append(in, n)
		}
		var back []string
		for n := o.newest; n != nil; n = n.Value.older {
			back = append(back, n.Key)
			if older := n.Value.older; older != nil && older.Value.used > n.Value.used {
				t.Fatalf("%s is older than %s", older.Key, n.Key)
			}
		}
		slices.Reverse(back)
		if got := o.keys(); !slices.Equal(got, back) || len(got) != len(in) {
			t.Fatalf("%v forward, %v back, %d in it", got, back, len(in))
		}
	})
}

func (o *order) slowFirst(may scope) *node {
	n := o.oldest
	for n != nil && may == complete && !n.Value.resident.Load() {
		n = n.Value.newer
	}
	return n
}

// C1: what goes for bytes is the oldest that has landed, whatever flies, lands, is used
// or goes meanwhile.
func TestOldestLanded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := table.New[entry](nil)
		var o order
		var in []*node
		clock := uint64(0)
		for i := range rapid.IntRange(1, 80).Draw(t, "steps") {
			verb := rapid.IntRange(0, 5).Draw(t, "verb")
			if len(in) == 0 {
				verb = 0
			}
			var n *node
			at := 0
			if verb > 1 {
				at = rapid.IntRange(0, len(in)-1).Draw(t, "at")
				n = in[at]
			}
			clock++
			switch verb {
			case 0, 1:
				n = tab.NewNode(strconv.Itoa(i), 0)
				n.Value.resident.Store(rapid.Bool().Draw(t, "landed"))
				n.Value.used = clock
				if verb == 1 { // out of another order, so with a use of some time ago
					n.Value.used = rapid.Uint64Range(1, clock).Draw(t, "used")
				}
				if slices.ContainsFunc(in, func(other *node) bool { return other.Value.used == n.Value.used }) {
					continue // no two uses are at one time
				}
				o.insert(n)
				in = append(in, n)
			case 2:
				o.remove(n)
				in = slices.Delete(in, at, at+1)
			case 3:
				n.Value.used = clock
				o.touch(n)
			case 4:
				n.Value.resident.Store(true)
				o.came(n)
			case 5: // has it look
			}
			if rapid.Bool().Draw(t, "look") {
				if got, _ := o.first(complete, always); got != o.slowFirst(complete) {
					t.Fatalf("%v goes first, want %v", got, o.slowFirst(complete))
				}
			}
		}
	})
}

// C3: flights that are older than what goes for bytes are passed once, not with each miss.
func TestFlightsAheadArePassedOnce(t *testing.T) {
	const flights, warm = 1000, 10
	c := newFloors(1<<30, warm)
	for i := range flights {
		c.call(strconv.Itoa(i), "", normal)
	}
	for i := range 10 * warm {
		c.ask("", "key "+strconv.Itoa(i), 1)
		if passed := c.order.flown; i > warm && (passed == nil || !passed.Value.resident.Load()) {
			t.Fatalf("miss %d: the next would pass the flights again", i)
		}
	}
	if c.size() != flights+warm || c.has("key 0") || !c.has("key 99") {
		t.Errorf("%d entries", c.size())
	}
}

// F6, C3: and they are passed in several turns, however many they are.
func TestFlightsAheadArePassedInTurns(t *testing.T) {
	const flights = 3 * touched.Most
	c := newFloors(1<<30, 1)
	for i := range flights {
		c.call(strconv.Itoa(i), "", normal)
	}
	c.ask("", "old", 1)
	c.touched.Turn()
	m := c.call("new", "", normal).aboard
	m.n.Value.cell.Init(nil)
	m.n.Value.bytes = 1
	turns := 0
	c.to(func() bool { turns++; return c.landable(m) })
	c.land(m)
	if most := c.touched.Most(); turns < 3 || most > touched.Most {
		t.Errorf("passed in %d turns, of which one touched %d things, want at most %d", turns, most, touched.Most)
	}
	if c.has("old") || !c.has("new") {
		t.Error("the new one has not come in place of the old one")
	}
}

// A floor that is given back, and one that comes late, cost no more than a walk
// over what its owner uses: by a search from an end this takes minutes.
func TestFloorsComeAndGo(t *testing.T) {
	const many = 60_000
	f := newFloors(4*many, 1<<40)
	f.addFloor("a", 1)
	for i := range many {
		f.ask("a", "a"+strconv.Itoa(i), 1)
		f.ask("b", "b"+strconv.Itoa(i), 1)
	}
	start := time.Now()
	f.addFloor("a", -1)
	f.addFloor("b", 2*many) // late: its own come over one by one, as they are next to go
	for i := range many {
		f.ask("", "y"+strconv.Itoa(i), 1)
	}
	f.resize(limit.Of(2*many), limit.Limit{})
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	if f.has("a0") || !f.has("b0") || f.size() != 2*many {
		t.Errorf("a0 %v, b0 %v, %d entries", f.has("a0"), f.has("b0"), f.size())
	}
}

// C10: one more user of an artefact costs the logarithm of their number, and what they
// are taken off when it goes, a part of a turn.
func TestUsersOfMany(t *testing.T) {
	for _, many := range []int{100, 10_000, 100_000} {
		f := newFloors(2, 1<<40)
		f.ask("owner", "shared", 1)
		n := f.table.Lookup("shared", 0)
		for i := range many {
			f.ask(strconv.Itoa(i), "shared", 1)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const steps = 100
		for i := range steps {
			credit(&n.Value.users, strconv.Itoa(many+i))
			discredit(&n.Value.users, strconv.Itoa(many+i))
		}
		runtime.ReadMemStats(&after)
		if bytes := (after.TotalAlloc - before.TotalAlloc) / steps; bytes > 16<<10 {
			t.Errorf("of %d: %d bytes for a user who comes and goes", many, bytes)
		}
		f.touched.Turn()
		f.evict(n, ForEntries)
		for f.gone(n); !f.unlistMore(); {
			f.touched.Turn()
		}
		f.touched.Turn()
		if len(f.owned) != 0 || f.touched.Most() > touched.Most {
			t.Errorf("of %d: %d owners have it still, a turn touched %d", many, len(f.owned), f.touched.Most())
		}
	}
}

// C10: the set of users, whatever order owners come and go in.
func TestUsers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := append(strings.Split("ABCDEFGHIJKLMNOPQRST", ""), "")
		owners := rapid.SampledFrom(names)
		first := owners.Draw(t, "first")
		var p atomic.Pointer[users]
		p.Store(usersOf(first))
		set := []string{first}
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			owner := owners.Draw(t, "owner")
			at := slices.Index(set, owner)
			if rapid.Bool().Draw(t, "credit") {
				if credit(&p, owner) != (at < 0) {
					t.Fatalf("credit %q to %v", owner, set)
				}
				if at < 0 {
					set = append(set, owner)
				}
			} else {
				last := at >= 0 && len(set) == 1
				if discredit(&p, owner) != last {
					t.Fatalf("discredit %q of %v", owner, set)
				}
				if at >= 0 {
					set = slices.Delete(set, at, at+1)
				}
				if last {
					set = []string{""}
				}
			}
			if all := slices.Collect(p.Load().all); !slices.Equal(all, slices.Sorted(slices.Values(set))) {
				t.Fatalf("%q, want %q", all, set)
			}
			for _, o := range names {
				if p.Load().has(o) != slices.Contains(set, o) {
					t.Fatalf("%q in %v: %v", o, set, p.Load().has(o))
				}
			}
		}
	})
}

// each walks all entries, which may go meanwhile. It misses those of a tenant that is
// being forgotten.
func (s *state) each(yield func(*node) bool) {
	walk := func(o *order) bool {
		for n := o.oldest; n != nil; {
			next := n.Value.newer
			if !yield(n) {
				return false
			}
			n = next
		}
		return true
	}
	if !walk(&s.order) {
		return
	}
	for _, t := range s.tenants {
		if !walk(&t.order) {
			return
		}
	}
}

// core drives the state alone.
type core struct {
	*state
	floors *floors
}

func newCore(entries, bytes int64) core {
	return core{
		newState(table.New[entry](nil), limit.Of(entries), limit.Of(bytes)),
		&floors{of: make(map[string]int64), bytes: limit.Of(bytes)},
	}
}

// call asks for a key.
func (c core) call(key, owner string, what kind) answer {
	r := Request{Key: key, Owner: owner}
	return c.ask(&making{call: &call{Request: r, kind: what, placed: r.placedBy(c.table)}})
}

// The core's sweeps, to their ends.

func (c core) to(end func() bool) {
	for !end() {
		c.touched.Turn()
	}
	c.touched.Turn()
}

func (c core) resize(entries, bytes limit.Limit) error {
	err := c.floors.resize(bytes)
	if err == nil {
		c.state.resize(entries, bytes)
		c.to(c.trim)
	}
	return err
}

func (c core) release(owner string) {
	uses := c.owned.take(owner)
	c.to(func() bool { return c.state.release(owner, uses) })
}

func (c core) addFloor(owner string, bytes int64) error {
	return c.floors.add(owner, bytes, func() {
		if c.state.addFloor(owner, bytes) {
			gone := c.leave(owner)
			c.to(func() bool { return c.forget(gone) })
		}
	})
}

func (c core) close() int {
	ended := 0
	c.to(func() bool { return c.state.stop(func(*making) { ended++ }) })
	c.state.closed = true
	c.to(c.empty)
	return ended
}

func (c core) give(bytes int64, tier pressure.Tier) int64 {
	var list []spare
	for n := range c.each {
		list = append(list, c.unused([]*node{n})...)
	}
	rank(list)
	list = slices.DeleteFunc(list, func(one spare) bool { return one.Tier != tier })
	return c.state.give(list, bytes).Bytes
}

// C13: an evicted artefact is remembered while it is leased, and no longer.
func TestApartIsForgotten(t *testing.T) {
	c, err := Open(Config{Entries: limit.Of(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	get := func(key string) *Lease {
		l, _, err := c.Get(context.Background(), Request{Key: key, Owner: "o", Create: func(context.Context) (Built, error) {
			return Built{Value: key, Bytes: 1}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	remembered := func() (apart, owned int) {
		if err := c.SetCapacity(limit.Of(1), limit.Unlimited); err != nil { // a turn behind those before
			t.Fatal(err)
		}
		return len(c.state.apart), len(c.state.owned["o"])
	}
	leased := get("leased")
	for i := range 100 {
		get(strconv.Itoa(i)).End()
	}
	if apart, owned := remembered(); apart != 1 || owned != 2 {
		t.Errorf("%d evicted artefacts and %d of the owner, want 1 and 2", apart, owned)
	}
	leased.End()
	if apart, owned := remembered(); apart != 0 || owned != 1 {
		t.Errorf("after the lease: %d and %d, want 0 and 1", apart, owned)
	}
}

// F6: artefacts of more owners than a turn looks at are forgotten for all of them, the
// second like the first.
func TestOwnersOfManyArtefactsAreForgotten(t *testing.T) {
	c, err := Open(Config{Entries: limit.Of(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	get := func(key, owner string) {
		l, _, err := c.Get(context.Background(), Request{Key: key, Owner: owner, Create: func(context.Context) (Built, error) {
			return Built{Value: key, Bytes: 1}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		l.End()
	}
	for range 2 {
		for i := range 3 * few {
			get("shared", strconv.Itoa(i))
		}
		get("last", "o")                                                    // in its place
		if err := c.SetCapacity(limit.Of(1), limit.Unlimited); err != nil { // a sweep behind those before
			t.Fatal(err)
		}
		if n := len(c.state.owned); n != 1 {
			t.Errorf("%d owners have something, want the one of what is there", n)
		}
	}
}

// F10: how many of the last keys are known, whatever the capacity was before.
func TestPastReaches(t *testing.T) {
	for entries, want := range map[limit.Limit]int{limit.Of(3): 48, limit.Of(0): 16 * DefaultEntries, limit.Unlimited: 262144} {
		var p runs
		p.bound(limit.Of(DefaultEntries))
		if p.bound(entries); p.Most != want {
			t.Errorf("%v: %d keys, want %d", entries, p.Most, want)
		}
	}
	c := newFloors(1, 100)
	if c.resize(limit.Of(5), limit.Limit{}); c.past.Most != 80 {
		t.Errorf("with a capacity of 5 since just now: %d keys, want 80", c.past.Most)
	}
}

// S5: half of the requests of a window are not over half of them.
func TestThrashAtHalf(t *testing.T) {
	const entries, hits = 2, 3
	w := thrash{window: 1}
	for range hits {
		if w.missed(true, true, hits, entries) {
			t.Fatal("thrash begins where half of the requests ran creators")
		}
	}
	if !w.missed(true, true, hits, entries) {
		t.Error("thrash does not begin where over half of the requests did")
	}
}

// F10, C13: what the memory limit took is evicted, and counts as that when it is made again.
func TestMadeAgainAfterTheMemoryLimit(t *testing.T) {
	p := player{core: newCore(2, 100), flights: map[string]*making{}}
	for range 2 {
		p.play([]string{"ask", "a"})
		p.flights["a"].ran = true
		p.play([]string{"land", "a", "bytes=10"})
		if got := p.play([]string{"give", "spare", "bytes=1"}); got != "10, gone a; 0 0:" {
			t.Error(got)
		}
	}
	if n, cleared := p.gauges.again[evicted].Load(), p.gauges.again[cleared].Load(); n != 1 || cleared != 0 {
		t.Errorf("%d runs are said to be since it was evicted, %d since it was cleared; want 1 and 0", n, cleared)
	}
}
