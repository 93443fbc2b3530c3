package artefacts_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

// Everything at once on few keys: no value of another key, none in use after it
// was freed, each freed once, gauges within bounds at every sample.
func TestHammer(t *testing.T) {
	const capacity, workers, rounds = 6, 8, 400
	c := open(t, entries(capacity))
	var made, freed atomic.Int64
	type product struct {
		key  string
		dead atomic.Bool
	}
	request := func(key string, rng *rand.Rand) artefacts.Request {
		kernel, fails := "x"+strconv.Itoa(rng.IntN(4)), rng.IntN(10) == 0
		built := func() artefacts.Built {
			p := &product{key: key}
			made.Add(1)
			return artefacts.Built{Value: p, Bytes: 1, Free: func() {
				freed.Add(1)
				if p.dead.Swap(true) {
					t.Errorf("%s was freed twice", key)
				}
			}}
		}
		return artefacts.Request{
			Key: key, Owner: "o" + strconv.Itoa(rng.IntN(3)),
			Create: func(ctx context.Context) (artefacts.Built, error) {
				if fails {
					return artefacts.Built{}, errDriver
				}
				k, err := c.Kernel(ctx, artefacts.Request{Key: kernel, Create: func(context.Context) (artefacts.Built, error) {
					b := built()
					b.Value.(*product).key = kernel
					return b, nil
				}})
				if err == nil && (k.(*product).key != kernel || k.(*product).dead.Load()) {
					t.Errorf("kernel %s came as %v", kernel, k)
				}
				return built(), err
			},
		}
	}
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(w)))
			for range rounds {
				key := "k" + strconv.Itoa(rng.IntN(12))
				ctx, cancel := context.WithCancel(background)
				if rng.IntN(8) == 0 {
					cancel()
				}
				var l *artefacts.Lease
				switch rng.IntN(10) {
				case 0:
					l, _, _ = c.Peek(ctx, key)
				case 1:
					l, _, _ = c.Force(ctx, request(key, rng))
				case 2:
					if ref, ok := c.Lookup(key); ok {
						l, _ = ref.Acquire()
					}
				case 3:
					if err := c.SetCapacity(limit.Of(int64(rng.IntN(capacity+1))), limit.Limit{}); err != nil {
						t.Error(err)
					}
				case 4:
					if err := c.Reset("o1"); err != nil {
						t.Error(err)
					}
				default:
					l, _, _ = c.Get(ctx, request(key, rng))
				}
				cancel()
				if n := c.Len(); n < 0 || n > capacity || c.Bytes() < 0 || c.LeasedBytes() < 0 {
					t.Errorf("len %d, bytes %d, leased outside %d", n, c.Bytes(), c.LeasedBytes())
				}
				if l != nil {
					if p := l.Value().(*product); p.key != key || p.dead.Load() {
						t.Errorf("%s came as %s, freed: %v", key, p.key, p.dead.Load())
					}
					l.End()
				}
			}
		})
	}
	done.Wait()
	c.close()
	if made.Load() != freed.Load() || c.LeasedBytes() != 0 || c.Kernels() != 0 {
		t.Errorf("made %d, freed %d, %d bytes leased, %d kernels", made.Load(), freed.Load(), c.LeasedBytes(), c.Kernels())
	}
}

// called is one call in a concurrent history, of one key.
type called struct {
	key   string
	clear bool
}

// weak is a cache of one key: a miss is always legal and brings a new value; a
// hit must give the value there; after a clear there is none.
var weak = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, in, out any) (bool, any) {
		if in.(called).clear {
			return true, ""
		}
		value, event, _ := strings.Cut(out.(string), " by=")
		if event == string(artefacts.Miss) {
			return true, value
		}
		return state == value, state
	},
	Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range h {
			key := op.Input.(called).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
}

// F1, F7, C2: concurrent histories of gets and clears are linearizable.
func TestLinearizable(t *testing.T) {
	const clients, rounds, keys = 4, 60, 3
	c := open(t, entries(2))
	begin := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var serial atomic.Int64
	var done sync.WaitGroup
	for id := range clients {
		done.Go(func() {
			rng := rand.New(rand.NewPCG(11, uint64(id)))
			for range rounds {
				key := rng.IntN(keys)
				clears := rng.IntN(10) == 0
				call, out := int64(time.Since(begin)), ""
				if clears {
					c.setEntries(0)
				} else {
					k := "k" + strconv.Itoa(key)
					out = c.get(k, maker{value: k + "v" + strconv.Itoa(int(serial.Add(1)))})
				}
				end := int64(time.Since(begin))
				mu.Lock()
				for k := range keys {
					if clears || k == key {
						history = append(history, porcupine.Operation{
							ClientId: id, Input: called{"k" + strconv.Itoa(k), clears}, Call: call, Output: out, Return: end,
						})
					}
				}
				mu.Unlock()
				if clears {
					c.setEntries(2)
				}
			}
		})
	}
	done.Wait()
	if !porcupine.CheckOperations(weak, history) {
		t.Errorf("the history is not linearizable: %v", history)
	}
}

// A hit without a lease allocates nothing; one with a lease allocates the lease.
func TestHitAllocations(t *testing.T) {
	c, err := artefacts.Open(artefacts.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(background)
	r := artefacts.Request{Key: "k", Owner: "o", Create: nothing}
	get := func() {
		l, _, err := c.Get(background, r)
		if err != nil {
			t.Fatal(err)
		}
		l.End()
	}
	get()
	if n := testing.AllocsPerRun(200, func() { c.Lookup("k") }); n != 0 {
		t.Errorf("a lookup allocates %v times", n)
	}
	if n := testing.AllocsPerRun(200, get); n > 1 {
		t.Errorf("a hit with a lease allocates %v times", n)
	}
	if n := testing.AllocsPerRun(200, func() { c.Has("k"); c.Len(); c.Bytes(); c.Capacity() }); n != 0 {
		t.Errorf("the counts allocate %v times", n)
	}
}
