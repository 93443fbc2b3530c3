package pressure

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/sums"
)

// MostBytes is the most that one value of a room may hold, so that no sum of sizes
// wraps (SPEC Q5).
const MostBytes = 1 << 48

// Config of a Watch. All but the Logger must be given.
type Config struct {
	Limit  int64        // bytes, above 0
	Go     func(func()) // starts a goroutine
	Logger *slog.Logger // nil = silent
}

// Watch is the sum of what the caches hold, and its limit. A nil Watch counts
// nothing. Safe for concurrent use.
type Watch struct {
	cfg   Config
	bytes sums.Total
	// alarm is the sum above which it shrinks. INVARIANT: it is above the limit
	// from when that could not be met until the sum is within it.
	alarm atomic.Int64

	shrinks atomic.Int64
	freed   sums.Total
	telling lease.Bin[func()] // what the log is told, whose handler may block: no shrink waits for it

	mu struct {
		sync.Mutex
		closed  bool
		rooms   map[*Room]uint64 // and when they joined
		joined  uint64
		running chan struct{} // closed when the shrink that runs has ended; nil if none does
	}
}

// New makes a watch; it must be closed.
func New(cfg Config) *Watch {
	cfg.Logger = guard.Logger(cfg.Logger, cfg.Go)
	w := &Watch{cfg: cfg}
	w.alarm.Store(cfg.Limit)
	w.mu.rooms = make(map[*Room]uint64)
	w.telling.InOrder = true
	w.telling.Init(cfg.Go, func(tell func()) { tell() }, func(error) {}) // the Logger is guarded
	return w
}

// tell has the log told, unless very much waits for that.
func (w *Watch) tell(fn func()) { w.telling.Offer(fn, lease.MostUntold) }

// Join has the watch shrink a room until leave is called. Leaving again does
// nothing. A nil Watch shrinks no room.
func (w *Watch) Join(r Room) (leave func()) {
	if w == nil {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.joined++
	w.mu.rooms[&r] = w.mu.joined
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.mu.rooms, &r)
	}
}

// Rooms lists the rooms that have joined and not left, by rank and then by when
// they joined.
func (w *Watch) Rooms() []*Room {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Keys(w.mu.rooms), func(a, b *Room) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(w.mu.rooms[a], w.mu.rooms[b]))
	})
}

// Add notes that a cache holds n bytes more, or less. It never waits.
func (w *Watch) Add(n int64) {
	if w == nil {
		return
	}
	now := w.bytes.Add(n)
	switch alarm := w.alarm.Load(); {
	case n > 0 && now > alarm:
		w.start()
	case now <= w.cfg.Limit && alarm > w.cfg.Limit:
		w.met()
	}
}

// met has the limit hold again from here on.
func (w *Watch) met() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes.Load() <= w.cfg.Limit {
		w.alarm.Store(w.cfg.Limit)
	}
}

// start begins a shrink if none runs.
func (w *Watch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed || w.mu.running != nil {
		return
	}
	w.mu.running = make(chan struct{})
	w.cfg.Go(w.run)
}

// run shrinks until the sum is within the limit or nothing more can go.
func (w *Watch) run() {
	stuck := false
	for again := true; again; {
		again, stuck = w.pass()
	}
	const patience = 64
	now, limit := w.bytes.Load(), w.cfg.Limit
	alarm := limit
	if stuck && now > limit {
		if w.alarm.Load() == limit { // it was met until now
			then := now
			w.tell(func() {
				w.cfg.Logger.Warn("memory: the limit cannot be met: all that is left is in use", "over", then-limit, "now", then, "limit", limit)
			})
		}
		alarm = min(sums.Add(now, limit/patience), math.MaxInt64-1) // below the largest sum that there is
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alarm.Store(alarm)
	if now = w.bytes.Load(); now <= limit { // what was freed meanwhile saw the old alarm
		alarm = limit
		w.alarm.Store(alarm)
	}
	close(w.mu.running)
	w.mu.running = nil
	if now > alarm && !w.mu.closed { // it grew meanwhile, and saw a shrink at work
		w.mu.running = make(chan struct{})
		w.cfg.Go(w.run)
	}
}

// pass is one round over the rooms. It reports whether another may help, and
// whether none can: nothing more can go.
func (w *Watch) pass() (again, stuck bool) {
	before := w.bytes.Load()
	over := before - w.cfg.Limit
	if over <= 0 || w.ended() {
		return false, false
	}
	ctx := context.Background()
	rooms := w.Rooms()
	offers := make([][]Item, len(rooms))
	for i, room := range rooms {
		offers[i] = room.Offer(ctx)
	}
	var given [Constants + 1]int64
	var gave int64
	for tier, wishes := range plan(offers, over) {
		var leased int64 // by the rooms before the artefacts
		for i, bytes := range wishes {
			rank := rooms[i].Rank
			if rank == Artefacts {
				bytes = sums.Add(bytes, leased)
				leased = 0
			}
			if bytes == 0 {
				continue
			}
			f := rooms[i].Shrink(ctx, bytes, Tier(tier))
			leased = sums.Add(leased, f.Leased)
			given[rank] = sums.Add(given[rank], f.Bytes)
			gave = sums.Add(gave, f.Bytes)
		}
	}
	if gave == 0 {
		return false, true
	}
	now := w.bytes.Load()
	w.tell(func() {
		w.cfg.Logger.Info("memory: shrank", "others", sums.Add(given[Blobs], given[Sessions]), "artefacts", given[Artefacts], "constants", given[Constants],
			"before", before, "now", now, "limit", w.cfg.Limit)
	})
	w.shrinks.Add(1)
	w.freed.Add(gave)
	return now > w.cfg.Limit, false
}

func (w *Watch) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.closed
}

// Stats is what a watch counted.
type Stats struct {
	Limit   int64 // bytes; 0 = none
	Bytes   int64 // held at this moment
	Shrinks int64 // rounds in which something had to go
	Freed   int64 // bytes that had to go, as their caches counted them
}

// Stats gives the counts so far; all zero for a nil Watch.
func (w *Watch) Stats() Stats {
	if w == nil {
		return Stats{}
	}
	return Stats{Limit: w.cfg.Limit, Bytes: w.bytes.Load(), Shrinks: w.shrinks.Load(), Freed: w.freed.Load()}
}

// Settle waits for the shrink that runs, if one does, and for the log.
func (w *Watch) Settle(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	running := w.mu.running
	w.mu.Unlock()
	if running != nil {
		select {
		case <-running:
		case <-ctx.Done():
			return guard.Ended(ctx)
		}
	}
	told := make(chan struct{})
	w.telling.Fence(func() { close(told) })
	select {
	case <-told:
		return nil
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

// Close lets no shrink begin any more and waits for the one that runs, and for the log.
func (w *Watch) Close(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	w.mu.closed = true
	w.mu.Unlock()
	return w.Settle(ctx)
}
