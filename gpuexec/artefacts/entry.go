package artefacts

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/table"
)

// node is one artefact from the start of its flight to its release. Its address
// is its generation: a flight that ends late finds itself, or nothing.
type node = table.Node[entry]

type entry struct {
	// For readers at any time.
	resident atomic.Bool
	apart    atomic.Bool // evicted while it was leased: the core finds it by its key
	users    atomic.Pointer[users]
	cell     lease.Cell // from the landing on: residency, the flight, leases

	// Set before the node is published and the flight ends; immutable from then on.
	value    any
	bytes    int64
	cost     time.Duration
	free     func()
	blob     func(context.Context) ([]byte, error)
	requires []string
	claim    *lease.Claim
	kernels  []*node // what it was made from; each holds a pin for it
	origin   Outcome // how it was made

	// The actor's own.
	flight       *making // until it ends
	heir         *making // the flight of a whole that has its place (F9); nil = none
	in           *order
	older, newer *node
	tower        *tower  // its places in the lanes of any order; nil = none
	raised       bool    // it is known whether it has one
	used         uint64  // when it was last used, by state.clock
	tenant       *tenant // in whose order it is, and to whose floor its bytes count
	ending       int64   // of a kernel: how many of its pins are of artefacts that are being freed
}

// known reports whether the core knows the entry still.
func (e *entry) known() bool { return e.in != nil || e.flight != nil || e.apart.Load() }
