package sessioncache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/kiln-cache/kiln/sessioncache"
)

// resource is a value that knows whether it was freed.
type resource struct {
	shape int
	name  string
	freed atomic.Int32
}

func newResource(shape int, name string, bytes int64) (sessioncache.Value, *resource) {
	r := &resource{shape: shape, name: name}
	return sessioncache.Value{Any: r, Bytes: bytes, Cost: time.Duration(shape), Free: func() { r.freed.Add(1) }}, r
}

// TestHammer: everything at once. Readers never see another name's value or,
// through a handle or a lease, a freed one; capacity holds at every sample; in
// the end every value was freed exactly once. // G4, G7, G9, S3, C5, F1, F9
func TestHammer(t *testing.T) {
	for _, policy := range []string{"fifo", "duel"} {
		t.Run(policy, func(t *testing.T) { hammer(t, policy) })
	}
}

func hammer(t *testing.T, policy string) {
	const groups, bytes, shapes, rounds = 4, 60, 10, 1500
	p := open(t, sessioncache.Config{Policy: policy, Groups: sessioncache.LimitOf(groups), Bytes: sessioncache.LimitOf(bytes)})
	stop := watch(t, func() {
		if g, b, o := p.Groups(), p.Bytes(), p.Len(); g < 0 || g > groups || b < 0 || b > bytes || o < 0 {
			t.Errorf("groups %d, bytes %d, objects %d", g, b, o)
		}
		runtime.Gosched()
	})
	var mu sync.Mutex
	var all []*resource
	made := func(n int, name string) sessioncache.Value {
		v, r := newResource(n, name, int64(1+n%5))
		mu.Lock()
		all = append(all, r)
		mu.Unlock()
		return v
	}
	look := func(n int, name string, r sessioncache.Ref, held bool) {
		v := r.Value().(*resource)
		if v.shape != n || v.name != name {
			t.Errorf("asked for %d %s, got %d %s", n, name, v.shape, v.name)
		}
		if held && v.freed.Load() != 0 {
			t.Errorf("%d %s was freed while held", n, name)
		}
	}
	ids := []sessioncache.NameID{p.Intern("n0"), p.Intern("n1"), p.Intern("n2")}
	var workers sync.WaitGroup
	for w := range 6 {
		workers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for range rounds {
				n, k := rnd.IntN(shapes), rnd.IntN(3)
				name := fmt.Sprint("n", k)
				owner := sessioncache.Options{Owner: fmt.Sprint("o", rnd.IntN(2))}
				s := shape(t, n)
				switch rnd.IntN(12) {
				case 0, 1, 2, 3:
					h, err := p.Group(bg, s)
					if err != nil {
						t.Error(err)
						return
					}
					for i := range 3 {
						name := fmt.Sprint("n", i)
						r, _, err := h.Get(bg, name, owner, func(context.Context) (sessioncache.Value, error) { return made(n, name), nil })
						if err != nil {
							t.Error(err)
							return
						}
						look(n, name, r, true)
						if r, ok := h.LookupID(ids[i]); ok {
							look(n, name, r, true)
						}
						runtime.Gosched()
						look(n, name, r, true)
					}
					h.Close()
				case 4, 5:
					if r, ok := p.Lookup(s, name, 0); ok {
						look(n, name, r, false)
						if l, ok := r.Acquire(); ok {
							look(n, name, l.Ref(), true)
							runtime.Gosched()
							look(n, name, l.Ref(), true)
							l.End()
						}
					}
				case 6, 7:
					if g, ok := p.View(s); ok {
						if r, ok := g.LookupID(ids[k]); ok {
							look(n, name, r, false)
						}
					}
				case 8, 9:
					if err := p.Set(bg, s, name, made(n, name), owner); err != nil {
						t.Error(err)
					}
				case 10:
					_ = p.Reset(bg, owner.Owner)
				case 11:
					if rnd.IntN(20) == 0 {
						_ = p.ResetAll(bg)
					}
					_ = p.SetGroups(bg, sessioncache.LimitOf(int64(rnd.IntN(groups+1))))
				}
			}
		})
	}
	workers.Wait()
	stop()
	if indexed, there := sessioncache.Owned(p.Session); indexed != there {
		t.Errorf("Reset looks at %d groups for owners that have names in %d", indexed, there)
	}
	if err := p.Close(bg); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if n := r.freed.Load(); n != 1 {
			t.Fatalf("%d %s was freed %d times", r.shape, r.name, n)
		}
	}
}

