package pressure

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
)

// Config of a Watch. All but the Logger must be given.
type Config struct {
	Limit int64 // bytes, above 0
	// Rooms are the caches at this moment. The last but one owns what those before
	// it lease; the last is asked for nothing but the tier Last.
	Rooms  func() []Room
	Go     func(func()) // starts a goroutine
	Logger *slog.Logger // nil = silent
}

// Watch is the sum of what the caches hold, and its limit. A nil Watch counts
// nothing. Safe for concurrent use.
type Watch struct {
	cfg   Config
	bytes atomic.Int64
	// alarm is the sum above which it shrinks. INVARIANT: it is above the limit
	// from when that could not be met until the sum is within it.
	alarm atomic.Int64

	shrinks, freed atomic.Int64

	mu struct {
		sync.Mutex
		closed  bool
		running chan struct{} // closed when the shrink that runs has ended; nil if none does
	}
}

// New makes a watch; it must be closed.
func New(cfg Config) *Watch {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Watch{cfg: cfg}
	w.alarm.Store(cfg.Limit)
	return w
}

// Add notes that a cache holds so many bytes more, or less. It never waits.
func (w *Watch) Add(bytes int64) {
	if w == nil {
		return
	}
	now := w.bytes.Add(bytes)
	switch alarm := w.alarm.Load(); {
	case bytes > 0 && now > alarm:
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
			w.cfg.Logger.Warn("memory: the limit cannot be met: all that is left is in use", "over", now-limit, "now", now, "limit", limit)
		}
		alarm = now + limit/patience
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alarm.Store(alarm)
	if now = w.bytes.Load(); now <= limit { // who freed that looked at the alarm before
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
	rooms := w.cfg.Rooms()
	offers := make([][]Item, len(rooms))
	for i, room := range rooms {
		offers[i] = room.Offer(ctx)
	}
	owner := len(rooms) - 2
	given := make([]int64, len(rooms))
	var gave int64
	for tier, wishes := range plan(offers, over) {
		var leased int64
		for i, bytes := range wishes {
			if i == owner {
				bytes += leased
			}
			if bytes == 0 {
				continue
			}
			f := rooms[i].Shrink(ctx, bytes, Tier(tier))
			leased += f.Leased
			given[i] += f.Bytes
			gave += f.Bytes
		}
	}
	if gave == 0 {
		return false, true
	}
	now := w.bytes.Load()
	var others int64
	for _, n := range given[:owner] {
		others += n
	}
	w.cfg.Logger.Info("memory: shrank", "others", others, "artefacts", given[owner], "constants", given[owner+1],
		"before", before, "now", now, "limit", w.cfg.Limit)
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

// Settle waits for the shrink that runs, if one does.
func (w *Watch) Settle(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	running := w.mu.running
	w.mu.Unlock()
	if running == nil {
		return nil
	}
	select {
	case <-running:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close lets no shrink begin any more and waits for the one that runs.
func (w *Watch) Close(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	w.mu.closed = true
	w.mu.Unlock()
	return w.Settle(ctx)
}
