package artefacts

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/limit"
)

// tenancy drives the core alone: an artefact is begun and landed in one go.
type tenancy struct{ core }

func newFloors(entries, bytes int64) tenancy { return tenancy{newCore(entries, bytes)} }

// unleased forgets what was evicted: nobody leases anything.
func (f tenancy) unleased() {
	for _, n := range f.dropped {
		f.gone(n)
	}
	f.dropped = nil
}

// ask uses a key for an owner and reports whether it was resident.
func (f tenancy) ask(owner, key string, bytes int64) (hit bool) {
	f.unleased()
	if n := f.table.Lookup(key, 0); n != nil {
		if credit(&n.Value.users, owner) {
			f.credited(n, owner)
		}
		f.use(n)
		return true
	}
	m := f.call(key, owner, normal).aboard
	m.n.Value.cell.Init(nil)
	m.n.Value.bytes = bytes
	f.land(m)
	return false
}

func (f tenancy) has(key string) bool { return f.table.Lookup(key, 0) != nil }

// C1, C10: what others hold of the capacity leaves a tenant within its floor as
// it is, be entries or bytes the binding one.
func TestFloorAgainstFlood(t *testing.T) {
	for _, c := range []struct{ entries, bytes int64 }{{12, 1 << 40}, {1 << 20, 120}} {
		run := func(flooded bool) (hits int) {
			f := newFloors(c.entries, c.bytes)
			f.addFloor("a", 60)
			for i := range 200 {
				if f.ask("a", fmt.Sprint("a", i*i%6), 10) {
					hits++
				}
				for j := range 10 {
					if flooded {
						f.ask("b", fmt.Sprint("b", i*10+j), 10)
					}
				}
			}
			return hits
		}
		if alone, flooded := run(false), run(true); alone != flooded || alone < 100 {
			t.Errorf("%+v: %d hits alone, %d in the flood", c, alone, flooded)
		}
	}
}

// What nobody's floor holds goes by its age, tenants' or not.
func TestAgeAmongThoseAboveTheirFloors(t *testing.T) {
	f := newFloors(4, 100)
	f.addFloor("a", 10)
	f.ask("a", "a1", 10)
	f.ask("", "x", 10)
	f.ask("a", "a2", 10)
	f.ask("", "y", 10)
	f.ask("", "z", 10) // a is above its floor and a1 the oldest of all
	if f.has("a1") || !f.has("x") {
		t.Error("the oldest is a1")
	}
	f.ask("", "w", 10) // a2 is all that a has
	if f.has("x") || !f.has("a2") {
		t.Error("a2 is held by a's floor")
	}
	f.ask("a", "y", 10) // a comes to use it
	f.ask("", "v", 10)
	f.ask("", "u", 10)
	f.ask("", "t", 10)
	if f.has("z") || f.has("w") || f.has("a2") || !f.has("y") {
		t.Errorf("of a2 %v and y %v a's floor holds the one used last", f.has("a2"), f.has("y"))
	}
	f.addFloor("a", -10)
	for i := range 4 {
		f.ask("", fmt.Sprint(i), 10)
	}
	if f.has("a2") || f.has("y") || len(f.tenants) != 0 || f.size() != 4 {
		t.Error("a floor taken back holds still")
	}
}

