package pipelinefile

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/internal/zone"
)

// Origin says where a pipeline came from.
type Origin string

// The origins.
const (
	Hit   Origin = "hit"   // a live object, or another call's build
	SPIRV Origin = "spirv" // this call's build, from SPIR-V that was there
	Built Origin = "built" // this call's build, from source or from the caller's words
)

// Cache holds the pipelines of one device. Safe for concurrent use.
type Cache struct {
	cfg      Config
	log      *slog.Logger
	zone     zone.Zone // what is called of users and the driver: Close waits for it
	driver   driverSide
	shaders  sync.Map // name -> *shader; written under mu
	live     *table.Table[*object]
	liveLen  atomic.Int64
	counters counters
	saving   token         // one Save by path at a time
	drained  chan struct{} // closed when a closed cache has no job left

	identity layout.Identity          // of this opening
	openDir  func(root string) vfs.FS // of folders; nil where noDir is set
	noDir    error

	builds   flight.Locked[string, *object]      // pipelines, by their request
	compiles flight.Locked[layout.Key, []uint32] // SPIR-V
	bin      lease.Bin[retired]                  // what the driver is to destroy

	mu struct {
		sync.Mutex
		closed  bool
		running int // creators on lent goroutines, loads and saves on their callers'
		spirv   map[layout.Key][]uint32
	}
}

// Open starts a cache. It must be closed. The context bounds the driver's work
// for it: a driver that cannot make an empty cache is gone without, which is
// counted as driver_refused.
func Open(ctx context.Context, cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	c := &Cache{
		cfg: cfg, live: table.New[*object](cfg.Hash), saving: newToken(), drained: make(chan struct{}),
		identity: cfg.Identity.layout().Opened(),
	}
	c.log = guard.Logger(cfg.Logger, actors.Go) // what Close waits for is in the zone when it logs
	c.openDir, c.noDir = vfs.From(ctx)
	c.mu.spirv = make(map[layout.Key][]uint32)
	c.builds = flight.Locked[string, *object]{Mu: &c.mu, Lend: c.lendLocked, Scope: c}
	c.compiles = flight.Locked[layout.Key, []uint32]{Mu: &c.mu, Lend: c.lendLocked, Scope: c}
	c.bin.Init(c.zone.Lend(actors.Go), c.destroy, c.destroyPanicked)
	if err := c.driver.open(ctx, cfg, c.retire); err != nil {
		c.counters.miss(fault.DriverRefused)
		c.log.Warn("pipelinefile: the driver makes no cache; pipelines are built without", "error", err)
	}
	return c, nil
}

// Get gives a lease on the pipeline of a request: a live one, that of a build
// under way, or a new one. At most one build of a request runs at a time, and
// none holds up another request. The error is the front end's, the driver's,
// the context's, or one of the sentinels here; nothing was kept then.
func (c *Cache) Get(ctx context.Context, r Request) (*Lease, Origin, error) {
	const op = "pipelinefile: get"
	if err := r.check(op); err != nil {
		return nil, "", err
	}
	var s *shader
	if r.Words == nil {
		if s = c.lookup(r.Shader); s == nil {
			return nil, "", &fault.Error{Op: op, Key: r.Shader, Err: fault.ErrNotFound}
		}
	}
	key := r.key(s)
	hash := c.live.Hash(key) // by Config.Hash, user code: here, and not under the mutex
	if o := c.find(hash, key); o != nil {
		c.counters.hits.Add(1)
		return newLease(o), Hit, nil
	}
	l, origin, err := c.build(ctx, hash, key, &r, s)
	if err != nil {
		c.counters.failed.Add(1)
		return nil, "", &fault.Error{Op: op, Key: r.Shader, Err: err}
	}
	c.counters.origin(origin)
	return l, origin, nil
}

// find gives a live object with a pin for the caller, or nil.
func (c *Cache) find(hash uint64, key string) *object {
	if n := c.live.Hashed(hash, key, 0); n != nil && n.Value.cell.Pin() {
		return n.Value
	}
	return nil
}

