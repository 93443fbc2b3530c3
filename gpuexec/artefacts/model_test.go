package artefacts_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

// item is one artefact in the naive model, from its flight to its last lease.
type item struct {
	key, value string
	bytes      int64
	flying     bool
	void       bool // cleared while it flew
	fails      bool
	gate       chan struct{}
	callers    []<-chan string
	users      []string
	leases     int
	resident   bool
	lost       bool // evicted by capacity, so found by its key while it is leased (C13)
}

// model is the artefact cache in slices: the oldest first.
type model struct {
	order          []*item
	flights        map[string]*item
	apart          []*item // not resident; live while leased
	entries, bytes int64   // -1 = unlimited
}

func (m *model) disabled() bool { return m.entries == 0 || m.bytes == 0 }

func (m *model) find(key string) *item {
	for _, it := range m.order {
		if it.key == key && it.resident {
			return it
		}
	}
	return nil
}

// revive finds what was evicted while it was leased, and makes it resident if it fits.
func (m *model) revive(key string) *item {
	i := slices.IndexFunc(m.apart, func(it *item) bool { return it.key == key && it.lost && it.leases > 0 })
	if i < 0 {
		return nil
	}
	it := m.apart[i]
	if m.bytes < 0 || it.bytes <= m.bytes {
		m.apart = slices.Delete(m.apart, i, i+1)
		m.shrink(1, 0)
		m.order = append(m.order, it)
		m.shrink(0, it.bytes)
		it.resident, it.lost = true, false
	}
	return it
}

func (m *model) touch(it *item) {
	if i := slices.Index(m.order, it); i >= 0 {
		m.order = append(slices.Delete(m.order, i, i+1), it)
	}
}

func (m *model) evict(it *item) {
	if i := slices.Index(m.order, it); i >= 0 {
		m.order = slices.Delete(m.order, i, i+1)
	}
	if it.resident {
		it.resident = false
		m.apart = append(m.apart, it)
	}
}

func (m *model) used() (bytes int64) {
	for _, it := range m.order {
		if it.resident {
			bytes += it.bytes
		}
	}
	return bytes
}

func (m *model) shrink(entries, bytes int64) {
	lose := func(it *item) {
		it.lost = it.resident
		m.evict(it)
	}
	for m.entries >= 0 && int64(len(m.order))+entries > m.entries {
		lose(m.order[0])
	}
	for m.bytes >= 0 && m.used()+bytes > m.bytes {
		lose(m.order[slices.IndexFunc(m.order, func(it *item) bool { return it.resident })])
	}
}

func (m *model) begin(it *item) {
	it.flying = true
	m.flights[it.key] = it
	if it.void = m.disabled(); !it.void {
		m.shrink(1, 0)
		m.order = append(m.order, it)
	}
}

func (m *model) land(it *item) {
	it.flying = false
	delete(m.flights, it.key)
	if it.fails {
		m.evict(it)
		return
	}
	if it.void || m.disabled() || m.bytes >= 0 && it.bytes > m.bytes {
		m.evict(it)
		m.apart = append(m.apart, it)
		return
	}
	if !slices.Contains(m.order, it) {
		m.shrink(1, 0)
		m.order = append(m.order, it)
	}
	m.shrink(0, it.bytes)
	it.resident = true
}

func (m *model) resize(entries, bytes int64) {
	m.entries, m.bytes = entries, bytes
	for m.disabled() && len(m.order) > 0 {
		m.evict(m.order[0])
	}
	for _, it := range m.apart {
		it.lost = it.lost && !m.disabled()
	}
	for _, it := range m.flights {
		it.void = it.void || m.disabled()
	}
	m.shrink(0, 0)
}

func (m *model) drop(owner string) {
	for _, it := range append(slices.Clone(m.order), slices.Collect(maps.Values(m.flights))...) {
		if slices.Equal(it.users, []string{owner}) {
			it.void = it.flying
			m.evict(it)
		}
		it.users = slices.DeleteFunc(it.users, func(u string) bool { return u == owner })
	}
	for _, it := range m.apart {
		it.lost = it.lost && !slices.Equal(it.users, []string{owner})
		it.users = slices.DeleteFunc(it.users, func(u string) bool { return u == owner })
	}
}