// Floors that do not fit the bytes are refused, as is a capacity that does not
// hold the floors; both change nothing. With 0 bytes nothing is kept anyway.
func TestFloorsWithinBytes(t *testing.T) {
	f := newFloors(20, 100)
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fault.ErrTooLarge) || !strings.Contains(err.Error(), "raise the capacity or lower the floors") {
			t.Errorf("%s: %v", what, err)
		}
	}
	taken := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	taken("a", f.addFloor("a", 80))
	refused("b's 80 beside a's", f.addFloor("b", 80))
	refused("all there is", f.addFloor("b", math.MaxInt64))
	if len(f.tenants) != 1 {
		t.Errorf("%d tenants after a refusal", len(f.tenants))
	}
	taken("b", f.addFloor("b", 20))
	refused("one more", f.addFloor("a", 1))
	for i := range 8 {
		f.ask("a", fmt.Sprint("a", i), 10)
	}
	for i := range 9 {
		f.ask("b", fmt.Sprint("b", i), 10)
	}
	refused("99 bytes", f.resize(limit.Of(1), limit.Of(99)))
	if f.size() != 10 || f.bytes != limit.Of(100) || f.entries != limit.Of(20) || !f.has("a0") || !f.has("b8") {
		t.Errorf("a refused capacity left %d entries of %v and %v", f.size(), f.entries, f.bytes)
	}
	taken("fewer entries", f.resize(limit.Of(9), limit.Limit{}))
	taken("a lower floor", f.addFloor("b", -1))
	taken("99 bytes", f.resize(limit.Limit{}, limit.Of(99)))
	taken("nothing", f.resize(limit.Limit{}, limit.Of(0)))
	taken("a floor where nothing is kept", f.addFloor("c", 7))
	refused("less than with the new one", f.resize(limit.Limit{}, limit.Of(105)))
	taken("enough", f.resize(limit.Limit{}, limit.Of(106)))
	taken("no bound", f.resize(limit.Limit{}, limit.Unlimited))
	taken("much", f.addFloor("a", math.MaxInt64-106))
	refused("more than there are numbers", f.addFloor("b", 1))
}

// An owner whose floor has come to nothing leaves no trace, and what it used stays.
func TestOwnersAreForgotten(t *testing.T) {
	f := newFloors(20, 100)
	for i := range 1000 {
		who := fmt.Sprint("tenant", i)
		f.addFloor(who, 10)
		f.ask(who, "shared", 1)
		f.ask(who, fmt.Sprint("own", i%9), 1)
		f.addFloor(who, -10)
	}
	for n := range f.each {
		if u := n.Value.users.Load(); !u.only("") {
			t.Errorf("%s is used by %q and perhaps more", n.Key, u.owner)
		}
	}
	if len(f.owned) != 0 || f.size() != 10 {
		t.Errorf("%d owners, %d entries", len(f.owned), f.size())
	}
}

// The tenants' sums and orders against what is resident, and floors against all
// that others do.
func TestTenantsProp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFloors(rapid.Int64Range(2, 8).Draw(t, "entries"), rapid.Int64Range(20, 60).Draw(t, "bytes"))
		owner := rapid.SampledFrom([]string{"a", "b", "c", ""})
		key := rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "6", "7", "8", "9"})
		held := func(who string) (bytes int64) {
			if o := f.tenants[who]; o != nil {
				bytes = o.bytes
			}
			return bytes
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			who := owner.Draw(t, "who")
			before := map[string]int64{"a": held("a"), "b": held("b")}
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); what {
			case 0:
				if who == "a" || who == "b" {
					f.addFloor(who, rapid.Int64Range(-20, 20).Draw(t, "floor"))
					before = nil
				}
			case 1:
				f.release(who)
				before = nil
				if len(f.owned[who]) > 0 {
					t.Fatalf("%q was released and owns %d", who, len(f.owned[who]))
				}
			case 2:
				f.give(rapid.Int64Range(1, 20).Draw(t, "give"), pressure.Spare)
			case 3:
				f.unleased()
				f.call(key.Draw(t, "flies"), who, normal) // until it is asked for
			default:
				key := key.Draw(t, "key")
				_, flies := f.flights.Find(key)
				shared := f.has(key) || flies
				f.ask(who, key, rapid.Int64Range(0, 15).Draw(t, "bytes"))
				if shared {
					before = nil // it may count to another floor now
				}
			}
			for o, had := range before {
				if tenant := f.tenants[o]; tenant != nil && o != who && tenant.bytes < min(had, tenant.floor) {
					// Only an artefact that moved to a floor with room may leave.
					if n := moved(f.state, o); n == 0 {
						t.Fatalf("%s had %d of a floor of %d and is left %d", o, had, tenant.floor, tenant.bytes)
					}
				}
			}
			for _, may := range []scope{either, complete} {
				if got, want := nodeOf(f.victim(nil, may, always)), slowVictim(f.state, may); got != want {
					t.Fatalf("%v goes next, want %v", got, want)
				}
				if got, want := nodeOf(f.surplus(may, always)), slowSurplus(f.state, may); got != want {
					t.Fatalf("%v goes next of the surplus, want %v", got, want)
				}
			}
			var bytes, entries int64
			for n := range f.each {
				entries++
				for owner := range n.Value.users.Load().all {
					if _, ok := f.owned[owner][n]; owner != "" && !ok {
						t.Fatalf("%s is not known to be %s's", n.Key, owner)
					}
				}
				bytes += n.Value.kept()
				if in := n.Value.in; in != &f.order && in != &n.Value.tenant.order {
					t.Fatalf("%s is in another's order", n.Key)
				}
			}
			held := int64(0)
			for name, o := range f.tenants {
				var sum, landed int64
				for n := o.oldest; n != nil; n = n.Value.newer {
					sum += n.Value.kept()
					if n.Value.resident.Load() {
						landed++
					}
					if n.Value.newer != nil && n.Value.newer.Value.used < n.Value.used {
						t.Fatalf("%s: out of order", name)
					}
				}
				if sum != o.bytes || landed != o.landed {
					t.Fatalf("%s: %d bytes of %d counted, %d of %d there", name, o.bytes, o.landed, sum, landed)
				}
				held += min(sum, o.floor)
			}
			if held != f.ranks.bytes {
				t.Fatalf("floors hold %d bytes, %d counted", held, f.ranks.bytes)
			}
			if bytes != f.gauges.bytes.Load() || !f.bytes.Allows(bytes) || !f.entries.Allows(f.size()) || entries != f.size() {
				t.Fatalf("%d bytes, %d entries", bytes, f.size())
			}
		}
	})
}

