package constants

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/zone"
	"github.com/kiln-cache/kiln/limit"
)

// Cache is the constant caches of a process, one Engine per engine kind, device
// and context. Safe for concurrent use.
type Cache struct {
	cfg      Config
	once     sync.Once
	counters counters
	gone     chan struct{} // closed when Close has ended
	zone     zone.Zone     // callbacks, Frees and handlers of the log, which it waits for
	leave    func()        // the memory limit

	mu struct {
		sync.RWMutex
		closed   bool
		capacity [kinds]limit.Limit // MiB
		device   map[device]limit.Limit
		engines  map[engineID]*Engine
	}
}

type device struct {
	kind  Kind
	index int
}

type engineID struct {
	device
	context string
}

// Open makes a cache; it has no engine yet.
func Open(cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.lend == nil {
		cfg.lend = actors.Go
	}
	c := &Cache{cfg: cfg, gone: make(chan struct{})}
	c.zone.Up = cfg.zone
	for k := range kinds {
		c.mu.capacity[k] = settle(cfg.Capacity[k])
	}
	c.mu.device = make(map[device]limit.Limit)
	c.mu.engines = make(map[engineID]*Engine)
	if cfg.spare != nil {
		*cfg.spare = c.spare
	}
	if cfg.stop != nil {
		*cfg.stop = func() {
			for _, e := range c.refuse() {
				e.tell(stopMsg{})
			}
		}
	}
	c.leave = cfg.memory.Join(pressure.Room{Rank: pressure.Constants, Offer: c.offer, Shrink: c.shrink})
	return c, nil
}

// Engine gives the cache of a device and context, the same one each time. The
// empty context is one like any other. An engine stays until its Close.
func (c *Cache) Engine(kind Kind, index int, context string) (*Engine, error) {
	if err := checkDevice(kind, index); err != nil {
		return nil, err
	}
	id := engineID{device{kind, index}, context}
	c.mu.RLock()
	e := c.mu.engines[id]
	c.mu.RUnlock()
	if e != nil {
		return e, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, &fault.Error{Op: "constants: engine", Err: isClosed("the cache")}
	}
	if e = c.mu.engines[id]; e == nil {
		e = newEngine(c, kind, index, context, bytesOf(c.capacityLocked(kind, index)), c.cfg.Policy[kind])
		c.mu.engines[id] = e
	}
	return e, nil
}

// forget takes an engine that closes out of the cache.
func (c *Cache) forget(e *Engine) {
	id := engineID{device{e.kind, e.index}, e.context}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.engines[id] == e {
		delete(c.mu.engines, id)
	}
}

func isClosed(what string) error {
	return fmt.Errorf("%s is %w: open another one", what, fault.ErrClosed)
}

func checkDevice(kind Kind, index int) error {
	if kind >= kinds {
		return fault.Invalidf("constants: engine", "engine kind %d, want cpu or gpu", kind)
	}
	if index < 0 {
		return fault.Invalidf("constants: engine", "device index %d, want 0 or more", index)
	}
	return nil
}

// bytesOf turns MiB into bytes.
func bytesOf(mib limit.Limit) int64 {
	n, counted := mib.MiB().Value()
	if !counted {
		return noBound
	}
	return n
}

func (c *Cache) capacityLocked(kind Kind, index int) limit.Limit {
	return c.mu.device[device{kind, index}].Or(c.mu.capacity[kind])
}

func (c *Cache) capacityOf(kind Kind, index int) limit.Limit {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.capacityLocked(kind, index)
}

// Capacity is the capacity of a kind, in MiB. It applies to each device of the
// kind that has none of its own. It waits for nothing.
func (c *Cache) Capacity(kind Kind) limit.Limit {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.capacity[kind]
}

// DeviceCapacity is the capacity in force at a device, in MiB. ErrInvalid: there
// is no such kind or index.
func (c *Cache) DeviceCapacity(kind Kind, index int) (limit.Limit, error) {
	if err := checkDevice(kind, index); err != nil {
		return limit.Limit{}, err
	}
	return c.capacityOf(kind, index), nil
}