// TestRetiredUnderOverlappingHandles: names that were overwritten are freed
// although at every moment some handle of their group is open.
func TestRetiredUnderOverlappingHandles(t *testing.T) {
	p := open(t, sessioncache.Config{})
	p.set(1, "n", "v0")
	last, err := p.Group(bg, shape(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 50; i++ {
		r, _ := last.Lookup("n", 0)
		p.set(1, "n", fmt.Sprint("v", i))
		next, err := p.Group(bg, shape(t, 1))
		if err != nil {
			t.Fatal(err)
		}
		if l, ok := r.Acquire(); !ok {
			t.Fatal("freed under its handle")
		} else {
			l.End()
		}
		last.Close()
		last = next
		if i >= 3 {
			p.freed(fmt.Sprint("v", i-3), 1)
		}
	}
	last.Close()
	p.freed("v49", 1)
	p.freed("v50", 0)
}

func TestHitsDoNotAllocate(t *testing.T) {
	for _, bucket := range []string{"exact", "geometric"} {
		c := bucketed(t, bucket)
		p := open(t, c)
		s := shape(t, 100)
		p.set(100, "n", "v")
		id := p.Intern("n")
		h, err := p.Group(bg, s)
		if err != nil {
			t.Fatal(err)
		}
		p.stats() // the note of this shape is in the memo
		ref, _ := h.Lookup("n", 0)
		g, _ := p.View(s)
		create := func(context.Context) (sessioncache.Value, error) { panic("unreachable") }
		for name, f := range map[string]func() bool{
			"held reference": func() bool { return ref.Resident() && ref.Value() != nil },
			"group and id":   func() bool { _, ok := g.LookupID(id); return ok },
			"group and name": func() bool { _, ok := g.Lookup("n", 0); return ok },
			"full key":       func() bool { _, ok := p.Lookup(s, "n", 0); return ok },
			"lookup":         func() bool { _, ok := p.View(s); return ok },
			"get or create": func() bool {
				_, event, _ := h.Get(bg, "n", sessioncache.Options{}, create)
				return event == sessioncache.Hit
			},
		} {
			allocs := testing.AllocsPerRun(100, func() {
				if !f() {
					t.Error(bucket, name, "missed")
				}
			})
			want(t, bucket+" "+name+" allocations", allocs, 0)
		}
		h.Close()
	}
}

// TestLinearizable: set, get and reset of one name from several goroutines.
func TestLinearizable(t *testing.T) {
	type input struct {
		op    string
		value int
	}
	m := porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, in, out any) (bool, any) {
			switch in := in.(input); in.op {
			case "set":
				return true, in.value
			case "reset":
				return true, 0
			default:
				return out == state, state
			}
		},
		Equal: func(a, b any) bool { return a == b },
	}
	p := open(t, sessioncache.Config{})
	s := shape(t, 1)
	id := p.Intern("n")
	var mu sync.Mutex
	var history []porcupine.Operation
	var workers sync.WaitGroup
	begin := time.Now()
	for w := range 4 {
		workers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 2))
			for i := range 60 {
				in, out := input{op: "get"}, any(nil)
				call := time.Since(begin)
				switch rnd.IntN(6) {
				case 0, 1:
					in = input{"set", 1 + 100*w + i}
					_ = p.Set(bg, s, "n", sessioncache.Value{Any: in.value}, sessioncache.Options{Owner: "X"})
				case 2:
					in.op = "reset"
					_ = p.Reset(bg, "X")
				case 3:
					out = 0
					if g, ok := p.View(s); ok {
						if r, ok := g.LookupID(id); ok {
							out = r.Value()
						}
					}
				default:
					out = 0
					if r, ok := p.Lookup(s, "n", 0); ok {
						out = r.Value()
					}
				}
				end := time.Since(begin)
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: w, Input: in, Call: int64(call), Output: out, Return: int64(end)})
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if !porcupine.CheckOperations(m, history) {
		t.Error("no order of the calls explains what they saw")
	}
}
