package artefacts

import (
	"testing"

	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/limit"
)

// What holds though something else came in between.

// made has an artefact of that many bytes become resident.
func (c core) made(key, owner string, bytes int64) *node {
	m := c.call(key, owner, normal).aboard
	m.n.Value.bytes = bytes
	m.n.Value.cell.Init(nil)
	if !c.land(m) {
		panic("not kept")
	}
	return m.n
}

// C10: a use that the actor learns of when the artefact has gone is listed for nobody: nothing
// would ever take it off that list.
func TestUseOfWhatHasGone(t *testing.T) {
	c := newCore(2, 100)
	n := c.made("k", "", 10)
	credit(&n.Value.users, "o") // by a reader
	c.evict(n, ForMemory)
	c.gone(n) // nobody leases it
	if c.credited(n, "o"); len(c.owned) != 0 {
		t.Errorf("%d owners are said to have used something", len(c.owned))
	}
}

// Q2: an owner that has a floor again before it was forgotten is not forgotten.
func TestFloorComesBackBeforeItsOwnerLeaves(t *testing.T) {
	c := newCore(2, 100)
	if c.state.addFloor("o", 10); !c.state.addFloor("o", -10) {
		t.Fatal("an owner without a floor is to leave")
	}
	c.state.addFloor("o", 5)
	if l := c.state.leave("o"); l != nil || c.tenants["o"] == nil || c.tenants["o"].floor != 5 {
		t.Error("an owner with a floor has left")
	}
}

// Q2: a floor lowered by more than it is is none: those of others count as before.
func TestFloorLoweredBeyondNothing(t *testing.T) {
	f := floors{of: make(map[string]int64), bytes: limit.Of(100)}
	told := 0
	for _, add := range []struct {
		owner string
		bytes int64
	}{{"a", 10}, {"b", 60}, {"a", -50}} {
		if err := f.add(add.owner, add.bytes, func() { told++ }); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.add("c", 41, func() { told++ }); err == nil || f.sum != 60 || told != 3 {
		t.Errorf("floors of 60 and 41 in 100: %v; their sum is said to be %d", err, f.sum)
	}
}

// F10, D3: what is made room for before a landing is no more than the landing needs: the part
// goes, whose bytes are the whole's.
func TestRoomBesideAPart(t *testing.T) {
	c := newCore(9, 100)
	c.made("other", "", 50)
	c.made("d", "", 40)
	r := Request{Key: "p", Part: "d"}
	m := c.ask(&making{call: &call{Request: r, placed: r.placedBy(c.table)}}).aboard
	m.n.Value.bytes = 50
	m.n.Value.cell.Init(nil)
	if !c.landable(m) || len(c.dropped) != 0 {
		t.Errorf("%d artefacts have gone for one that takes its part's room", len(c.dropped))
	}
	if !c.land(m) || c.table.Lookup("other", 0) == nil || c.gauges.bytes.Load() != 100 {
		t.Errorf("the whole and the other do not fit: %d bytes", c.gauges.bytes.Load())
	}
}

// Q2, Q5: the memory limit takes nothing as spare that a floor holds by now.
func TestFloorRaisedAfterTheOffer(t *testing.T) {
	c := newCore(9, 100)
	c.state.addFloor("o", 10)
	list := c.unused([]*node{c.made("k", "o", 10), c.made("l", "o", 10)})
	if rank(list); len(list) != 2 || list[0].Tier != pressure.Spare {
		t.Fatalf("listed: %+v", list)
	}
	c.state.addFloor("o", 10)
	if freed := c.state.give(list[:1], 10); freed.Bytes != 0 || len(c.dropped) != 0 {
		t.Errorf("%d bytes freed of what a floor holds", freed.Bytes)
	}
}
