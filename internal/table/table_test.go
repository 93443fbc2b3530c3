package table_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/internal/table"
)

type id struct {
	key string
	sub uint64
}

var kinds = map[string]func(func(string) uint64) *table.Table[int]{"dense": table.New[int], "sparse": table.NewSparse[int]}

// Any sequence of changes gives what a map gives, however badly keys are placed.
func TestModel(t *testing.T) {
	hashes := map[string]func(string) uint64{
		"seeded": nil,
		"one":    func(string) uint64 { return 7 },
		"few":    func(s string) uint64 { return uint64(len(s)) },
		"high":   func(string) uint64 { return 1 << 63 },
	}
	for name, hash := range hashes {
		for _, by := range []int{0, 1, 5} {
			for kind, empty := range kinds {
				t.Run(fmt.Sprint(name, "/", kind, "/", by), func(t *testing.T) {
					if by > 0 {
						defer table.MoveBy(by)()
					}
					rapid.Check(t, func(t *rapid.T) { checkModel(t, empty(hash)) })
				})
			}
		}
	}
}

func checkModel(t *rapid.T, tab *table.Table[int]) {
	model := map[id]*table.Node[int]{}
	ids := rapid.Custom(func(t *rapid.T) id {
		return id{"k" + strconv.Itoa(rapid.IntRange(0, 40).Draw(t, "key")), uint64(rapid.IntRange(0, 2).Draw(t, "sub"))}
	})
	t.Repeat(map[string]func(*rapid.T){
		"put": func(t *rapid.T) {
			k := ids.Draw(t, "id")
			n := tab.NewNode(k.key, k.sub)
			if old := tab.Put(n); old != model[k] {
				t.Fatalf("put %v replaced %v, want %v", k, old, model[k])
			}
			model[k] = n
		},
		"remove": func(t *rapid.T) {
			k := ids.Draw(t, "id")
			n, ok := model[k]
			if !ok {
				if tab.Remove(tab.NewNode(k.key, k.sub)) {
					t.Fatalf("removed %v, which is not there", k)
				}
				return
			}
			if tab.Remove(tab.NewNode(k.key, k.sub)) {
				t.Fatalf("removed another node of %v", k)
			}
			if !tab.Remove(n) || tab.Remove(n) {
				t.Fatalf("%v was not removed exactly once", k)
			}
			delete(model, k)
		},
		"clear": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
				tab.Clear()
				clear(model)
			}
		},
		"": func(t *rapid.T) {
			if tab.Len() != len(model) {
				t.Fatalf("len = %d, want %d", tab.Len(), len(model))
			}
			seen := 0
			tab.All(func(n *table.Node[int]) bool {
				if model[id{n.Key, n.Sub}] != n {
					t.Fatalf("All shows %v", n)
				}
				seen++
				return true
			})
			if seen != len(model) {
				t.Fatalf("All shows %d of %d", seen, len(model))
			}
			k := ids.Draw(t, "looked up")
			if n := tab.Lookup(k.key, k.sub); n != model[k] {
				t.Fatalf("lookup %v = %v, want %v", k, n, model[k])
			}
		},
	})
}

func TestAllStops(t *testing.T) {
	tab := table.New[int](nil)
	for i := range 10 {
		tab.Put(tab.NewNode(strconv.Itoa(i), 0))
	}
	seen := 0
	tab.All(func(*table.Node[int]) bool { seen++; return seen < 3 })
	if seen != 3 {
		t.Errorf("All went on for %d nodes, want 3", seen)
	}
}

// Readers beside the writer: never another key's node (K2), and a node that
// stays is seen at any time, through every rebuild.
func TestHammer(t *testing.T) {
	short := func(s string) uint64 { return uint64(len(s)) }
	for i, hash := range []func(string) uint64{nil, short, nil, short} {
		if i > 1 {
			defer table.MoveBy(1)()
		}
		tab := table.New[int](hash)
		fixed := tab.NewNode("fixed", 1)
		tab.Put(fixed)
		var stop atomic.Bool
		var readers sync.WaitGroup
		for r := range 4 {
			readers.Go(func() {
				for i := r; !stop.Load(); i++ {
					if tab.Lookup("fixed", 1) != fixed {
						t.Error("a node that was never removed was not found")
						return
					}
					key := "k" + strconv.Itoa(i%64)
					if n := tab.Lookup(key, 0); n != nil && (n.Key != key || n.Value != i%64) {
						t.Errorf("lookup %s gave %s = %d", key, n.Key, n.Value)
						return
					}
				}
			})
		}
		for i := range 20_000 {
			j := i * 7 % 64
			key := "k" + strconv.Itoa(j)
			if n := tab.Lookup(key, 0); n != nil {
				tab.Remove(n)
			} else {
				n := tab.NewNode(key, 0)
				n.Value = j
				tab.Put(n)
			}
		}
		stop.Store(true)
		readers.Wait()
	}
}

