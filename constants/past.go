package constants

import (
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/kiln-cache/kiln/internal/past"
)

// again is how the last computation of a key ended, and so why there is another one.
type again uint8

const (
	first   again = iota // none is known
	evicted              // its tensor was kept: if there is another computation, it has been evicted
	cleared
	failed
	refused
	agains // their number
)

var againWords = [agains]string{evicted: "evicted", cleared: "cleared", failed: "failed", refused: "refused"}

// run is the last computation of a key.
type run struct {
	how     again
	flushes uint32 // before it ended: what was kept has been cleared by another one
}

// runs knows how the last computations ended, by the hash of their key: two keys of one
// hash may be counted wrongly, no more (SPEC F10).
type runs struct {
	past    past.Keys[run]
	flushes uint32
	counts  *[agains]atomic.Uint64 // computations that were not the first; read by anybody
}

// pastKeys are known of: a capacity in MiB says nothing of a number of tensors.
const pastKeys = 16 * 16 << 10

func (r *runs) init() { r.past.Most, r.counts = pastKeys, new([agains]atomic.Uint64) }

// begin counts a computation of a key that is not the first.
func (r *runs) begin(k Key) {
	was := r.past.Find(hashOf(k))
	if was.how == evicted && was.flushes != r.flushes {
		was.how = cleared
	}
	if was.how != first {
		r.counts[was.how].Add(1)
	}
}

func (r *runs) end(k Key, how again) { r.past.Set(hashOf(k), run{how, r.flushes}) }

func hashOf(k Key) uint64 { return xxhash.Sum64String(k.ID) ^ k.Backend*0x9e3779b97f4a7c15 }
