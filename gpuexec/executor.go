package gpuexec

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/progress"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/internal/zone"
)

// Executor runs kernels on one device. Safe for concurrent use.
type Executor struct {
	cfg    Config
	number int64
	info   DeviceInfo // of the device as it was opened first
	limits Limits     // likewise
	ref    *actors.Ref[message]
	life   context.Context // ends when Close begins
	work   sync.WaitGroup  // goroutines that the actor began; Close waits for them
	ends   sync.WaitGroup  // those that end jobs: any turn may begin one, so Close waits for them last
	once   sync.Once
	gone   chan struct{} // closed when the device is closed and every goroutine has ended
	zone   zone.Zone     // calls of the driver, listeners and the handler of the log, which compiles and workers wait for

	progress progress.Teller // of compiles
	touched  touched.Gauge   // the actor's

	compiles, blobLoads, launches, exact, restarts, queued atomic.Int64

	mu struct {
		sync.Mutex
		kernels map[*Kernel]struct{} // to be rebuilt when the device comes back
	}
	releases struct { // that have not ended
		sync.Mutex
		jobs map[*job]struct{}
	}
}

var opened atomic.Int64 // executors of the process

// Open opens the device and starts its workers; ctx bounds the opening only. The
// error says what is wrong with the configuration (ErrInvalid), or is the
// backend's; then nothing stays open.
func Open(ctx context.Context, cfg Config) (*Executor, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Workers == 0 {
		cfg.Workers = runtime.GOMAXPROCS(0)
	}
	if cfg.Compiles == 0 {
		cfg.Compiles = cfg.Workers
	}
	if cfg.Queue == 0 {
		cfg.Queue = defaultQueue
	}
	if cfg.Slow == 0 {
		cfg.Slow = defaultSlow
	}
	if cfg.Linger == 0 {
		cfg.Linger = defaultLinger
	}
	life, end := context.WithCancel(context.Background())
	e := &Executor{life: life, gone: make(chan struct{})}
	e.zone.Up = cfg.zone
	cfg.Logger = guard.Logger(cfg.Logger, e.zone.Lend(actors.Go))
	e.cfg = cfg
	e.progress = progress.Teller{Slow: cfg.Slow, Lend: e.zone.Lend(actors.GoOn), Join: func() { e.work.Add(1) }, Leave: e.work.Done}
	e.mu.kernels = make(map[*Kernel]struct{})
	e.releases.jobs = make(map[*job]struct{})
	g, err := e.openGeneration(guard.Context(ctx), 1)
	if err != nil {
		end()
		return nil, fmt.Errorf("executor: open %s:%d: %w", cfg.Backend.Name(), cfg.Index, err)
	}
	e.number, e.info, e.limits = opened.Add(1), g.info, g.limits
	left := func() bool { e.touched.Add(1); return e.touched.Left() }
	s := &shell{Executor: e, end: end, state: newState[*job](cfg.Queue, left), desk: new(desk), unclaimed: make(map[string]unclaimed)}
	s.start = s.starting()
	e.ref = actors.Spawn(actors.Config{Name: "executor " + cfg.Backend.Name(), Logger: cfg.Logger}, s.handle)
	g.start(e)
	e.ref.Tell(upMsg{fresh: g})
	if cfg.stop != nil {
		*cfg.stop = func() { e.ref.Tell(stopMsg{}) }
	}
	cfg.Logger.Debug("executor: opened", "device", e.info.Name, "backend", e.info.Backend)
	return e, nil
}

// Info describes the device, as it was when it was opened.
func (e *Executor) Info() DeviceInfo { return e.info }

// Identity is what stored code must fit that this device compiles or loads: the
// device said it when it was opened. It asks nobody. An empty Build means that it
// is not known; then nothing is stored (SPEC P12). ISA is to be read only.
func (e *Executor) Identity() Identity { return e.info.Identity }

// Limits are the device's.
func (e *Executor) Limits() Limits { return e.limits }

// Ready waits until the device runs: at once, unless it was lost. Errors: the
// context's, ErrClosed, and ErrCycle with the context of a compile that the restart waits for.
func (e *Executor) Ready(ctx context.Context) error {
	_, err := flight.Ride[struct{}](ctx, wait{e})
	return e.ended("ready", "", err)
}

// wait is one call of Ready. It implements flight.Caller.
type wait struct{ exec *Executor }

// Ask takes the call aboard the start of the device, if that does not run.
func (w wait) Ask(ctx context.Context) (flight.Ticket[struct{}], error) {
	return actors.Ask(ctx, w.exec.ref, func(r actors.Reply[flight.Ticket[struct{}]]) message { return readyMsg{r} })
}

func (wait) Take(struct{})                 {}
func (wait) Leave(flight.Ticket[struct{}]) {}

// ended says of ErrClosed what was closed, and what was to be done with which key. Other
// errors it gives as they are.
func (e *Executor) ended(op, key string, err error) error {
	if err != fault.ErrClosed {
		return err
	}
	return &fault.Error{Op: "executor: " + op, Key: key, Backend: e.info.Backend,
		Err: fmt.Errorf("the executor of %s:%d is %w: open another one", e.cfg.Backend.Name(), e.cfg.Index, err)}
}

// Stats are counts since Open. It waits for nothing.
func (e *Executor) Stats() Stats {
	return Stats{Number: e.number, Compiles: e.compiles.Load(), BlobLoads: e.blobLoads.Load(), Launches: e.launches.Load(), Exact: e.exact.Load(),
		Restarts: e.restarts.Load(), Queued: e.queued.Load(), Touched: e.touched.Most()}
}

// Close answers every caller that waits with ErrClosed, ends driver calls where
// that is possible, waits for the workers, and closes the device with all that is
// left on it. ctx ends the waiting only. Closing again waits again. Called by Listen, the driver or
// the handler of the log, or with the context of a compile, it does not wait for itself, but answers ErrCycle at once; the closing goes on.
func (e *Executor) Close(ctx context.Context) error {
	e.once.Do(func() { actors.Go(e.shutDown) })
	if e.zone.Here() || flight.Inside(ctx, e) { // ctx is the user's code
		return fault.Wrap("executor: close", e.info.Name, "Listen, the driver or the handler of the log called it, which it waits for", fault.ErrCycle)
	}
	select {
	case <-e.gone:
		return nil
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

func (e *Executor) shutDown() {
	defer close(e.gone)
	ctx := context.Background()
	e.takeDevice(ctx)
	e.work.Wait() // compiles, retired generations and a restart in progress
	e.takeDevice(ctx)
	_ = e.ref.Stop(ctx)
	e.ends.Wait()
}

// takeDevice has the actor answer everybody and closes the device it gives away.
// It is asked a second time for a device that was being opened at the first.
func (e *Executor) takeDevice(ctx context.Context) {
	g, err := actors.Ask(ctx, e.ref, func(r actors.Reply[*generation]) message { return closeMsg{r} })
	if err == nil && g != nil {
		err = g.retire()
	}
	if err != nil {
		e.cfg.Logger.Error("executor: close", "device", e.info.Name, "error", err)
	}
}
