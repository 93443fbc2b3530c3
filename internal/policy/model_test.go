package policy_test

import (
	"maps"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/shapegroups"
)

// model is the rules of SPEC section 6 said once more, with slices that are
// sorted and searched whenever something is asked. It knows no trick of the real
// thing: no lazy heap, no growing list, no scaled weight.
type model struct {
	kind     policy.Kind
	worth    bool
	limit    int
	requests int
	clock    int
	turn     int
	known    map[shapegroups.Shape]*entry
	order    map[int][]*entry // residents by class: registration, and sieve's line
	hand     map[int]*entry
	ahead    []shapegroups.Shape

	weight                  float64
	recent, counted         []*entry // shadow directories, newest last
	recencyMiss, countsMiss float64
}

type entry struct {
	shape    shapegroups.Shape
	resident bool
	visited  bool
	last     int
	since    int
	turn     int // of those whose age begins, one after the other
	score    float64
	bytes    int64
	seconds  float64
	cost     int
	class    int
}

func newModel(c policy.Config) *model {
	return &model{
		kind: c.Kind, worth: c.Keep == policy.Worth, limit: c.Groups, weight: 1,
		known: map[shapegroups.Shape]*entry{}, order: map[int][]*entry{}, hand: map[int]*entry{},
	}
}

func (m *model) residents() []*entry {
	var all []*entry
	for _, line := range m.order {
		all = append(all, line...)
	}
	return all
}

func (m *model) size() int {
	if m.limit == policy.Unlimited {
		return max(64, len(m.residents()))
	}
	return max(1, m.limit)
}

func (m *model) get(s shapegroups.Shape) *entry {
	if m.known[s] == nil {
		m.known[s] = &entry{shape: s}
	}
	return m.known[s]
}

func lower(a, b *entry) int {
	if a.score != b.score {
		if a.score < b.score {
			return -1
		}
		return 1
	}
	return a.last - b.last
}

func older(a, b *entry) int { return a.last - b.last }

func (m *model) request(s shapegroups.Shape) bool {
	m.requests++
	m.clock++
	e := m.known[s]
	if e == nil && m.kind != policy.Duel {
		m.age()
		return false
	}
	e = m.get(s)
	e.last = m.clock
	if e.resident {
		if m.kind != policy.FIFO {
			m.renew(e)
			if e.class != e.cost {
				m.leave(e)
				m.join(e, e.cost)
			}
		}
		e.visited = true
	}
	if m.kind == policy.Duel {
		m.play(e)
		m.trim()
	}
	m.age()
	return e.resident
}

// play is a request to the two shadow directories.
func (m *model) play(e *entry) {
	m.weight *= math.Exp2(1 / (64 * float64(m.size())))
	e.score += m.weight
	if i := slices.Index(m.recent, e); i >= 0 {
		m.recent = slices.Delete(m.recent, i, i+1)
		m.recencyMiss += (0 - m.recencyMiss) / 1000
	} else {
		m.recencyMiss += (1 - m.recencyMiss) / 1000
	}
	m.recent = append(m.recent, e)
	if slices.Contains(m.counted, e) {
		m.countsMiss += (0 - m.countsMiss) / 1000
	} else {
		m.countsMiss += (1 - m.countsMiss) / 1000
		full := len(m.counted) >= m.size()
		if !full || !m.worth || e.score >= slices.MinFunc(m.counted, lower).score {
			if full {
				m.dropCounted()
			}
			m.counted = append(m.counted, e)
		}
	}
	m.fit()
}

func (m *model) dropCounted() {
	low := slices.MinFunc(m.counted, lower)
	m.counted = slices.DeleteFunc(m.counted, func(e *entry) bool { return e == low })
}

func (m *model) fit() {
	for len(m.recent) > m.size() {
		m.recent = m.recent[1:]
	}
	for len(m.counted) > m.size() {
		m.dropCounted()
	}
	m.trim()
}

func (m *model) trim() {
	if m.kind != policy.Duel {
		maps.DeleteFunc(m.known, func(_ shapegroups.Shape, e *entry) bool { return !e.resident })
		return
	}
	for len(m.known) > 64*m.size() {
		var free []*entry
		for _, e := range m.known {
			if !e.resident && !slices.Contains(m.recent, e) && !slices.Contains(m.counted, e) {
				free = append(free, e)
			}
		}
		if len(free) == 0 {
			return
		}
		delete(m.known, slices.MinFunc(free, lower).shape)
	}
}

func (m *model) age() {
	for range 4 {
		var due *entry
		for _, e := range m.residents() {
			if m.requests-e.since >= 64*m.size() && (due == nil || e.turn < due.turn) {
				due = e
			}
		}
		if due == nil {
			return
		}
		m.renew(due)
		if due.class > m.lowest() {
			down := due.class - 1
			m.leave(due)
			m.join(due, down)
		}
	}
}