// slowVictim is victim(nil, may) by a look at every tenant. It may be called after
// that, when no entry has to go over to another tenant any more.
func slowVictim(s *state, may scope) *node {
	n := s.order.slowFirst(may)
	for _, o := range s.tenants {
		if head := o.slowFirst(may); head != nil && !o.holds(head) && (n == nil || head.Value.used < n.Value.used) {
			n = head
		}
	}
	return n
}

// slowSurplus is surplus(may) likewise.
func slowSurplus(s *state, may scope) *node {
	n := slowVictim(s, may)
	if n != nil {
		return n
	}
	for _, o := range s.tenants {
		if head := o.slowFirst(may); head != nil && (n == nil || head.Value.used < n.Value.used) {
			n = head
		}
	}
	return n
}

// C2: where floors are all that is left, what goes of the surplus costs the logarithm of
// the number of tenants.
func TestSurplusOfManyTenants(t *testing.T) {
	const many = 10_000
	f := newFloors(many, 1<<40)
	for i := range many {
		who := fmt.Sprint("t", i)
		f.addFloor(who, 10)
		f.ask(who, fmt.Sprint("a", i), 10)
	}
	f.resize(limit.Of(many/2), limit.Limit{})
	turns := 0
	for over := false; !over; turns++ {
		f.touched.Turn()
		over = f.trim()
	}
	if f.touched.Turn(); turns > 10 || f.touched.Most() > touched.Most {
		t.Errorf("%d turns, of which one touched %d", turns, f.touched.Most())
	}
	if f.has(fmt.Sprint("a", many/2-1)) || !f.has(fmt.Sprint("a", many/2)) || f.size() != many/2 {
		t.Errorf("%d are left, not the younger half", f.size())
	}
}

// oldFlights are tenants of one floor each, each with a flight that began before the two
// artefacts of 10 bytes were used that the last of them have.
func oldFlights(tenants, last int, floor int64) tenancy {
	f := newFloors(1<<30, 1<<40)
	for i := range tenants {
		f.state.addFloor(fmt.Sprint("t", i), floor)
		f.call(fmt.Sprint("flies ", i), fmt.Sprint("t", i), normal)
	}
	for i := tenants - last; i < tenants; i++ {
		f.ask(fmt.Sprint("t", i), fmt.Sprint("a", i), 10)
		f.ask(fmt.Sprint("t", i), fmt.Sprint("b", i), 10)
	}
	f.touched = touched.Gauge{}
	return f
}

