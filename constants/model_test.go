package constants

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/limit"
)

// model is the cache as SPEC section 7 says it, with maps and loops: what is
// resident, what is promised, who uses what.
type model struct {
	capacity int64 // bytes; noBound
	policy   Policy
	resident map[Key]*made
	pending  map[Key]*made
	apart    map[Key]*made // displaced
	all      []*made
}

// made is one tensor that an owner computes or has delivered.
type made struct {
	key      Key
	bytes    int64
	cost     time.Duration
	reserved bool
	flushed  bool // while pending: it will not stay
	done     bool // delivered
	pins     int
	removals []Removal
}

func (m *model) used() (resident, reserved int64) {
	for _, t := range m.resident {
		resident += t.bytes
	}
	for _, t := range m.pending {
		if t.reserved {
			reserved += t.bytes
		}
	}
	return resident, reserved
}

func (m *model) get(k Key, bytes int64, cost time.Duration) (*made, string) {
	if bytes == 0 {
		return nil, string(ZeroSize)
	}
	if t := m.resident[k]; t != nil {
		t.pins++
		return t, "hit"
	}
	if t := m.apart[k]; t != nil && t.pins > 0 { // C13
		t.pins++
		if m.room(t.bytes, t.cost) {
			delete(m.apart, k)
			m.resident[k] = t
			t.pins++
		}
		return t, "hit"
	}
	if m.capacity == 0 {
		return nil, string(Disabled)
	}
	if !m.room(bytes, cost) {
		return nil, string(Full)
	}
	t := &made{key: k, bytes: bytes, cost: cost, reserved: true}
	m.pending[k] = t
	m.all = append(m.all, t)
	return t, "owner"
}

// room makes room where the policy allows it, and reports whether there is.
func (m *model) room(bytes int64, cost time.Duration) bool {
	resident, reserved := m.used()
	if m.capacity == noBound || resident+reserved+bytes <= m.capacity {
		return true
	}
	if m.policy != Cost {
		return false
	}
	var victims []*made
	var lost time.Duration
	for _, t := range slices.SortedFunc(maps.Values(m.resident), cheapest) {
		if resident+reserved+bytes <= m.capacity {
			break
		}
		victims = append(victims, t)
		resident -= t.bytes
		lost += t.cost
	}
	if resident+reserved+bytes > m.capacity || lost >= cost {
		return false
	}
	for _, t := range victims {
		m.remove(t, Evicted)
		m.apart[t.key] = t
	}
	return true
}

func cheapest(a, b *made) int {
	if a.cost.Seconds()/float64(a.bytes) < b.cost.Seconds()/float64(b.bytes) {
		return -1
	}
	return 1
}

func (m *model) remove(t *made, why Removal) {
	delete(m.resident, t.key)
	t.pins--
	if len(t.removals) == 0 { // each callback is called once
		t.removals = append(t.removals, why)
	}
}

// deliver leaves the owner's pin, and the cache's if the tensor stays.
func (m *model) deliver(t *made) {
	delete(m.pending, t.key)
	t.pins, t.done = 1, true
	if !t.flushed {
		m.resident[t.key] = t
		t.pins = 2
	}
}

func (m *model) flush(why Removal) {
	clear(m.apart)
	for _, t := range m.resident {
		m.remove(t, why)
	}
	for _, t := range m.pending {
		t.reserved, t.flushed = false, true
	}
}

func (m *model) removeKey(k Key) bool {
	if t := m.resident[k]; t != nil {
		m.remove(t, Removed)
		return true
	}
	if t := m.apart[k]; t != nil && t.pins > 0 {
		delete(m.apart, k)
		return true
	}
	if t := m.pending[k]; t != nil && !t.flushed {
		t.reserved, t.flushed = false, true
		return true
	}
	return false
}

// record is what the real cache did with the tensors that it was given.
type record struct {
	mu       sync.Mutex
	freed    map[*made]int
	removals map[*made][]Removal
}

// pair is an owner, lease or reference with the model's side of it.
type pair[T any] struct {
	real T
	made *made
}

// T2..T8: any sequence of calls gives what the model gives.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		policy := rapid.SampledFrom([]Policy{NoEvict, Cost}).Draw(r, "policy")
		c, err := Open(Config{Policy: [kinds]Policy{CPU: policy}})
		if err != nil {
			r.Fatal(err)
		}
		defer c.Close(context.Background())
		e, err := c.Engine(CPU, 0, "")
		if err != nil {
			r.Fatal(err)
		}
		p := &play{r: r, c: c, e: e, rec: &record{freed: make(map[*made]int), removals: make(map[*made][]Removal)},
			m: &model{capacity: noBound, policy: policy, resident: make(map[Key]*made), pending: make(map[Key]*made), apart: make(map[Key]*made)}}
		r.Repeat(map[string]func(*rapid.T){
			"get": p.get, "get ": p.get, "fulfil": p.fulfil, "abandon": p.abandon, "remove": p.remove,
			"capacity": p.capacity, "end": p.end, "hold": p.hold, "drop": p.drop, "": p.check,
		})
		p.close()
	})
}

// T2: no bound in MiB is a bound in bytes that no tensor reaches.
func drawCapacity(r *rapid.T) (limit.Limit, int64) {
	n := rapid.Int64Range(-1, 8).Draw(r, "MiB")
	if n < 0 {
		return limit.Unlimited, noBound
	}
	return limit.Of(n), int64(n) * mib
}

func drawKey(r *rapid.T) Key {
	return Key{Backend: rapid.Uint64Range(0, 1).Draw(r, "backend"), ID: fmt.Sprint("k", rapid.IntRange(0, 4).Draw(r, "key"))}
}