func (c *Cache) build(ctx context.Context, hash uint64, key string, r *Request, s *shader) (*Lease, Origin, error) {
	if c.driver.inside(ctx) { // be it that the build of another caller has begun and waits for the turn
		return nil, "", fault.ErrCycle
	}
	var o *object
	role, err := c.builds.Ride(ctx, flight.Want[string, *object]{
		Key: key, Name: r.Shader, Linger: cmp.Or(r.Linger, c.cfg.Linger),
		Look: func() (bool, error) {
			if c.mu.closed {
				return false, fault.ErrClosed
			}
			o = c.find(hash, key)
			return o != nil, nil
		},
		Make:    c.creator(r.module(), s),
		Keep:    c.keepLocked(hash, key),
		Take:    func(made *object) { made.cell.Pin(); o = made },
		Release: (*object).unpin,
	})
	switch {
	case err != nil:
		return nil, "", err
	case role == flight.Began:
		return newLease(o), o.origin, nil
	}
	return newLease(o), Hit, nil
}

// keepLocked gives what makes a pipeline live under its key.
func (c *Cache) keepLocked(hash uint64, key string) func(*object) {
	return func(made *object) {
		made.cell.Pin() // the flight holds another
		n := c.live.HashedNode(hash, key, 0)
		n.Value = made
		made.forget = func() { c.forget(n) }
		c.live.Put(n)
		c.liveLen.Store(int64(c.live.Len()))
	}
}

// forget takes one live object out, with the cache's hold on it.
func (c *Cache) forget(n *table.Node[*object]) {
	c.mu.Lock()
	there := c.live.Remove(n)
	c.liveLen.Store(int64(c.live.Len()))
	c.mu.Unlock()
	if there {
		n.Value.unpin()
	}
}

// Clear lets go of every live object: what nobody uses is destroyed, the rest
// with its last lease. It waits for nobody. SPIR-V and driver cache stay.
func (c *Cache) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clearLocked()
}

func (c *Cache) clearLocked() {
	c.builds.VoidAll()
	c.live.All(func(n *table.Node[*object]) bool {
		if o := n.Value; o.cell.Drop() {
			c.bin.Throw(retired{"pipeline", o.pipeline.Destroy})
		}
		return true
	})
	c.live.Clear()
	c.liveLen.Store(0)
}

// Len is the number of live objects in the cache.
func (c *Cache) Len() int { return int(c.liveLen.Load()) }

// SPIRV is the number of SPIR-V entries in memory, all of registered shaders.
func (c *Cache) SPIRV() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.spirv)
}

// DriverCache reports whether this driver's own cache is used, or turned off by
// a quirk.
func (c *Cache) DriverCache() bool { return c.driver.effect != Off }

// Close ends the cache: callers that wait get ErrClosed at once, creators'
// contexts end, and Close waits for them, for frees, and for Load and Save. The
// context stops the waiting only; the closing goes on. Leases stay usable until
// they end. Called by a front end, the driver, a reader of LoadFrom or the handler of the
// log, on the goroutine of that, or with the context of one of these, it does not wait for
// itself, but answers ErrCycle at once.
func (c *Cache) Close(ctx context.Context) error {
	c.mu.Lock()
	first := !c.mu.closed
	if first {
		c.clearLocked()
		c.mu.closed = true
		c.mu.running++ // the closing itself
		c.builds.Strand(fault.ErrClosed)
		c.compiles.Strand(fault.ErrClosed)
	}
	c.mu.Unlock()
	if first {
		c.driver.close()
		c.jobEnded()
	}
	if c.zone.Here() || flight.Inside(ctx, c) { // ctx is the user's code
		return &fault.Error{Op: "pipelinefile: close", Err: fault.ErrCycle}
	}
	select {
	case <-c.drained:
	case <-ctx.Done():
		return &fault.Error{Op: "pipelinefile: close", Err: guard.Ended(ctx)}
	}
	return nil
}

// lendLocked runs fn on another goroutine, for which Close waits.
func (c *Cache) lendLocked(fn func()) {
	c.mu.running++
	actors.Go(func() {
		defer c.jobEnded()
		c.zone.Run(fn)
	})
}

// during runs fn, which Close waits for, since it calls the driver: ErrClosed and the
// context's error if it must not.
func (c *Cache) during(ctx context.Context, fn func() error) (err error) {
	if err = c.begin(ctx); err != nil {
		return err
	}
	defer c.jobEnded()
	c.zone.Run(func() { err = fn() })
	return err
}

// begin notes the start of that. The caller owes a jobEnded.
func (c *Cache) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return fault.ErrClosed
	}
	c.mu.running++
	return nil
}

// jobEnded notes the end of something that Close waits for. After the last of a
// closed cache only what was thrown into the bin before is left to wait for.
func (c *Cache) jobEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.running--
	if c.mu.closed && c.mu.running == 0 {
		c.bin.Fence(func() { close(c.drained) })
	}
}