// F6, C2: lowering the capacity in bytes ends, and what is oldest goes, beside many tenants
// with flights under way, be they above their floors, within them, or without a resident.
func TestTrimEndsBesideTenantsWithOldFlights(t *testing.T) {
	const many = 5000
	for _, c := range []struct{ last, floor int64 }{{many, 1}, {many, 20}, {3, 20}, {3, 0}} {
		f := oldFlights(many, int(c.last), c.floor)
		f.state.resize(limit.Limit{}, limit.Of(20*c.last-50)) // five have to go
		turns := 1
		for ; !f.trim() && turns < 100; turns++ {
			f.touched.Turn()
		}
		f.touched.Turn()
		oldest := many - c.last
		if n := f.touched.Most(); turns > 10 || n > touched.Most || f.has(fmt.Sprint("a", oldest)) || !f.has(fmt.Sprint("b", many-1)) {
			t.Errorf("%+v: %d turns, of which one touched %d; %d bytes are left, the oldest among them %v",
				c, turns, n, f.gauges.bytes.Load(), f.has(fmt.Sprint("a", oldest)))
		}
	}
}

// F6: nor does the landing of what needs bytes touch more than a turn may.
func TestLandingBesideTenantsWithOldFlights(t *testing.T) {
	const many = 6000
	f := oldFlights(many, many, 1)
	f.state.resize(limit.Limit{}, limit.Of(20*many))
	f.trim()
	m := f.call("new", "", normal).aboard
	m.n.Value.cell.Init(nil)
	m.n.Value.bytes = 10
	for !f.landable(m) {
		f.touched.Turn()
	}
	kept := f.land(m)
	f.touched.Turn()
	if n := f.touched.Most(); !kept || m.turns > 10 || n > touched.Most || f.has("a0") {
		t.Errorf("kept %v in %d turns, of which one touched %d; the oldest is left %v", kept, m.turns, n, f.has("a0"))
	}
}

// C1: what the last tenant with a floor had goes by its age while its floor is given back.
func TestLastTenantsEntriesGoWhileItLeaves(t *testing.T) {
	const many = touched.Most
	f := newFloors(many, 1<<40)
	f.state.addFloor("t", 1)
	for i := range many {
		f.ask("t", fmt.Sprint(i), 1)
	}
	f.state.addFloor("t", -1)
	f.touched.Turn()
	if f.forget(f.leave("t")) {
		t.Fatal("it left in one turn")
	}
	if f.ask("", "new", 1); !f.has("new") || f.has("0") {
		t.Errorf("new is kept %v, the oldest %v", f.has("new"), f.has("0"))
	}
}

// moved counts what an owner uses and another tenant's floor holds.
func moved(s *state, owner string) (n int) {
	for name, o := range s.tenants {
		for at := o.oldest; at != nil; at = at.Value.newer {
			if name != owner && at.Value.users.Load().has(owner) {
				n++
			}
		}
	}
	return n
}

// With 16,000 tenants a miss costs about what it costs with one: by a look at each of
// them this takes minutes.
func TestManyTenants(t *testing.T) {
	const many = 16_000
	f := newFloors(2*many, 1<<40)
	for i := range many {
		who := fmt.Sprint("t", i)
		f.addFloor(who, 10)
		f.ask(who, fmt.Sprint("a", i), 10)
		f.ask(who, fmt.Sprint("b", i), 10)
	}
	start := time.Now()
	for i := range many {
		f.ask(fmt.Sprint("t", i), fmt.Sprint("c", i), 10)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("%d misses took %v", many, took)
	}
	if f.has("a0") || f.has("b0") || !f.has("c0") || !f.has(fmt.Sprint("a", many-1)) {
		t.Error("the oldest that no floor holds were to go")
	}
}

func nodeOf(n *node, _ bool) *node { return n }