// SetCapacity sets the capacity of each device of a kind, in MiB, and takes the
// devices' own capacities back (SPEC T12). It flushes every engine of the kind, also
// where the value is the one in force; 0 disables them, too (SPEC T2).
func (c *Cache) SetCapacity(ctx context.Context, kind Kind, mib limit.Limit) error {
	if err := checkCapacity(kind, 0, mib); err != nil {
		return err
	}
	return c.set(func() []*Engine {
		c.setLocked(kind, mib)
		return c.enginesLocked(func(id engineID) bool { return id.kind == kind })
	})
}

func (c *Cache) setLocked(kind Kind, mib limit.Limit) {
	c.mu.capacity[kind] = settle(mib)
	for d := range c.mu.device {
		if d.kind == kind {
			delete(c.mu.device, d)
		}
	}
}

// SetDeviceCapacity gives one device a capacity of its own, in MiB, which holds
// until its kind's is set again. It flushes that device only (SPEC T12).
func (c *Cache) SetDeviceCapacity(ctx context.Context, kind Kind, index int, mib limit.Limit) error {
	if err := checkCapacity(kind, index, mib); err != nil {
		return err
	}
	d := device{kind, index}
	return c.set(func() []*Engine {
		c.mu.device[d] = settle(mib)
		return c.enginesLocked(func(id engineID) bool { return id.device == d })
	})
}

func checkCapacity(kind Kind, index int, mib limit.Limit) error {
	if err := checkDevice(kind, index); err != nil {
		return err
	}
	if !mib.Given() {
		return fault.Invalidf("constants: capacity", "no value given, want MiB or %s", limit.Word)
	}
	return mib.Validate()
}

// SetEnabled is the older switch: on is the default capacity, off is 0, for
// every kind (SPEC T12).
func (c *Cache) SetEnabled(ctx context.Context, on bool) error {
	mib := limit.Of(0)
	if on {
		mib = limit.Unlimited
	}
	return c.set(func() []*Engine {
		for k := range kinds {
			c.setLocked(k, mib)
		}
		return c.enginesLocked(func(engineID) bool { return true })
	})
}

// Enabled reports whether any kind has a capacity above 0.
func (c *Cache) Enabled() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, mib := range c.mu.capacity {
		if n, counted := mib.Value(); !counted || n > 0 {
			return true
		}
	}
	return false
}

// set changes capacities and flushes the engines that change gives, all at once, whatever
// becomes of the context of the call. They are told under the lock, so that the last change
// is the one in force everywhere.
func (c *Cache) set(change func() []*Engine) error {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return &fault.Error{Op: "constants: capacity", Err: isClosed("the cache")}
	}
	var flushes []func() error
	for _, e := range change() {
		flushes = append(flushes, e.setCapacity(bytesOf(c.capacityLocked(e.kind, e.index))))
	}
	c.mu.Unlock()
	var errs []error
	for _, ended := range flushes {
		errs = append(errs, ended())
	}
	return errors.Join(errs...)
}

func (c *Cache) enginesLocked(want func(engineID) bool) []*Engine {
	var list []*Engine
	for id, e := range c.mu.engines {
		if want(id) {
			list = append(list, e)
		}
	}
	return list
}

// refuse makes no engine any more, changes no capacity, and gives the engines that there are.
func (c *Cache) refuse() []*Engine {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	return c.enginesLocked(func(engineID) bool { return true })
}

// Close closes every engine: waiters get ErrClosed, callbacks get Closed, and Close
// returns when those have run. Leases stay usable. ctx ends only the waiting; a
// second Close waits, too. Called by a callback, a Free, the listener of a removal or the
// handler of the log, it does not wait for itself, but answers ErrCycle at once.
func (c *Cache) Close(ctx context.Context) error {
	c.once.Do(func() {
		c.leave()
		engines := c.refuse()
		for _, e := range engines { // before any is waited for: none answers its callers later for another
			e.begin()
		}
		actors.Go(func() {
			defer close(c.gone)
			for _, e := range engines {
				<-e.gone
			}
		})
	})
	if c.zone.Here() {
		return fault.ErrCycle
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}