// renew has e's age begin anew, behind those whose age began before.
func (m *model) renew(e *entry) {
	m.turn++
	e.since, e.turn = m.requests, m.turn
}

func (m *model) lowest() int { return slices.Min(slices.Collect(maps.Keys(m.order))) }

func (m *model) join(e *entry, class int) {
	e.class, e.visited = class, false
	m.order[class] = append(m.order[class], e)
}

func (m *model) leave(e *entry) {
	line := m.order[e.class]
	i := slices.Index(line, e)
	if m.hand[e.class] == e {
		m.hand[e.class] = nil
		if i+1 < len(line) {
			m.hand[e.class] = line[i+1]
		}
	}
	m.order[e.class] = slices.Delete(line, i, i+1)
	if len(line) == 1 {
		delete(m.order, e.class)
		delete(m.hand, e.class)
	}
}

func (m *model) classOf(bytes int64, seconds float64) int {
	if m.kind == policy.FIFO || seconds <= 0 {
		return math.MinInt16
	}
	return int(math.Floor(math.Log2(seconds / float64(max(bytes, 1)))))
}

func (m *model) admit(s shapegroups.Shape, bytes int64, seconds float64) {
	e := m.get(s)
	if e.last == 0 {
		m.clock++
		e.last = m.clock
	}
	m.renew(e)
	e.resident, e.bytes, e.seconds, e.cost = true, bytes, seconds, m.classOf(bytes, seconds)
	m.join(e, e.cost)
	m.fit()
}

func (m *model) resize(s shapegroups.Shape, bytes int64, seconds float64) {
	e := m.known[s]
	e.bytes, e.seconds = bytes, seconds
	if cost := m.classOf(bytes, seconds); cost != e.cost {
		e.cost = cost
		m.leave(e)
		m.join(e, cost)
	}
}

func (m *model) remove(s shapegroups.Shape) {
	e := m.known[s]
	m.leave(e)
	e.resident = false
	m.fit()
}

func (m *model) need(s shapegroups.Shape) int {
	if i := slices.Index(m.ahead, s); i >= 0 {
		return i
	}
	return math.MaxInt
}

func (m *model) victim(ask func(shapegroups.Shape) policy.Standing, most policy.Standing, bytes int64) *entry {
	standing := func(shape shapegroups.Shape) policy.Standing {
		if m.known[shape].bytes < bytes {
			return policy.Fixed
		}
		return ask(shape)
	}
	for s := policy.Free; s <= most; s++ {
		var last *entry
		for _, class := range slices.Sorted(maps.Keys(m.order)) {
			if v := m.choose(class, func(e *entry) bool { return standing(e.shape) == s && m.need(e.shape) == math.MaxInt }); v != nil {
				return v
			}
		}
		for _, e := range m.residents() {
			if standing(e.shape) == s && (last == nil || m.need(e.shape) > m.need(last.shape)) {
				last = e
			}
		}
		if last != nil {
			return last
		}
	}
	return nil
}

func (m *model) choose(class int, may func(*entry) bool) *entry {
	line := slices.Clone(m.order[class])
	able := slices.DeleteFunc(slices.Clone(line), func(e *entry) bool { return !may(e) })
	if m.kind == policy.Sieve {
		return m.sieve(class, line, able)
	}
	if len(able) == 0 {
		return nil
	}
	switch {
	case m.kind == policy.FIFO:
		return able[0]
	case m.kind == policy.Duel && m.countsMiss < m.recencyMiss:
		return slices.MinFunc(able, lower)
	}
	return slices.MinFunc(able, older)
}

// sieve walks the line from the hand, at most twice around.
func (m *model) sieve(class int, line, able []*entry) *entry {
	at := max(slices.Index(line, m.hand[class]), 0)
	for range 2 * len(line) {
		e := line[at]
		if slices.Contains(able, e) {
			if !e.visited {
				m.hand[class] = e
				return e
			}
			e.visited = false
		}
		at = (at + 1) % len(line)
		m.hand[class] = line[at]
	}
	return nil
}

func (m *model) isWorth(s shapegroups.Shape, standing func(shapegroups.Shape) policy.Standing) bool {
	if m.kind != policy.Duel || !m.worth {
		return true
	}
	var free, ahead []*entry
	for _, e := range m.residents() {
		switch {
		case standing(e.shape) != policy.Free:
		case m.need(e.shape) == math.MaxInt:
			free = append(free, e)
		default:
			ahead = append(ahead, e)
		}
	}
	if len(free) > 0 {
		least := slices.MinFunc(free, func(a, b *entry) int { return lower(a, b) })
		return m.need(s) < math.MaxInt || m.countsMiss >= m.recencyMiss || m.known[s].score >= least.score
	}
	for _, e := range ahead {
		if m.need(e.shape) > m.need(s) {
			return true
		}
	}
	return len(ahead) == 0
}
