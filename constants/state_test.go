package constants

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/pressure"
)

// core drives the pure state: owners by name, each with the size in its name's
// first digit (MiB).
type core struct {
	*state
	t     *testing.T
	owned map[string]*pending
}

func newCore(t *testing.T, capacity int64, policy Policy) *core {
	return &core{newState(nil, capacity*mib, policy), t, make(map[string]*pending)}
}

func (c *core) admit(name string, cost time.Duration) string {
	p := &pending{key: Key{ID: name}, bytes: int64(name[0]-'0') * mib, cost: cost}
	why := c.state.admit(p)
	if why == "" {
		c.owned[name] = p
	}
	return string(why)
}

func (c *core) deliver(name string) *node {
	p := c.owned[name]
	n := c.state.newNode(p)
	c.state.deliver(p, n)
	return n
}

func (c *core) put(name string, cost time.Duration) *node {
	c.t.Helper()
	if why := c.admit(name, cost); why != "" {
		c.t.Fatalf("%s: %s", name, why)
	}
	return c.deliver(name)
}

// String is everything that is left to see.
func (c *core) String() string {
	var gone []string
	for !c.drain(1) {
	}
	for _, r := range c.take() {
		gone = append(gone, fmt.Sprintf("%s %s", r.node.Key, r.why))
	}
	slices.Sort(gone)
	return fmt.Sprintf("resident %d/%d reserved %d gone [%s]", c.resident/mib, c.table.Len(), c.reserved/mib, strings.Join(gone, ", "))
}

func (c *core) want(want string) {
	c.t.Helper()
	if got := c.String(); got != want {
		c.t.Errorf("%s, want %s", got, want)
	}
}

// C13: a tensor apart whose last lease has ended may have a successor there before the
// actor is told of it. Then it does not count as leased any more.
func TestStateOfASuccessorApart(t *testing.T) {
	c := newCore(t, 1, Cost)
	held := func(name string, cost time.Duration) *node {
		if why := c.admit(name, cost); why != "" {
			t.Fatal(name, why)
		}
		p := c.owned[name]
		n := c.newNode(p)
		n.Value.cell.Init(nil)
		n.Value.cell.Pin()
		c.state.deliver(p, n)
		return n
	}
	first := held("1a", 1)
	held("1b", 2) // evicts it
	first.Value.cell.Drop()
	first.Value.cell.Drop() // its last lease; the actor is told late
	second := held("1a", 4)
	held("1c", 8) // evicts that
	if c.forget(first) || !c.forget(second) {
		t.Error("the one that has gone was taken for its successor")
	}
	if len(c.apart) != 1 || c.leased != mib {
		t.Errorf("%d bytes leased of %d tensors apart", c.leased, len(c.apart))
	}
}

// T3, T4: room is what is neither resident nor reserved.
func TestStateAdmits(t *testing.T) {
	c := newCore(t, 5, NoEvict)
	for _, step := range []struct{ name, why, after string }{
		{"6", "full", "resident 0/0 reserved 0 gone []"},
		{"3", "", "resident 0/0 reserved 3 gone []"},
		{"3b", "full", "resident 0/0 reserved 3 gone []"},
		{"2", "", "resident 0/0 reserved 5 gone []"},
		{"1", "full", "resident 0/0 reserved 5 gone []"},
	} {
		if why := c.admit(step.name, 0); why != step.why {
			t.Errorf("%s: %q, want %q", step.name, why, step.why)
		}
		c.want(step.after)
	}
	c.deliver("3")
	c.want("resident 3/1 reserved 2 gone []")
	c.drop(c.owned["2"])
	c.want("resident 3/1 reserved 0 gone []")
	if why := newCore(t, 0, NoEvict).admit("1", 0); why != "disabled" {
		t.Errorf("capacity 0: %q", why)
	}
}