func (m *model) credit(it *item, owner string) {
	if !slices.Contains(it.users, owner) {
		it.users = append(it.users, owner)
	}
}

func (m *model) leasedBytes() (bytes int64) {
	for _, it := range m.apart {
		if it.leases > 0 {
			bytes += it.bytes
		}
	}
	return bytes
}

// step is one operation of a random sequence.
type step struct {
	verb, key, owner string
	bytes, n, m      int64
	fails            bool
}

var steps = rapid.Custom(func(t *rapid.T) step {
	return step{
		verb:  rapid.SampledFrom([]string{"get", "get", "get", "lease", "end", "peek", "lookup", "force", "start", "join", "land", "land", "resize", "drop"}).Draw(t, "verb"),
		key:   "k" + strconv.Itoa(rapid.IntRange(0, 9).Draw(t, "key")),
		owner: rapid.SampledFrom([]string{"", "A", "B"}).Draw(t, "owner"),
		bytes: rapid.Int64Range(0, 12).Draw(t, "bytes"),
		n:     rapid.Int64Range(-1, 6).Draw(t, "entries"),
		m:     rapid.SampledFrom([]int64{-1, -1, 0, 7, 10, 30}).Draw(t, "capacity in bytes"),
		fails: rapid.IntRange(0, 3).Draw(t, "fails") == 0,
	}
})

// F, C: any sequence of operations, flights under way included, does what the
// naive model does, and in the end everything was freed exactly once.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(steps, 1, 60).Draw(rt, "script")
		var failure error // told outside: rapid must not be left from within a bubble
		bubble(t, artefacts.Config{Entries: limit.Of(4)}, func(t *testing.T, c room) {
			r := &replay{room: c, model: model{flights: map[string]*item{}, entries: 4, bytes: -1}}
			for i, s := range script {
				r.do(s)
				synctest.Wait()
				if err := r.compare(); err != nil {
					failure = fmt.Errorf("step %d %+v: %w", i, s, err)
					break
				}
			}
			if err := r.end(); failure == nil {
				failure = err
			}
		})
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

// replay runs a script on the cache and on the model.
type replay struct {
	room
	model
	serial int
	made   []string // values that creators delivered
	held   []*artefacts.Lease
	holds  []*item // of held
	wrong  error
}

func (r *replay) expect(s step, got, wanted string) {
	if got != wanted && r.wrong == nil {
		r.wrong = fmt.Errorf("%s %s = %s, want %s", s.verb, s.key, got, wanted)
	}
}

func (r *replay) item(s step) (*item, maker) {
	r.serial++
	it := &item{key: s.key, value: "v" + strconv.Itoa(r.serial), bytes: max(s.bytes, 1), fails: s.fails, users: []string{s.owner}}
	mk := maker{value: it.value, bytes: it.bytes, owner: s.owner}
	if it.fails {
		mk.fail = "E"
	} else {
		r.made = append(r.made, it.value)
	}
	return it, mk
}

