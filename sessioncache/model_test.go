package sessioncache_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/sessioncache"
)

// model is a naive session with policy fifo, lru or sieve: groups in a list, the next
// victim first but for sieve, whose hand is at one of them.
type model struct {
	policy        string
	groups, bytes int64
	pool          int64   // of this session and another
	others        []int64 // what that one's groups hold, the first to go first
	list          []*modelGroup
	hand          *modelGroup
	ahead         []int // shapes announced, soonest first
	holds         map[string]int
	freed         map[string]int
}

type modelGroup struct {
	shape  int
	filled bool
	again  bool                   // asked for since sieve came by
	names  map[string]*modelValue // by name and lane
	leases int
}

type modelValue struct {
	text, owner string
	bytes       int64
	leases      int
	gone        bool
}

func (m *model) find(shape int) *modelGroup {
	i := slices.IndexFunc(m.list, func(g *modelGroup) bool { return g.shape == shape })
	if i < 0 {
		return nil
	}
	g := m.list[i]
	g.again = true
	if m.policy == "lru" {
		m.list = append(slices.Delete(m.list, i, i+1), g)
	}
	return g
}

func (m *model) sums() (objects, bytes int64) {
	for _, g := range m.list {
		objects += int64(len(g.names))
		bytes += g.bytes()
	}
	return objects, bytes
}

func (m *model) drop(v *modelValue) {
	if v.gone = true; v.leases == 0 {
		m.freed[v.text]++
	}
}

func (m *model) evict(g *modelGroup) {
	if m.hand == g {
		m.hand = nil // the first
		if i := slices.Index(m.list, g) + 1; i < len(m.list) {
			m.hand = m.list[i]
		}
	}
	m.list = slices.DeleteFunc(m.list, func(o *modelGroup) bool { return o == g })
	for _, v := range g.names {
		m.drop(v)
	}
}

// victim is the group to go of those that may: not one in use before others (S3), and
// announced ones last, the one needed last first (S2).
func (m *model) victim(inUse bool, may func(*modelGroup) bool) *modelGroup {
	for _, leased := range []bool{false, true} {
		if leased && !inUse {
			break
		}
		able := func(g *modelGroup) bool { return g.leases > 0 == leased && may(g) }
		if g := m.next(func(g *modelGroup) bool { return able(g) && !slices.Contains(m.ahead, g.shape) }); g != nil {
			return g
		}
		for _, shape := range slices.Backward(m.ahead) {
			if i := slices.IndexFunc(m.list, func(g *modelGroup) bool { return g.shape == shape && able(g) }); i >= 0 {
				return m.list[i]
			}
		}
	}
	return nil
}

// next is the one that the policy chooses.
func (m *model) next(able func(*modelGroup) bool) *modelGroup {
	if !slices.ContainsFunc(m.list, able) {
		return nil
	}
	at := 0
	if m.policy == "sieve" {
		at = max(slices.Index(m.list, m.hand), 0)
	}
	for ; ; at = (at + 1) % len(m.list) {
		switch g := m.list[at]; {
		case !able(g):
		case m.policy == "sieve" && g.again:
			g.again = false
		default:
			m.hand = g
			return g
		}
	}
}

// give evicts what nobody uses until that many bytes are free, or nothing is left.
func (m *model) give(bytes int64) (freed int64) {
	for freed < bytes {
		victim := m.victim(false, func(g *modelGroup) bool { return g.bytes() > 0 })
		if victim == nil {
			break
		}
		freed += victim.bytes()
		m.evict(victim)
	}
	return freed
}

func (g *modelGroup) bytes() (n int64) {
	for _, v := range g.names {
		n += v.bytes
	}
	return n
}

// free is what the pool has.
func (m *model) free() int64 {
	_, used := m.sums()
	return m.pool - used - sum(m.others)
}

func sum(bytes []int64) (n int64) {
	for _, b := range bytes {
		n += b
	}
	return n
}