// T4: COST takes the least seconds per byte, only what it must, and only for
// what is worth more than all of it.
func TestStateDisplaces(t *testing.T) {
	c := newCore(t, 6, Cost)
	c.put("1", 10)
	c.put("2", 2) // 1 a MiB
	c.put("3", 6) // 2 a MiB
	if why := c.admit("2b", 2); why != "full" {
		t.Errorf("worth no more than its victim: %q", why)
	}
	if why := c.admit("4", 8); why != "full" {
		t.Errorf("worth no more than both victims: %q", why)
	}
	c.want("resident 6/3 reserved 0 gone []")
	if why := c.admit("2c", 3); why != "" {
		t.Error(why)
	}
	c.want("resident 4/2 reserved 2 gone [2 evicted]")
	if why := c.admit("5", 1e9); why != "full" { // what is reserved cannot be displaced
		t.Errorf("beside a reservation of 2: %q", why)
	}
	if why := c.admit("7", 1e9); why != "full" {
		t.Errorf("more than the capacity: %q", why)
	}
	c.want("resident 4/2 reserved 2 gone []")
}

// T4: the costs of what would go do not wrap: two of nearly the largest cost are worth
// more than one of the largest.
func TestStateAbsurdCosts(t *testing.T) {
	c := newCore(t, 2, Cost)
	c.put("1a", math.MaxInt64-1)
	c.put("1b", math.MaxInt64-1)
	if why := c.admit("2", math.MaxInt64); why != "full" {
		t.Errorf("worth half of its victims: %q", why)
	}
	c.want("resident 2/2 reserved 0 gone []")
}

// T4, F6: a newcomer looks at a bounded number of victims, whether it displaces them or
// not.
func TestStateDisplacesFew(t *testing.T) {
	for _, n := range []int{mostVictims, mostVictims + 1} {
		c := newCore(t, 1, Cost)
		c.capacity = int64(n)
		for i := range n {
			p := &pending{key: Key{ID: fmt.Sprint(i)}, bytes: 1}
			c.state.admit(p)
			c.state.deliver(p, c.newNode(p))
		}
		why := c.state.admit(&pending{key: Key{ID: "large"}, bytes: int64(n), cost: 1})
		want, stay := Bypass(""), 0
		if n > mostVictims {
			want, stay = Full, n
		}
		if why != want || c.worth.Len() != stay {
			t.Errorf("%d victims: %q, %d stay", n, why, c.worth.Len())
		}
	}
}

// T2, F7: a flush takes everything and keeps what is computed from staying.
func TestStateFlushes(t *testing.T) {
	c := newCore(t, 8, NoEvict)
	n := c.put("1", 0)
	c.put("2", 0)
	c.admit("3", 0)
	c.setCapacity(4 * mib)
	if freed := c.shrink([]*node{n}, mib); freed.Bytes != 0 { // for the memory limit
		t.Errorf("%d bytes freed of what is flushed", freed.Bytes)
	}
	if c.drain(1) || !c.drain(1) {
		t.Error("2 tensors have not gone in 2 pieces")
	}
	if !n.Value.gone.Load() {
		t.Error("a flushed tensor is not gone")
	}
	c.want("resident 0/0 reserved 0 gone [1 flush, 2 flush]")
	if c.admit("4", 0) != "" { // what is being computed takes no room any more
		t.Error("no room after a flush")
	}
	if late := c.deliver("3"); !late.Value.gone.Load() {
		t.Error("what was computed over a flush stays")
	}
	c.want("resident 0/0 reserved 4 gone []")
}

// T7: a key is removed once, resident or pending.
func TestStateRemoves(t *testing.T) {
	c := newCore(t, 8, NoEvict)
	c.put("1", 0)
	c.admit("2", 0)
	for _, step := range []struct {
		name string
		want bool
	}{{"1", true}, {"1", false}, {"2", true}, {"2", false}, {"3", false}} {
		if got := c.removeKey(Key{ID: step.name}, 0); got != step.want {
			t.Errorf("remove %s: %v", step.name, got)
		}
	}
	c.want("resident 0/0 reserved 0 gone [1 removed]")
	c.deliver("2")
	c.want("resident 0/0 reserved 0 gone []")
}

// T6: an heir takes the place and the reservation, at its own size.
func TestStateInherits(t *testing.T) {
	c := newCore(t, 4, NoEvict)
	c.put("1", 0)
	c.admit("2", 0)
	p := c.owned["2"]
	if c.inherit(p, &pending{key: p.key, bytes: 4 * mib}) {
		t.Error("4 beside 1 of 4 was inherited")
	}
	c.want("resident 1/1 reserved 2 gone []")
	heir := &pending{key: p.key, bytes: 3 * mib}
	inherits := c.inherit(p, heir)
	if now, _ := c.flights.Find(p.key); !inherits || now != heir || !c.flights.May(heir) {
		t.Error("3 beside 1 of 4 was not inherited")
	}
	c.want("resident 1/1 reserved 3 gone []")
	c.setCapacity(noBound)
	late := &pending{key: p.key, bytes: mib}
	if !c.inherit(heir, late) || c.flights.May(late) {
		t.Error("an heir of what was flushed must not stay")
	}
	c.drop(late)
	c.want("resident 0/0 reserved 0 gone [1 flush]")
}