func (r *replay) do(s step) {
	it, flying := r.find(s.key), r.flights[s.key]
	if it == nil && flying == nil && slices.Contains([]string{"get", "lease", "peek", "start"}, s.verb) {
		it = r.revive(s.key)
	}
	switch s.verb {
	case "get", "lease":
		if flying != nil {
			return
		}
		wanted, mk := "", maker{owner: s.owner}
		if it != nil {
			r.touch(it)
			r.credit(it, s.owner)
			wanted = it.value + " by=hit"
		} else {
			s.fails = s.fails && s.verb == "get"
			it, mk = r.item(s)
			r.begin(it)
			r.land(it)
			wanted = it.value + " by=miss"
			if it.fails {
				wanted = "error failed E"
			}
		}
		l, o, err := r.Get(background, r.request(r.Cache, s.key, mk))
		if s.verb == "lease" && err == nil {
			it.leases++
			r.held, r.holds = append(r.held, l), append(r.holds, it)
			r.expect(s, l.Value().(string)+" by="+string(o.Event), wanted)
			return
		}
		r.expect(s, said(l, o, err), wanted)
	case "end":
		if len(r.held) > 0 {
			i := int(s.bytes) % len(r.held)
			r.expect(s, r.held[i].Value().(string), r.holds[i].value)
			r.held[i].End()
			r.holds[i].leases--
			r.held, r.holds = slices.Delete(r.held, i, i+1), slices.Delete(r.holds, i, i+1)
		}
	case "peek":
		switch {
		case it != nil:
			r.touch(it)
			r.expect(s, r.peek(s.key), it.value)
		case flying == nil && r.disabled():
			r.expect(s, r.peek(s.key), "miss reason=disabled")
		case flying == nil:
			r.expect(s, r.peek(s.key), "miss reason=absent")
		}
	case "lookup":
		ref, ok := r.Lookup(s.key)
		r.expect(s, fmt.Sprint(ok), fmt.Sprint(it != nil))
		if ok && it != nil {
			r.touch(it)
			r.expect(s, ref.Value().(string), it.value)
		}
	case "force":
		s.fails = false
		it, mk := r.item(s)
		r.expect(s, said(r.Force(background, r.request(r.Cache, s.key, mk))), it.value+" by=miss")
	case "start":
		if it != nil && flying == nil && it.leases > 0 { // perhaps revived in the model: so in the cache, too
			r.touch(it)
			r.expect(s, r.peek(s.key), it.value)
		}
		if it == nil && flying == nil {
			it, mk := r.item(s)
			it.gate = gate()
			mk.wait = it.gate
			r.begin(it)
			it.callers = append(it.callers, r.calls(background, 1, s.key, mk))
		}
	case "join":
		if flying != nil {
			r.touch(flying)
			r.credit(flying, s.owner)
			flying.callers = append(flying.callers, r.calls(background, 1, s.key, maker{owner: s.owner}))
		}
	case "land":
		if flying != nil {
			r.landFlight(s, flying)
		}
	case "resize":
		limits := [2]limit.Limit{limit.Unlimited, limit.Unlimited}
		for i, n := range []int64{s.n, s.m} {
			if n >= 0 {
				limits[i] = limit.Of(n)
			}
		}
		if err := r.SetCapacity(limits[0], limits[1]); err != nil {
			r.wrong = err
		}
		r.resize(s.n, s.m)
	case "drop":
		if s.owner != "" {
			if err := r.Reset(s.owner); err != nil {
				r.wrong = err
			}
			r.drop(s.owner)
		}
	}
}

func (r *replay) landFlight(s step, it *item) {
	r.land(it)
	close(it.gate)
	for i, out := range it.callers {
		wanted := it.value + " by=joined"
		if i == 0 {
			wanted = it.value + " by=miss"
		}
		if it.fails {
			wanted = "error failed E"
		}
		r.expect(s, <-out, wanted)
	}
}

func (r *replay) compare() error {
	if r.wrong != nil {
		return r.wrong
	}
	if r.Len() != len(r.order) || r.Bytes() != r.used() || r.LeasedBytes() != r.leasedBytes() {
		return fmt.Errorf("len %d, bytes %d, leased outside %d; want %d, %d, %d",
			r.Len(), r.Bytes(), r.LeasedBytes(), len(r.order), r.used(), r.leasedBytes())
	}
	for i := range 10 {
		if key := "k" + strconv.Itoa(i); r.Has(key) != (r.find(key) != nil) {
			return fmt.Errorf("has %s = %v", key, r.Has(key))
		}
	}
	return nil
}

// end lets everything go and looks whether it was freed once.
func (r *replay) end() error {
	for _, it := range r.flights {
		r.landFlight(step{verb: "land", key: it.key}, it)
	}
	for _, l := range r.held {
		l.End()
	}
	r.close()
	for _, v := range r.made {
		if n := r.count(r.device.mu.freed, v); n != 1 {
			return fmt.Errorf("%s was freed %d times", v, n)
		}
	}
	if n := r.LeasedBytes(); n != 0 {
		return fmt.Errorf("%d bytes leased after the end", n)
	}
	return r.wrong
}
