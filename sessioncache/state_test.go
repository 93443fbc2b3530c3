package sessioncache

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/shapegroups"
)

// core drives the pure core without actor, flight or goroutine.
type core struct {
	*state
	t *testing.T
}

func newCore(t *testing.T, c Config) core {
	t.Helper()
	c, err := c.Validate()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newState(c, newPublished(c, nil))
	if err != nil {
		t.Fatal(err)
	}
	return core{s, t}
}

// group acquires the group of a shape and enters it, as the shell does.
func (c core) group(n int64) *group {
	c.t.Helper()
	shape, err := shapegroups.N(n)
	if err != nil {
		c.t.Fatal(err)
	}
	use, err := c.published.note(shape, byAcquire)
	if err != nil {
		c.t.Fatal(err)
	}
	g, err := c.acquire(use)
	if err != nil {
		c.t.Fatal(err)
	}
	g.grace.enter()
	return g
}

// did is the effects of the last event, which are then forgotten.
func (c core) did() string {
	var words []string
	for _, a := range c.effects.start {
		words = append(words, "start "+a.name)
	}
	for _, a := range c.effects.answer {
		word := "answer " + a.name
		switch {
		case a.err != nil:
			word += " " + a.err.Error()
		case a.other != nil:
			word += " join"
		case a.hit:
			word += " hit"
		case a.loose:
			word += " loose"
		}
		words = append(words, word)
	}
	for _, a := range c.effects.cancel {
		words = append(words, "cancel "+a.name)
	}
	for _, t := range c.effects.trash {
		if t.group != nil {
			words = append(words, "free group "+t.group.shape.String())
		} else {
			words = append(words, "free value")
		}
	}
	c.effects = effects{}
	return strings.Join(words, ", ")
}

func (c core) want(what, effects string, groups, objects int64) {
	c.t.Helper()
	got := fmt.Sprintf("%s; %d groups, %d objects", c.did(), c.published.groups.Load(), c.published.objects.Load())
	if want := fmt.Sprintf("%s; %d groups, %d objects", effects, groups, objects); got != want {
		c.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestTransitions(t *testing.T) {
	c := newCore(t, Config{Policy: "fifo", Groups: LimitOf(1)})
	g := c.group(1)
	c.want("acquire", "", 1, 0) // a group being computed counts
	a, b := &ask{group: g, name: "n"}, &ask{group: g, name: "n"}
	c.ask(a)
	c.want("first ask", "start n", 1, 0)
	c.ask(b)
	c.want("second ask", "answer n join", 1, 0) // F1
	c.created(a, Value{Any: 1}, nil)
	c.want("created", "answer n", 1, 1)
	d := &ask{group: g, name: "n"}
	c.ask(d)
	c.want("third ask", "answer n hit", 1, 1)
	for _, a := range []*ask{a, d} { // who waited has taken the value and lets it go
		a.node.Value.cell.Drop()
	}

	e := &ask{group: g, name: "late"}
	c.ask(e)
	c.want("ask", "start late", 1, 1)
	h := c.group(2)                    // nothing else can go than the group in use
	c.want("evicted in use", "", 1, 0) // and it serves its handle
	g.grace.leave(0)
	c.vacated(g)
	c.want("its handle closed", "", 1, 0) // its creator runs
	c.created(e, Value{Any: 2}, nil)
	c.want("created too late", "answer late loose, free group [[1]]", 1, 0) // F7
	if e.node.Value.cell.Pins() != 1 {
		t.Error("those who wait do not hold the value")
	}

	f := &ask{group: h, name: "x"}
	c.ask(f)
	c.did()
	h.grace.leave(0)
	c.close()
	c.want("close", "answer x closed, cancel x", 0, 0) // F8
	c.created(f, Value{Free: func() {}}, nil)
	c.want("end of a cancelled creator", "free value, free group [[2]]", 0, 0)
	if c.published.running.Load() != 0 {
		t.Error("creators are said to run")
	}
	c.ask(&ask{group: h, name: "y"})
	c.want("ask when closed", "answer y closed", 0, 0)
}

// K2, F1: flights are placed by hashes and told apart by their keys.
func TestFlightsOfOneHash(t *testing.T) {
	c := newCore(t, Config{Hash: func(string) uint64 { return 7 }})
	var all []*ask
	for n := range int64(2) {
		shape, err := shapegroups.N(n + 1)
		if err != nil {
			t.Fatal(err)
		}
		g := c.published.newGroup(shape)
		for _, name := range []string{"a", "b"} {
			for _, lane := range []Lane{0, Worker(0)} {
				all = append(all, &ask{group: g, name: name, hash: g.names.Hash(name), options: Options{Lane: lane}})
			}
		}
	}
	for first := range all { // and on from there, to the end and around
		running, f := make(map[*ask]bool), make(flights)
		for _, a := range all {
			f.add(a)
			running[a] = true
		}
		for i := range all {
			gone := all[(first+3*i)%len(all)]
			f.remove(gone)
			f.remove(gone) // has no effect
			delete(running, gone)
			for _, a := range all {
				found := f.find(a.at(), a.group.shape, a.name, a.options.Lane)
				if running[a] && found != a || !running[a] && found != nil {
					t.Fatalf("from %d, %d removed: found %p for %p, running %v", first, i+1, found, a, running[a])
				}
			}
			n := 0
			for range f.all() {
				n++
			}
			if n != len(running) {
				t.Fatalf("%d of %d listed", n, len(running))
			}
		}
		if len(f) != 0 {
			t.Fatalf("%d places are kept for nothing", len(f))
		}
	}
}
