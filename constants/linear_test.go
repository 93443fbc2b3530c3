package constants

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/kiln-cache/kiln/limit"
)

// call is one operation of a history, on one key or, for a flush, on all.
type call struct {
	op    string // "own", "deliver", "give up", "remove", "flush"
	key   int
	value int // delivered
}

// seen is what a call gave: a value, an ownership, a bypass; or whether there
// was something to remove.
type seen struct {
	owner, there bool
	value        int // 0 = none
}

// slotState is one key: what is resident, or that it is owned and whether what
// its owner delivers will stay.
type slotState struct {
	value        int
	owned, stays bool
}

// oneKey is the sequential cache of a single key without a capacity.
var oneKey = porcupine.Model{
	Init: func() any { return slotState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(slotState), input.(call), output.(seen)
		switch in.op {
		case "own":
			switch {
			case out.owner:
				return s.value == 0 && !s.owned, slotState{owned: true, stays: true}
			default: // a hit; one that waits is served by the delivery and recorded apart
				return out.value != 0 && s.value == out.value, s
			}
		case "deliver":
			if s.stays {
				return s.owned, slotState{value: in.value}
			}
			return s.owned, slotState{}
		case "give up":
			return s.owned, slotState{}
		case "remove":
			there := s.value != 0 || s.owned && s.stays
			return out.there == there, slotState{owned: s.owned}
		default: // flush
			return true, slotState{owned: s.owned}
		}
	},
	Equal: func(a, b any) bool { return a == b },
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, linearKeys)
		for _, op := range history {
			for k := range parts {
				if in := op.Input.(call); in.key == k || in.op == "flush" {
					parts[k] = append(parts[k], op)
				}
			}
		}
		return parts
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

const linearKeys = 3

// T2, T3, T7: what concurrent callers see is what one caller after the other
// could have seen, key by key; flushes are operations of every key.
func TestLinearizable(t *testing.T) {
	for round := range 20 {
		c, e := open(t, Config{})
		var mu sync.Mutex
		var history []porcupine.Operation
		began := time.Now()
		note := func(client int, in call, act func() (seen, bool)) {
			from := time.Since(began).Nanoseconds()
			out, counts := act()
			to := time.Since(began).Nanoseconds()
			if counts {
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: from, Return: to})
				mu.Unlock()
			}
		}
		var wg sync.WaitGroup
		for client := range 5 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(client)))
				for i := range 25 {
					k := rnd.IntN(linearKeys)
					name := key(fmt.Sprint(k))
					value := 1 + client*1000 + i
					switch rnd.IntN(10) {
					case 0:
						note(client, call{op: "flush", key: -1}, func() (seen, bool) {
							if err := c.SetCapacity(context.Background(), CPU, limit.Unlimited); err != nil {
								t.Error(err)
							}
							return seen{}, true
						})
					case 1, 2:
						note(client, call{op: "remove", key: k}, func() (seen, bool) {
							there, err := e.Remove(context.Background(), name)
							if err != nil {
								t.Error(err)
							}
							return seen{there: there}, true
						})
					default:
						var owner *Promise
						note(client, call{op: "own", key: k}, func() (s seen, counts bool) {
							out, err := e.GetOrAdd(context.Background(), name, 8, Options{})
							switch {
							case err != nil:
								return seen{}, false // its owner gave up
							case out.Owner != nil:
								owner = out.Owner
								return seen{owner: true}, true
							}
							defer out.Lease.End()
							// A flight's value may be of a delivery that did not stay; that one
							// is checked by the storms.
							return seen{value: out.Lease.Value().(int)}, out.Lease.Resident()
						})
						if owner == nil {
							continue
						}
						if rnd.IntN(4) == 0 {
							note(client, call{op: "give up", key: k}, func() (seen, bool) { owner.Abandon(); return seen{}, true })
							continue
						}
						note(client, call{op: "deliver", key: k, value: value}, func() (seen, bool) {
							l, err := owner.Fulfil(value, 8, nil)
							if err != nil {
								t.Error(err)
								return seen{}, true
							}
							l.End()
							return seen{}, true
						})
					}
				}
			})
		}
		wg.Wait()
		if result, info := porcupine.CheckOperationsVerbose(oneKey, history, 30*time.Second); result != porcupine.Ok {
			_ = porcupine.VisualizePath(oneKey, info, t.ArtifactDir()+"/history.html")
			t.Fatalf("round %d: %d operations: %s (history in %s)", round, len(history), result, t.ArtifactDir())
		}
	}
}
