package artefacts

import (
	"math"

	"github.com/cespare/xxhash/v2"

	"github.com/kiln-cache/kiln/internal/past"
	"github.com/kiln-cache/kiln/limit"
)

// Again counts the creators that ran for a key not for the first time, by why it was
// not the first (SPEC F10). The keys of past runs are known for the last 16 x
// capacity keys at least; where the capacity in entries is unlimited, for the last
// 262,144. A key of a Kernel is another one than that of an artefact.
type Again struct {
	Evicted uint64 // its value was kept, and capacity, a floor or the memory limit evicted it
	Cleared uint64 // its value was kept, or was to be, and was cleared, released by owner or closed
	Failed  uint64 // the run before failed
	Forced  uint64 // this run was forced, or that before was
	Refused uint64 // the value was not kept: too large, no capacity, floors in its way, or a key that cannot be hashed
}

// again is how the last run of a key ended, and so why there is another one.
type again uint8

const (
	first   again = iota // no run is known
	evicted              // its value was kept: if there is another run, it has been evicted
	cleared
	failed
	forced
	refused
	agains // their number
)

// runs knows how the last run of each key ended, by the hash of the key: two keys of
// one hash may be counted wrongly, no more.
type runs struct{ past.Keys[run] }

// run is the last one of a key.
type run struct {
	how    again
	window uint32 // of thrash: the last in which an eviction was the reason for it
}

const (
	pastFactor     = 16
	pastUnlimited  = 16 << 10 // entries to reckon with where there is no bound
	kernelOfTheKey = 0x9e3779b97f4a7c15
)

// bound fits it to a capacity in entries. Without any it stays as it is.
func (p *runs) bound(entries limit.Limit) {
	switch n, counted := entries.Value(); {
	case !counted:
		p.Most = pastFactor * pastUnlimited
	case n > 0:
		p.Most = pastFactor * int(min(n, math.MaxInt32))
	case p.Most == 0:
		p.Most = pastFactor * DefaultEntries
	}
}

// cleared notes that what is known of a key was cleared.
func (p *runs) cleared(key string, what kind) {
	h := hashOf(key, what)
	if r := p.Find(h); r.how != first {
		r.how = cleared
		p.Set(h, r)
	}
}

func hashOf(key string, what kind) uint64 {
	h := xxhash.Sum64String(key)
	if what == kernel {
		h ^= kernelOfTheKey
	}
	return h
}

// flown notes how a flight ended, and counts its creator if that ran.
func (s *state) flown(m *making, end again) {
	k := m.call
	h := hashOf(k.Key, k.kind)
	was := s.past.Find(h)
	alone := k.kind == lone && k.Unhashable == "" // what was there before it stays
	if m.ran && was.how != first {
		why := was.how
		if alone {
			why = forced
		}
		s.gauges.again[why].Add(1)
	}
	now := run{end, was.window}
	if k.kind == normal {
		again := m.ran && was.how == evicted && was.window != s.thrash.window
		if again {
			now.window = s.thrash.window
		}
		if s.thrash.missed(m.ran, again, s.hits, s.size()) {
			s.gauges.thrash.Add(1)
		}
	}
	switch {
	case !m.ran && (was.how == first || end != evicted): // a load is no run
	case alone && was.how != first:
	default:
		s.past.Set(h, now)
	}
}

// thrash finds out that what was evicted is made again and again (SPEC S5). It looks
// at windows of requests, one after the other: hits, and what was no hit.
type thrash struct {
	window uint32 // its number, from 1
	hits   uint64 // before it
	misses int64  // in it
	runs   int64  // of these, of creators
	again  int64  // of these, because a value had been evicted; each key once
	on     bool
}

// thrashFactor is how many requests there are in a window, for each entry.
const thrashFactor = 20

// missed notes a request that was no hit. It reports whether thrash begins with it:
// more keys than there are entries were made again within a window, and over half of
// the requests in it ran creators.
func (t *thrash) missed(ran, again bool, hits uint64, entries int64) (begins bool) {
	t.misses++
	if ran {
		t.runs++
	}
	if again {
		t.again++
	}
	requests := int64(hits-t.hits) + t.misses
	over := t.again > entries && 2*t.runs > requests
	if !over && requests < thrashFactor*entries {
		return false
	}
	begins = over && !t.on
	*t = thrash{window: t.window + 1, hits: hits, on: over}
	return begins
}