// could reports whether so many bytes would fit with all of the session gone.
func (m *model) could(bytes int64) bool { return bytes <= m.bytes && bytes+sum(m.others) <= m.pool }

// room evicts until it fits the session's capacity, and what the pool has; own never.
func (m *model) room(groups, bytes int64, own *modelGroup) bool {
	return m.capacity(groups, bytes, own, func() bool { return m.free() >= bytes })
}

// capacity is room for the session's capacity, and what else has to hold.
func (m *model) capacity(groups, bytes int64, own *modelGroup, more func() bool) bool {
	for {
		_, used := m.sums()
		if int64(len(m.list))+groups <= m.groups && used+bytes <= m.bytes && more() {
			return true
		}
		victim := m.victim(true, func(g *modelGroup) bool { return g != own })
		if victim == nil {
			return false
		}
		m.evict(victim)
	}
}

// claim is what goes for bytes that are to come into own, which may be nil: of the session
// what its capacity asks for; then the other session gives what the pool lacks, if it holds
// more than this one would then (Q2); else this one does.
func (m *model) claim(groups, bytes, value int64, own *modelGroup) {
	if bytes <= 0 {
		return
	}
	fits := m.capacity(groups, bytes, own, func() bool { return true })
	_, used := m.sums()
	if short := bytes - m.free(); fits && short > 0 && sum(m.others) > used+bytes && sum(m.others) >= short {
		for ; short > 0; m.others = m.others[1:] {
			short -= m.others[0]
		}
	}
	if m.could(value) {
		m.room(groups, bytes, own)
	}
}

// other sets a value of a new shape in the other session, which has no capacity of its own.
func (m *model) other(bytes int64) {
	if short := bytes - m.free(); short > 0 {
		if _, used := m.sums(); used > sum(m.others)+bytes && used >= short {
			for target := used - short; used > target; _, used = m.sums() {
				m.evict(m.victim(true, func(g *modelGroup) bool { return g.bytes() > 0 }))
			}
		}
	}
	if _, used := m.sums(); used+bytes > m.pool {
		return
	}
	for m.free() < bytes {
		m.others = m.others[1:]
	}
	m.others = append(m.others, bytes)
}

func (m *model) register(shape int) *modelGroup {
	g := &modelGroup{shape: shape, names: map[string]*modelValue{}}
	m.list = append(m.list, g)
	return g
}

func (m *model) write(g *modelGroup, key string, v *modelValue) {
	old := g.names[key]
	growth := v.bytes
	if old != nil {
		growth -= old.bytes
	}
	if !m.room(0, growth, g) {
		m.evict(g)
		m.room(1, v.bytes, nil)
		g = m.register(g.shape)
		old = nil
	}
	if old != nil {
		m.drop(old)
	}
	g.names[key], g.filled = v, true
}

// set reports whether v could ever fit.
func (m *model) set(shape int, key string, v *modelValue) bool {
	if v.bytes > m.bytes || v.bytes > m.pool {
		m.drop(v)
		return false
	}
	if m.groups == 0 {
		m.drop(v)
		return true
	}
	g, groups, growth := m.find(shape), int64(0), v.bytes
	if g == nil {
		groups = 1
	} else if old := g.names[key]; old != nil {
		growth -= old.bytes
	}
	m.claim(groups, growth, v.bytes, g)
	switch {
	case !m.could(v.bytes):
		if g != nil && g.names[key] != nil {
			m.drop(g.names[key])
			delete(g.names, key)
		}
		m.drop(v)
		return true
	case g == nil:
		m.room(1, v.bytes, nil)
		g = m.register(shape)
	}
	m.write(g, key, v)
	return true
}

func (m *model) get(shape int, key string) string {
	if g := m.find(shape); g != nil && g.names[key] != nil {
		return g.names[key].text
	}
	return "absent"
}