// T4, T6: an heir of more bytes displaces what the same call of a newcomer would.
func TestStateHeirDisplaces(t *testing.T) {
	c := newCore(t, 4, Cost)
	c.put("2", 1)
	c.admit("1", 1)
	p := c.owned["1"]
	if c.inherit(p, &pending{key: p.key, bytes: 4 * mib, cost: 1}) {
		t.Error("an heir worth no more than its victim")
	}
	c.want("resident 2/1 reserved 1 gone []")
	if !c.inherit(p, &pending{key: p.key, bytes: 4 * mib, cost: 2}) {
		t.Error("an heir worth more than its victim")
	}
	c.want("resident 0/0 reserved 4 gone [2 evicted]")
}

// T6: those that can compute come in the order they came, whoever leaves meanwhile.
// The heir's flight begins with the heir alone; the others stay in the line.
func TestStateHeirs(t *testing.T) {
	c := newCore(t, 4, NoEvict)
	c.admit("2", 0)
	p := c.owned["2"]
	var all []*waiter
	for range 4 {
		w := &waiter{asked: &pending{key: p.key, bytes: 2 * mib}}
		if _, first, found := c.join(p.key, w); !found || first != (len(all) == 0) {
			t.Fatal("not aboard")
		}
		all = append(all, w)
	}
	c.join(p.key, nil)
	c.withdraw(all[0])
	c.withdraw(all[0])
	c.leave(p)
	heir := c.heir(p)
	if heir != all[1] || !c.inherit(p, heir.asked) || p.Callers() != 5 || heir.asked.Callers() != 1 {
		t.Fatalf("the heir has %d callers aboard, the old owner %d", heir.asked.Callers(), p.Callers())
	}
	c.withdraw(all[2])
	late := &waiter{asked: &pending{key: p.key, bytes: 2 * mib}}
	if f, first, found := c.join(p.key, late); !found || first || f != heir.asked || c.heir(f) != all[3] || c.heir(f) != late || c.heir(f) != nil {
		t.Error("the next heirs are the one that stayed and the one that came")
	}
	c.drop(heir.asked)
	c.want("resident 0/0 reserved 0 gone []")
}

// T4: no sum of sizes wraps.
func TestStateAbsurdSizes(t *testing.T) {
	c := newCore(t, 1, NoEvict)
	c.put("1", 0)
	for _, bytes := range []int64{1, mib, pressure.MostBytes, pressure.MostBytes - 1} {
		if why := c.state.admit(&pending{key: Key{ID: "x"}, bytes: bytes}); why != Full {
			t.Errorf("%d bytes: %q", bytes, why)
		}
	}
}

// T4, Q5: nor without a capacity, where what is full is the sum; and what is worth
// less than two victims of the longest cost displaces neither.
func TestStateAbsurdSums(t *testing.T) {
	s := newState(nil, noBound, NoEvict)
	for i := range math.MaxInt64/pressure.MostBytes + 2 {
		want := Bypass("")
		if i >= math.MaxInt64/pressure.MostBytes {
			want = Full
		}
		if why := s.admit(&pending{key: Key{ID: strconv.Itoa(i)}, bytes: pressure.MostBytes}); why != want {
			t.Fatalf("tensor %d: %q, %d bytes reserved", i, why, s.reserved)
		}
	}
	s = newState(nil, 2*mib, Cost)
	for _, id := range []string{"a", "b"} {
		p := &pending{key: Key{ID: id}, bytes: mib, cost: math.MaxInt64 - 1}
		if why := s.admit(p); why != "" || !s.deliver(p, s.newNode(p)) {
			t.Fatalf("%s: %q", id, why)
		}
	}
	if why := s.admit(&pending{key: Key{ID: "c"}, bytes: 2 * mib, cost: math.MaxInt64}); why != Full {
		t.Errorf("one that is worth less than both it displaces: %q", why)
	}
}