// F6: no call moves more than a part of a large table, whether it grows, stays as it is or
// shrinks, and all has moved before the next time.
func TestLargeTableMovesInParts(t *testing.T) {
	for kind, slots := range map[string]int{"dense": 2, "sparse": 8} {
		t.Run(kind, func(t *testing.T) { checkMoves(t, kinds[kind](nil), slots) })
	}
}

func checkMoves(t *testing.T, tab *table.Table[int], each int) {
	const large = 1 << 17
	most := 64 * each
	var nodes []*table.Node[int]
	moves := 0
	check := func(before int) {
		t.Helper()
		if now := tab.Moving(); now < before-most || now > 0 && before > 0 && now >= before {
			t.Fatalf("with %d nodes %d slots of %d are left to move", tab.Len(), now, before)
		} else if now > before {
			if before > most {
				t.Fatalf("with %d nodes %d slots are still to move when the next move begins", tab.Len(), before)
			}
			moves++
		}
	}
	put := func(i int) {
		before := tab.Moving()
		n := tab.NewNode(strconv.Itoa(i), 0)
		tab.Put(n)
		if slots := tab.Slots(); slots < tab.Len()*each {
			t.Fatalf("%d slots for %d nodes", slots, tab.Len())
		}
		nodes = append(nodes, n)
		check(before)
	}
	remove := func(i int) {
		before := tab.Moving()
		if !tab.Remove(nodes[i]) {
			t.Fatal("removed what is not there")
		}
		check(before)
	}
	for i := range large {
		put(i)
	}
	for i := range large {
		remove(i)
		put(large + i)
	}
	for i := range large - 10 {
		remove(large + i)
	}
	for i := range large {
		put(2*large + i)
		remove(len(nodes) - 1)
	}
	if moves < 8 || tab.Len() != 10 {
		t.Errorf("it moved %d times and has %d nodes", moves, tab.Len())
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	tab := table.New[int](nil)
	tab.Put(tab.NewNode("key", 3))
	if n := testing.AllocsPerRun(100, func() { tab.Lookup("key", 3); tab.Lookup("no", 0) }); n != 0 {
		t.Errorf("two lookups allocate %v times", n)
	}
}

func BenchmarkLookup(b *testing.B) {
	tab := table.New[int](nil)
	keys := make([]string, 1<<14)
	for i := range keys {
		keys[i] = "a name of about forty bytes, as they are " + strconv.Itoa(i)
		tab.Put(tab.NewNode(keys[i], 0))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		tab.Lookup(keys[i*7919&(len(keys)-1)], 0)
		i++
	}
}

// G7: a walk in steps gives every node that stays, once where nothing is put, and comes by
// no slot twice, though each node is removed when it is given.
func TestWalkInSteps(t *testing.T) {
	const nodes, most = 20_000, 64
	tab := table.New[int](nil)
	for i := range nodes {
		tab.Put(tab.NewNode(strconv.Itoa(i), 0))
	}
	var w table.Walk[int]
	given, slots := 0, 0
	for steps, over := 0, false; !over && slots < 16*nodes; steps++ {
		if steps == 3 { // what is put meanwhile does no harm
			tab.Put(tab.NewNode("more", 0))
		}
		var looked int
		looked, over = w.Step(tab, most, func(n *table.Node[int]) { given++; tab.Remove(n) })
		slots += looked
	}
	if given < nodes || given > nodes+1 || tab.Len() > 1 || slots >= 16*nodes {
		t.Errorf("%d nodes given, %d left, for %d slots", given, tab.Len(), slots)
	}
}

// G7: nor does a walk miss a node that stays where the table becomes smaller between its steps,
// or say that it looked at nothing while nodes move.
func TestWalkBesideManyChanges(t *testing.T) {
	const stay, most = 10_000, 64
	tab := table.New[int](nil)
	put := func(i int) *table.Node[int] {
		n := tab.NewNode(strconv.Itoa(i), 0)
		tab.Put(n)
		return n
	}
	var others []*table.Node[int]
	for i := range 4 * stay {
		if n := put(i); i >= stay {
			others = append(others, n)
		}
	}
	var w table.Walk[int]
	given := make(map[string]bool)
	for next, over := 4*stay, false; !over; {
		var looked int
		looked, over = w.Step(tab, most, func(n *table.Node[int]) { given[n.Key] = true })
		if looked == 0 && !over {
			t.Fatal("a step that is not the last looked at nothing")
		}
		if len(given) < 2*stay || next > 20*stay {
			continue
		}
		for range min(500, len(others)) {
			tab.Remove(others[0])
			others = others[1:]
		}
		for range 500 {
			tab.Remove(put(next))
			next++
		}
	}
	for i := range stay {
		if !given[strconv.Itoa(i)] {
			t.Fatalf("node %d was not given", i)
		}
	}
}