func (m *model) run(shape int, key string, v *modelValue) (text string, event sessioncache.Event) {
	if m.groups == 0 {
		m.drop(v)
		return v.text, sessioncache.Miss
	}
	g := m.find(shape)
	if g == nil {
		m.room(1, 0, nil)
		g = m.register(shape)
	}
	if old := g.names[key]; old != nil {
		m.drop(&modelValue{text: v.text + " unused", leases: 1})
		return old.text, sessioncache.Hit
	}
	if v.bytes <= m.bytes && v.bytes <= m.pool {
		m.claim(0, v.bytes, v.bytes, g)
	}
	if !m.could(v.bytes) {
		m.drop(v)
		if !g.filled {
			m.evict(g)
		}
	} else {
		m.write(g, key, v)
	}
	return v.text, sessioncache.Miss
}

func (m *model) reset(owner string) {
	if m.holds[owner] > 0 {
		m.holds[owner]--
		return
	}
	for _, g := range m.list {
		for key, v := range g.names {
			if v.owner == owner {
				m.drop(v)
				delete(g.names, key)
			}
		}
	}
}

// drawn has rapid tell what it had drawn where a helper fails.
type drawn struct {
	testing.TB
	r *rapid.T
}

func (d drawn) Fatalf(format string, args ...any) { d.r.Fatalf(format, args...) }

type leased struct {
	*sessioncache.Lease
	group *modelGroup
	value *modelValue
}

func TestAgainstModel(t *testing.T) { // G1..G9, S1..S3, Q2, Q3, Q5
	rapid.Check(t, func(r *rapid.T) {
		m := &model{
			policy: rapid.SampledFrom([]string{"fifo", "lru", "sieve"}).Draw(r, "policy"),
			groups: rapid.Int64Range(0, 5).Draw(r, "groups"), bytes: rapid.Int64Range(0, 30).Draw(r, "bytes"),
			pool: rapid.SampledFrom([]int64{10, 20, 30, 1 << 30}).Draw(r, "pool"), holds: map[string]int{}, freed: map[string]int{},
		}
		c := fifo(m.groups)
		c.Bytes = sessioncache.LimitOf(m.bytes)
		c.Policy = m.policy
		if rapid.Bool().Draw(r, "colliding") {
			c.Hash = func(string) uint64 { return 7 } // K2
		}
		c.Pool = newPool(t, m.pool)
		other := open(t, sessioncache.Config{Groups: sessioncache.Unlimited, Policy: "fifo", Pool: c.Pool})
		defer func() { _ = other.Close(bg) }()
		watch := pressure.New(pressure.Config{Limit: 1 << 40})
		s, err := sessioncache.Open(hidden.With(c, watch))
		if err != nil {
			r.Fatal(err)
		}
		p := &box{Session: s, t: drawn{t, r}}
		p.mu.freed = map[string]int{}
		defer func() { _ = s.Close(bg) }()

		var leases []leased
		for i := range rapid.IntRange(1, 60).Draw(r, "steps") {
			n := rapid.IntRange(1, 7).Draw(r, "shape")
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "name")
			o := sessioncache.Options{
				Owner: rapid.SampledFrom([]string{"", "X", "Y"}).Draw(r, "owner"),
				Lane:  sessioncache.Lane(rapid.IntRange(0, 1).Draw(r, "lane")),
			}
			key := fmt.Sprint(name, o.Lane)
			mv := &modelValue{text: fmt.Sprint("v", i), owner: o.Owner, bytes: rapid.Int64Range(0, 12).Draw(r, "size")}
			v := p.value(mv.text)
			v.Bytes = mv.bytes
			switch op := rapid.IntRange(0, 15).Draw(r, "op"); op {
			case 14, 15: // Q2
				m.other(mv.bytes + 1)
				if err := other.Set(bg, shape(t, 10+i), "n", sessioncache.Value{Bytes: mv.bytes + 1}, sessioncache.Options{}); (err == nil) != (mv.bytes < m.pool) {
					r.Fatalf("set in the other session: %v", err)
				}
				v.Free()
				m.freed[mv.text]++
			case 12:
				m.ahead = rapid.SliceOfNDistinct(rapid.IntRange(1, 7), 0, 4, rapid.ID[int]).Draw(r, "ahead")
				p.announce(m.ahead...)
			case 13: // Q5
				bytes := rapid.Int64Range(1, 20).Draw(r, "bytes")
				want(r, "given", watch.Rooms()[0].Shrink(bg, bytes, pressure.Spare).Bytes, m.give(bytes))
			case 0, 1, 2:
				fits := m.set(n, key, mv)
				if err := p.Set(bg, shape(t, n), name, v, o); (err == nil) != fits {
					r.Fatalf("set: %v, fits %v", err, fits)
				}
			case 3, 4:
				text, event, err := p.try(bg, shape(t, n), name, o, func(context.Context) (sessioncache.Value, error) { return v, nil })
				if err != nil {
					r.Fatal(err)
				}
				wantText, wantEvent := m.run(n, key, mv)
				want(r, "run", text+string(event), wantText+string(wantEvent))
			case 5, 6:
				text := "absent"
				if ref, ok := p.Lookup(shape(t, n), name, o.Lane); ok {
					text = ref.Value().(string)
				}
				want(r, "get", text, m.get(n, key))
			case 7:
				if o.Owner == "" {
					m.list = slices.DeleteFunc(slices.Clone(m.list), func(g *modelGroup) bool { m.evict(g); return true })
					err = p.ResetAll(bg)
				} else {
					m.reset(o.Owner)
					err = p.Reset(bg, o.Owner)
				}
				if err != nil {
					r.Fatal(err)
				}
			case 8:
				if o.Owner != "" {
					m.holds[o.Owner]++
					_ = p.Hold(o.Owner)
				}
			case 9:
				if i%2 == 0 {
					m.groups = rapid.Int64Range(0, 5).Draw(r, "groups")
					err = p.SetGroups(bg, sessioncache.LimitOf(m.groups))
				} else {
					m.bytes = rapid.Int64Range(0, 30).Draw(r, "bytes")
					err = p.SetBytes(bg, sessioncache.LimitOf(m.bytes))
				}
				m.room(0, 0, nil)
				if err != nil {
					r.Fatal(err)
				}
			case 10:
				if g := m.find(n); g != nil {
					ref, ok := p.Lookup(shape(t, n), name, o.Lane)
					want(r, "lease", ok, g.names[key] != nil)
					if ok {
						l, _ := ref.Acquire()
						leases = append(leases, leased{l, g, g.names[key]})
						g.names[key].leases++
						g.leases++
					}
				}
			case 11:
				if len(leases) > 0 {
					l := leases[0]
					leases = leases[1:]
					want(r, "leased", l.Value(), any(l.value.text))
					l.End()
					l.group.leases--
					if l.value.leases--; l.value.leases == 0 && l.value.gone {
						m.freed[l.value.text]++
					}
				}
			}
			objects, bytes := m.sums()
			want(r, "groups", p.Groups(), int64(len(m.list)))
			want(r, "objects", p.Len(), objects)
			want(r, "bytes", p.Bytes(), bytes)
			want(r, "bytes of the other session", other.Bytes(), sum(m.others))
			for n := range 8 {
				is := slices.ContainsFunc(m.list, func(g *modelGroup) bool { return g.shape == n })
				if p.Has(shape(t, n)) != is {
					r.Fatalf("%d is resident: %v", n, !is) // what follows would differ too
				}
			}
		}
		for text, n := range m.freed {
			p.freed(text, n)
		}
		p.mu.Lock()
		for text, n := range p.mu.freed {
			want(r, "freed "+text, n, m.freed[text])
		}
		p.mu.Unlock()
		for _, l := range leases {
			l.End()
		}
	})
}
